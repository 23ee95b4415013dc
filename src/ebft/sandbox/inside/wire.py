"""What crosses the process boundary between the tests and the program under test: frames of plain data.

A frame is a length of four bytes and JSON. Values of builtin types and a few of the standard library travel by content
and are rebuilt on the other side as exactly these types, so a class that claims to equal everything arrives as what it
holds, or does not arrive. Anything else stays where it is and travels as a number (`reference`).

Runs inside the sandbox, on both sides, with the standard library only. Nothing here may be imported by our own process.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, OrderedDict, defaultdict, deque

TYPE_CHECKING = False  # see driver.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST = 32 * 2**20
PLAIN = 2**53
_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class ProtocolError(Exception):
    """The other side did not keep to the protocol, or is gone."""


class Scanner:
    """What `json.JSONDecoder` tells the scanner that is written in C."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__


def no_json(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not plain data")


try:
    # Not through `json`, which imports `re` and `enum` and takes as long as all the rest of a short test.
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _for_scanner: Any = Scanner()
    _scan = make_scanner(_for_scanner)
    _chunks = make_encoder({}, no_json, encode_basestring_ascii, None, ":", ",", False, False, True)
    if "".join(_chunks([0.5, {"a": None}], 0)) != '[0.5,{"a":null}]' or _scan('[0.5,{"a":null}]', 0)[1] != 16:
        raise ImportError

    def to_json(message: Any) -> bytes:
        return "".join(_chunks(message, 0)).encode("ascii")

    def from_json(data: bytes) -> Any:
        text = data.decode("ascii")
        try:
            value, end = _scan(text, 0)
        except StopIteration:
            raise ValueError("not JSON") from None
        if end != len(text):
            raise ValueError("more than one value")
        return value

except (ImportError, TypeError, AttributeError):  # another Python's insides
    import json

    def to_json(message: Any) -> bytes:
        return json.dumps(message, separators=(",", ":")).encode("ascii")

    def from_json(data: bytes) -> Any:
        return json.loads(data)


class Channel:
    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write

    def send(self, message: Any) -> None:
        body = to_json(message)
        if len(body) > LONGEST:
            raise ProtocolError("a value is too large to send")
        data = memoryview(len(body).to_bytes(4, "big") + body)
        try:
            while data:
                data = data[os.write(self.write, data) :]
        except OSError:
            raise ProtocolError("the program has ended") from None

    def receive(self) -> Any:
        length = int.from_bytes(self._exactly(4), "big")
        if length > LONGEST:
            raise ProtocolError("a malformed message")
        try:
            return from_json(self._exactly(length))
        except (ValueError, RecursionError):
            raise ProtocolError("a malformed message") from None

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                chunk = os.read(self.read, min(count - len(data), 1 << 20))
            except OSError:
                raise ProtocolError("the program has ended") from None
            if not chunk:
                raise ProtocolError("the program has ended")
            data += chunk
        return bytes(data)


def begin() -> tuple[Any, Channel]:
    """What our own process has to say, on standard input, and the pipes to the other side."""
    channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
    with os.fdopen(0, "rb", closefd=False) as job_file:
        job = from_json(job_file.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return job, channel


def encode(value: Any, reference: Callable[[Any], list[Any]]) -> Any:
    """JSON for a value. `reference` gives `[tag, number]` for what does not travel by content.

    Content is read with the methods of the builtin types, never with those of a subclass.
    """
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, int):
        number = int.__int__(value)
        return number if -PLAIN < number < PLAIN else {"i": hex(number)}
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, (list, tuple)):
        listed = issubclass(kind, list)
        items = [encode(item, reference) for item in (list if listed else tuple).__iter__(value)]
        return items if listed else {"t": items}
    if issubclass(kind, dict):
        tag = "counter" if issubclass(kind, Counter) else "ordered" if issubclass(kind, OrderedDict) else "d"
        if issubclass(kind, defaultdict):
            tag = "d"  # equal to a dict of the same content, and its factory may be anything
        return {tag: [[encode(k, reference), encode(v, reference)] for k, v in dict.items(value)]}
    collections: tuple[tuple[str, Any], ...] = (("s", set), ("f", frozenset), ("deque", deque))
    for tag, base in collections:
        if issubclass(kind, base):
            return {tag: [encode(item, reference) for item in base.__iter__(value)]}
    if issubclass(kind, complex):
        # The constructor keeps the type but for subclasses, whose own methods are not asked.
        exact = complex.__add__(value, 0j) if kind is not complex else value
        return {"c": [exact.real, exact.imag]}
    if issubclass(kind, (bytes, bytearray)):
        return {"b" if issubclass(kind, bytes) else "ba": bytes.hex(bytes(memoryview(value)))}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if _is(kind, "decimal", "Decimal"):
        return {"decimal": str(value)}
    if _is(kind, "fractions", "Fraction"):
        return {"fraction": [hex(value.numerator), hex(value.denominator)]}
    for name in ("datetime", "date", "time"):
        if _is(kind, "datetime", name) and getattr(value, "tzinfo", None) is None:
            return {name: value.isoformat()}
    if _is(kind, "datetime", "timedelta"):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if kind in _VIEWS:
        return {_VIEWS[kind]: [encode(item, reference) for item in value]}
    if value is Ellipsis:
        return {"ellipsis": 0}
    if kind.__module__ == "numpy" and hasattr(kind, "item") and getattr(value, "shape", None) == ():
        item = value.item()  # numpy's scalars are not builtin numbers; arrays do not travel
        if type(item) in (bool, int, float, complex, str):
            return encode(item, reference)
    tag, number = reference(value)
    return {tag: number}


def _is(kind: type, module: str, name: str) -> bool:
    """Whether a type is this one of a module. That is not imported for it: before somebody has, it has no values."""
    return kind is getattr(sys.modules.get(module), name, None)


_MAKE: dict[str, Callable[[Any], Any]] = {
    "i": lambda v: int(v, 16),
    "c": lambda v: complex(v[0], v[1]),
    "b": bytes.fromhex,
    "ba": bytearray.fromhex,
    "range": lambda v: range(v[0], v[1], v[2]),
    # Imported when the first such value comes: that is rare, and most programs are short.
    "decimal": lambda v: __import__("decimal").Decimal(v),
    "fraction": lambda v: __import__("fractions").Fraction(int(v[0], 16), int(v[1], 16)),
    "datetime": lambda v: __import__("datetime").datetime.fromisoformat(v),
    "date": lambda v: __import__("datetime").date.fromisoformat(v),
    "time": lambda v: __import__("datetime").time.fromisoformat(v),
    "timedelta": lambda v: __import__("datetime").timedelta(v[0], v[1], v[2]),
    "ellipsis": lambda v: Ellipsis,
}
_COLLECT: dict[str, Callable[[list[Any]], Any]] = {
    "t": tuple,
    "s": set,
    "f": frozenset,
    "deque": deque,
    "keys": lambda v: dict.fromkeys(v).keys(),
    "values": lambda v: dict(enumerate(v)).values(),
    "items": lambda v: dict(v).items(),
}
_MAP: dict[str, Callable[[list[Any]], Any]] = {
    "d": dict,
    "ordered": OrderedDict,
    "counter": lambda pairs: Counter(dict(pairs)),
}


def decode(message: Any, dereference: Callable[[str, Any], Any]) -> Any:
    """The value behind JSON, of builtin types only; whatever is malformed is a ProtocolError."""
    if message is None or isinstance(message, (bool, int, float, str)):
        return message
    if isinstance(message, list):
        return [decode(item, dereference) for item in message]
    if not isinstance(message, dict) or len(message) != 1:
        raise ProtocolError("a malformed message")
    [(tag, content)] = message.items()
    try:
        if tag in _COLLECT:
            return _COLLECT[tag]([decode(item, dereference) for item in content])
        if tag in _MAP:
            return _MAP[tag]([(decode(k, dereference), decode(v, dereference)) for k, v in content])
        if tag in _MAKE:
            return _MAKE[tag](content)
        return dereference(tag, content)
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError):
        raise ProtocolError("a malformed message") from None
