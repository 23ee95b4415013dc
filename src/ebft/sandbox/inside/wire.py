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
from operator import attrgetter

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
        self.reader, self.writer = os.fdopen(read, "rb"), os.fdopen(write, "wb")

    def send(self, message: Any) -> None:
        body = to_json(message)
        if len(body) > LONGEST:
            raise ProtocolError("a value is too large to send")
        try:
            self.writer.write(len(body).to_bytes(4, "big") + body)
            self.writer.flush()
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
        data = self.reader.read(count)
        if len(data) < count:
            raise ProtocolError("the program has ended")
        return data


def begin() -> tuple[Any, Channel]:
    """What our own process has to say, on standard input, which is /dev/null from then on, and the pipes to the other
    side."""
    channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
    with os.fdopen(0, "rb", closefd=False) as job_file:
        job = from_json(job_file.read())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return job, channel


def _pairs(value: Any) -> Any:
    return map(list, dict.items(value))


# By tag, in the order in which they are tried: a type, what travels of its values, and what makes them again of that.
KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[list[Any]], Any]]] = {
    "t": (tuple, tuple.__iter__, tuple),
    "s": (set, set.__iter__, set),
    "f": (frozenset, frozenset.__iter__, frozenset),
    "deque": (deque, deque.__iter__, deque),
    "counter": (Counter, _pairs, lambda items: Counter(dict(items))),
    "ordered": (OrderedDict, _pairs, OrderedDict),
    "d": (dict, _pairs, dict),
    "keys": (type({}.keys()), iter, lambda items: dict.fromkeys(items).keys()),
    "values": (type({}.values()), iter, lambda items: dict(enumerate(items)).values()),
    "items": (type({}.items()), lambda value: map(list, value), lambda items: dict(items).items()),
    "c": (complex, lambda v: [complex.real.__get__(v), complex.imag.__get__(v)], lambda items: complex(*items)),
    "b": (bytes, lambda value: [memoryview(value).hex()], lambda items: bytes.fromhex(*items)),
    "ba": (bytearray, lambda value: [memoryview(value).hex()], lambda items: bytearray.fromhex(*items)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda items: range(*items)),
    "ellipsis": (type(...), lambda value: [], lambda items: ...),
}
# Of modules that are imported when the first such value comes: before somebody has imported one, it has no values.
LIBRARY: dict[str, Callable[[Any], Any]] = {
    "decimal.Decimal": lambda value: [str(value)],
    "fractions.Fraction": attrgetter("numerator", "denominator"),
    "datetime.datetime": attrgetter("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "datetime.date": attrgetter("year", "month", "day"),
    "datetime.time": attrgetter("hour", "minute", "second", "microsecond"),
    "datetime.timedelta": attrgetter("days", "seconds", "microseconds"),
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
        return number if -PLAIN < number < PLAIN else {"i": [hex(number)]}
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, list):
        return [encode(item, reference) for item in list.__iter__(value)]
    for tag, (base, items_of, _) in KINDS.items():
        if issubclass(kind, base):
            return {tag: [encode(item, reference) for item in items_of(value)]}
    tag = f"{kind.__module__}.{kind.__qualname__}"
    if tag in LIBRARY and getattr(value, "tzinfo", None) is None:
        return {tag: [encode(item, reference) for item in LIBRARY[tag](value)]}
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
        if tag not in KINDS and tag not in LIBRARY and tag != "i":
            return dereference(tag, content)
        items = [decode(item, dereference) for item in content]
        if tag in KINDS:
            return KINDS[tag][2](items)
        if tag == "i":
            return int("".join(items), 16)
        module, _, name = tag.partition(".")
        return getattr(__import__(module), name)(*items)
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError):
        raise ProtocolError("a malformed message") from None
