"""What crosses the process boundary between the tests and the program under test: frames of plain data.

A frame is a length of four bytes and JSON. Values of builtin types and a few of the standard library travel by content
and are rebuilt on the other side as exactly these types, so a class that claims to equal everything arrives as what it
holds, or does not arrive. Anything else stays where it is and travels as a number (`reference`).

Runs inside the sandbox, on both sides, with the standard library only. Nothing here may be imported by our own process.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, OrderedDict, deque

TYPE_CHECKING = False  # see driver.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LONGEST = 32 * 2**20
PLAIN = 2**53


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
    _scan: Any = make_scanner(_for_scanner)
    _chunks: Any = make_encoder({}, no_json, encode_basestring_ascii, None, ":", ",", False, False, True)
    if "".join(_chunks([0.5, {"a": None}], 0)) != '[0.5,{"a":null}]' or _scan('[0.5,{"a":null}]', 0)[1] != 16:
        raise ImportError
except (ImportError, TypeError, AttributeError):  # another Python's insides
    import json

    _scan = vars(json.JSONDecoder())["scan_once"]
    _chunks = json.JSONEncoder(separators=(",", ":")).iterencode


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
                chunk = b""
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


# By tag, in the order in which they are tried: what travels as its items, as its pairs, and types of modules that are
# imported when the first such value comes (before somebody has imported one, it has no values), with what their values
# become and how they are made from that.
SEQUENCES: dict[str, Any] = {"t": tuple, "s": set, "f": frozenset, "deque": deque}
MAPS: dict[str, Any] = {"counter": Counter, "ordered": OrderedDict, "d": dict}
VIEWS: dict[str, tuple[Any, Callable[[list[Any]], Any]]] = {
    "keys": (type({}.keys()), lambda v: dict.fromkeys(v).keys()),
    "values": (type({}.values()), lambda v: dict(enumerate(v)).values()),
    "items": (type({}.items()), lambda v: dict(v).items()),
}
LIBRARY: dict[str, tuple[str, str, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "decimal": ("decimal", "Decimal", str, lambda kind, v: kind(v)),
    "fraction": (
        "fractions",
        "Fraction",
        lambda value: [hex(value.numerator), hex(value.denominator)],
        lambda kind, v: kind(int(v[0], 16), int(v[1], 16)),
    ),
    "datetime": ("datetime", "datetime", lambda value: value.isoformat(), lambda kind, v: kind.fromisoformat(v)),
    "date": ("datetime", "date", lambda value: value.isoformat(), lambda kind, v: kind.fromisoformat(v)),
    "time": ("datetime", "time", lambda value: value.isoformat(), lambda kind, v: kind.fromisoformat(v)),
    "timedelta": ("datetime", "timedelta", lambda d: [d.days, d.seconds, d.microseconds], lambda kind, v: kind(*v)),
}
MAKE: dict[str, Callable[[Any], Any]] = {
    "i": lambda v: int(v, 16),
    "c": lambda v: complex(v[0], v[1]),
    "b": bytes.fromhex,
    "ba": bytearray.fromhex,
    "range": lambda v: range(v[0], v[1], v[2]),
    "ellipsis": lambda v: Ellipsis,
}


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
    if issubclass(kind, list):
        return [encode(item, reference) for item in list.__iter__(value)]
    for tag, base in SEQUENCES.items():
        if issubclass(kind, base):
            return {tag: [encode(item, reference) for item in base.__iter__(value)]}
    for tag, base in MAPS.items():
        if issubclass(kind, base):
            return {tag: [[encode(k, reference), encode(v, reference)] for k, v in dict.items(value)]}
    for tag, (base, _) in VIEWS.items():
        if kind is base:
            return {tag: [encode(item, reference) for item in value]}
    if issubclass(kind, complex):
        # The constructor keeps the type but for subclasses, whose own methods are not asked.
        exact = complex.__add__(value, 0j) if kind is not complex else value
        return {"c": [exact.real, exact.imag]}
    if issubclass(kind, (bytes, bytearray)):
        return {"b" if issubclass(kind, bytes) else "ba": bytes.hex(bytes(memoryview(value)))}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"ellipsis": 0}
    for tag, (module, name, plain, _) in LIBRARY.items():
        if kind is getattr(sys.modules.get(module), name, None) and getattr(value, "tzinfo", None) is None:
            return {tag: plain(value)}
    if kind.__module__ == "numpy" and hasattr(kind, "item") and getattr(value, "shape", None) == ():
        item = value.item()  # numpy's scalars are not builtin numbers; arrays do not travel
        if type(item) in (bool, int, float, complex, str):
            return encode(item, reference)
    tag, number = reference(value)
    return {tag: number}


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
        if tag in SEQUENCES or tag in VIEWS:
            make = SEQUENCES[tag] if tag in SEQUENCES else VIEWS[tag][1]
            return make([decode(item, dereference) for item in content])
        if tag in MAPS:
            return MAPS[tag]({decode(k, dereference): decode(v, dereference) for k, v in content})
        if tag in LIBRARY:
            module, name, _, make = LIBRARY[tag]
            return make(getattr(__import__(module), name), content)
        return MAKE[tag](content) if tag in MAKE else dereference(tag, content)
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError):
        raise ProtocolError("a malformed message") from None
