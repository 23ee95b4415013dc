"""What crosses the process boundary, against Python's own json."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebft.sandbox.command import INSIDE

_found = importlib.util.spec_from_file_location("wire_of_the_sandbox", INSIDE / "wire.py")
assert _found is not None
assert _found.loader is not None
wire: Any = importlib.util.module_from_spec(_found)
_found.loader.exec_module(wire)

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def test_it_does_without_the_modules_that_are_slow_to_import() -> None:
    assert not hasattr(wire, "json"), "the fast way is taken by this Python"


@given(VALUES)
def test_json_is_that_of_the_standard_library(value: Any) -> None:
    written = wire.to_json(value)
    assert written == json.dumps(value, separators=(",", ":")).encode("ascii")
    assert repr(wire.from_json(written)) == repr(json.loads(written))


@given(st.binary() | st.text('[]{}",:0123456789.eE+-\\utrfalsnNIiy ').map(str.encode))
def test_whatever_comes_is_read_alike_or_refused(data: bytes) -> None:
    try:
        found = wire.from_json(data)
    except ValueError:
        return
    assert repr(found) == repr(json.loads(data))


def test_what_is_no_json_is_refused() -> None:
    deep = b"[" * 100_000
    for data in (b"", b" ", b"1 2", b"[1,", b"nul", b"\xff", "é".encode(), b'"\n"', b"{1:2}", b"9" * 5000):
        with pytest.raises(ValueError, match=r"."):
            wire.from_json(data)
    with pytest.raises(RecursionError):
        wire.from_json(deep)
    with pytest.raises(TypeError):
        wire.to_json({"a": object()})
    assert math.isnan(wire.from_json(wire.to_json(math.nan)))
