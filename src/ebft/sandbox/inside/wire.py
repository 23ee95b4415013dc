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
from types import SimpleNamespace

TYPE_CHECKING = False  # see driver.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Side = TypeVar("Side", bound="Channel")

LONGEST = 32 * 2**20
PLAIN = 2**53


class ProtocolError(Exception):
    """The other side did not keep to the protocol, or is gone."""


def no_json(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not plain data")


try:
    # Not through `json`, which imports `re` and `enum` and takes as long as all the rest of a short test.
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _constants = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__
    _hooks = {"object_hook": None, "object_pairs_hook": None, "parse_float": float, "parse_int": int}
    _told: Any = SimpleNamespace(strict=True, parse_constant=_constants, **_hooks)
    _scan: Any = make_scanner(_told)  # what a `json.JSONDecoder` would say
    _chunks: Any = make_encoder({}, no_json, encode_basestring_ascii, None, ":", ",", False, False, True)
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


class Channel:
    """One side. What does not travel by content has a tag and a number, which each side gives and reads in its way."""

    reference: Callable[[Any], list[Any]]
    dereference: Callable[[str, Any, Any], Any]

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

    def receive(self) -> dict[str, Any]:
        length = int.from_bytes(self._exactly(4), "big")
        try:
            message = from_json(self._exactly(length)) if length <= LONGEST else None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ProtocolError("a malformed message")
        return message

    def _exactly(self, count: int) -> bytes:
        data = self.reader.read(count)
        if len(data) < count:
            raise ProtocolError("the program has ended")
        return data

    def encode(self, value: Any) -> Any:
        """JSON for a value. Content is read with the methods of the builtin types, never with those of a subclass."""
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
            return [self.encode(item) for item in list.__iter__(value)]
        for tag, (base, items_of, _) in KINDS.items():
            if issubclass(kind, base):
                return {tag: [self.encode(item) for item in items_of(value)]}
        tag = f"{kind.__module__}.{kind.__qualname__}"
        if tag in LIBRARY and getattr(value, "tzinfo", None) is None:
            return {tag: [self.encode(item) for item in LIBRARY[tag](value)]}
        if kind.__module__ == "numpy" and hasattr(kind, "item") and getattr(value, "shape", None) == ():
            item = value.item()  # numpy's scalars are not builtin numbers; arrays do not travel
            if type(item) in (bool, int, float, complex, str):
                return self.encode(item)
        tag, number = self.reference(value)
        return {tag: number}

    def decode(self, message: Any, made: Any = None) -> Any:
        """The value behind JSON, of builtin types only; whatever is malformed is a ProtocolError."""
        if message is None or isinstance(message, (bool, int, float, str)):
            return message
        if isinstance(message, list):
            return [self.decode(item, made) for item in message]
        if not isinstance(message, dict) or len(message) != 1:
            raise ProtocolError("a malformed message")
        [(tag, content)] = message.items()
        try:
            if tag not in KINDS and tag not in LIBRARY and tag != "i":
                return self.dereference(tag, content, made)
            items = [self.decode(item, made) for item in content]
            if tag in KINDS:
                return KINDS[tag][2](items)
            if tag == "i":
                return int("".join(items), 16)
            module, _, name = tag.partition(".")
            return getattr(__import__(module), name)(*items)
        except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError):
            raise ProtocolError("a malformed message") from None


def begin(side: type[Side]) -> tuple[Any, Side]:
    """What our own process has to say, on standard input, which is /dev/null from then on, and the pipes to the other
    side."""
    channel = side(int(sys.argv[1]), int(sys.argv[2]))
    with os.fdopen(0, "rb") as job_file:
        job = from_json(job_file.read())
    os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free, which is 0
    return job, channel
