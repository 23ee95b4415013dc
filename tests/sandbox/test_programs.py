"""What crosses the process boundary between tests and program. Programs in the languages of MultiPL-E: right ones pass,
hostile ones do not."""

import json
import os
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebft.problems.problem import Attempt
from ebft.sandbox.box import Limits, Sandbox
from ebft.sandbox.bubblewrap import INSIDE
from ebft.sandbox.other_languages import LANGUAGES, locate
from ebft.sandbox.python_tests import Outcome, PythonTests, run_python
from tests.hard.honest import attempts
from tests.sandbox.attacks.others import ATTACKS
from tests.sandbox.multipl_e import own_problem
from tests.sandbox.sandboxed import LONG, needs_language, needs_sandbox, not_passed


def check(code: str, tests: str) -> Outcome:
    return run_python(Sandbox(), PythonTests(((code,),), tests, names=("f",)), LONG)


ROUND_TRIP = """
import datetime, decimal, fractions, collections, math
values = [None, True, 0, -1, 2**200, -(2**60), 0.1, -0.0, float('inf'), 1e-320, 'text', '\\ud800', 'é\\n\\x00',
    b'\\x00\\xff', bytearray(b'x'), 1 + 2j, (1,), (), [], [1, [2]], {1: 'a', (2, 3): {4}}, {}, {1, 2}, frozenset({3}),
    range(1, 10, 2),
    decimal.Decimal('1.10'), fractions.Fraction(1, 3), datetime.date(2020, 1, 2), datetime.time(1, 2),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.timedelta(1, 2, 3), collections.Counter('aab'),
    collections.OrderedDict(a=1), collections.deque([1, 2]), ...]
for value in values:
    back = f(value)
    assert back == value and type(back) is type(value), value
assert math.isnan(f(float('nan')))
assert math.copysign(1, f(-0.0)) == -1
"""


@needs_sandbox
def test_values_cross_the_boundary_as_they_are() -> None:
    assert check("def f(x): return x", ROUND_TRIP) == Outcome("passed")


# What tests do with programs: the program, and tests that it passes.
USES = [
    ("def f(x):\n    yield from x", "assert list(f([1, 2])) == [1, 2]"),
    ("def f(x):\n    while True: yield x", "g = f(3)\nassert next(g) == 3 and next(g) == 3"),
    ("def f(x): return x.keys()", "assert f({1: 2}) == {1} and list(f({3: 4})) == [3]"),
    ("def f(x): x.sort()\n", "a = [3, 1]\nf(a)\nassert a == [3, 1]"),  # every call has its own copy
    ("def f(g, x): return g(x) + 1", "assert f(lambda v: v * 2, 4) == 9"),
    ("def f(g, x): return [g(v) for v in x]", "assert f(len, ['ab']) == [2] and f(str, [1]) == ['1']"),
    ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
    ("def f(x): raise ValueError('no')", "try: f(1)\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert 0"),
    ("class E(Exception): pass\ndef f(x): raise E('own')", "try: f(1)\nexcept Exception as e: assert 'own' in str(e)"),
    ("import re\ndef f(x): return re.match('a', x)", "assert f('ab')\nassert not f('b')\nassert f('b') is None"),
    ("from collections import namedtuple\nP = namedtuple('P', 'a b')\ndef f(): return P(1, 2)", "assert f() == (1, 2)"),
    ("import numpy as n\ndef f(): return n.float32(0.5), n.int64(3), n.bool_(True)", "assert f() == (0.5, 3, True)"),
    ("def f(a, *, b=1, **c): return (a, b, c)", "assert f(1, b=2, d=3) == (1, 2, {'d': 3})"),
    ("def f(x): raise ValueError", "for _ in range(2):\n    try: f(1)\n    except: pass"),
]
# What a call does besides returning does not help, and a program that ends is no expected error.
NO_HELP = [
    ("def f(x): raise StopIteration", "assert all(map(f, [1, 2]))"),
    ("def f(x): raise StopIteration", "assert [1 for _ in zip(map(f, [1, 2]))] == []"),
    ("def f(x):\n    x.clear()\n    return 0", "a = [1, 2]\nassert f(a) == sum(a)"),
    ("def f(x):\n    x.clear()\n    return {}", "a = ({1: 2},)\nassert f(*a) == dict(*a)"),
    ("import os\ndef f(x): os._exit(0)", USES[-1][1]),
]


@needs_sandbox
def test_what_tests_do_with_programs() -> None:
    for code, tests in USES:
        assert check(code, tests).passed, (code, tests, check(code, tests))
    for code, tests in NO_HELP:
        assert check(code, tests).status == "failed", (code, tests)
    assert check("def f(x): return 1", "assert True").status == "error", "tests that test nothing do not pass"


# The wire, against Python's own json.
wire: Any = SimpleNamespace(**runpy.run_path(str(INSIDE / "wire.py")))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)


@settings(max_examples=50)
@given(VALUES)
def test_json_is_that_of_the_standard_library(value: Any) -> None:
    assert not hasattr(wire, "json"), "the fast way is taken by this Python"
    written = wire.to_json(value)
    assert written == json.dumps(value, separators=(",", ":")).encode("ascii")
    assert repr(wire.from_json(written)) == repr(json.loads(written))


@given(st.binary() | st.text('[]{}",:0123456789.eE+-\\utrfalsnNIiy ').map(str.encode))
@example(b"")
@example(b"1 2")
@example("é".encode())
@example(b"9" * 5000)
def test_whatever_comes_is_read_alike_or_refused(data: bytes) -> None:
    try:
        found = wire.from_json(data)
    except ValueError:
        return
    assert repr(found) == repr(json.loads(data))


def test_messages_that_are_malformed() -> None:
    channel = object.__new__(wire.Channel)
    channel.dereference = channel.reference = lambda *arguments: wire.from_json(b"")
    for message in ({}, {"t": [], "s": []}, {"s": 5}, {"unknown": 1}, {"i": ["x"]}, {"i": [1]}, {"d": [[1]]}):
        with pytest.raises(wire.ProtocolError):
            channel.decode(message)
    assert channel.encode(2**53) == {"i": [hex(2**53)]}, "long ones are no decimal text, which Python bounds"
    assert channel.encode((1,)) == {"t": [1]}


# ---- other languages -------------------------------------------------------------------------------------------------


EVERY = [pytest.param(language, marks=[needs_sandbox, needs_language(language)]) for language in LANGUAGES]
# A compiler of C++ takes seconds for all that MultiPL-E includes: it gets less here, and of its unusual shapes two.
SHAPES = {"cpp": ("repeated and cut off", "[[nodiscard]]")}
HEADERS = "#include <vector>\n#include <csignal>\n#include <cstdlib>\n#include <cstdio>\n#include <cstring>\n"


def lighter(attempt: Attempt) -> Attempt:
    raw = attempt.problem.raw
    less = raw._replace(prompt=raw.prompt.replace("#include<bits/stdc++.h>", f"{HEADERS}#include <unistd.h>\n"))
    return replace(attempt, problem=replace(attempt.problem, raw=less))


@pytest.mark.parametrize("language", EVERY)
def test_right_answers_pass(language: str) -> None:
    """The first of each kind and unusual shapes; `python -m tests.hard.honest` runs all."""
    answers = attempts(language)
    shapes = [attempt for attempt in answers if "shapes" in attempt.tag[0]]
    chosen = [one for one in shapes if one.tag[1].endswith(SHAPES.get(language, ""))]
    assert not_passed(map(lighter, [*answers[: 1 if language in SHAPES else 2], *chosen])) == {}


@pytest.mark.parametrize("language", EVERY)
def test_hostile_answers_do_not_pass(language: str) -> None:
    attacks = [lighter(Attempt(own_problem(language), code, name)) for name, code in ATTACKS[language].items()]
    found = not_passed(attacks, Limits(seconds=6.0, memory_mib=512, output_kib=64))
    assert found.keys() == ATTACKS[language].keys()
    for name, outcome in found.items():  # for the reason that is meant: it ran, and the tests did not end well
        if name in ("exits", "exits early", "prints"):
            assert "ended before" in outcome.message, (name, outcome)
        elif name not in ("wrong types", "allocates forever"):
            assert outcome.message.startswith(("exit code", "the program ended before")), (name, outcome)


def test_a_missing_toolchain_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for language, package in (("cpp", "g++"), ("go", "golang-go"), ("php", "php-cli"), ("cs", "mono-mcs")):
        assert f"apt install {package}" in str(own_problem(language).unavailable())


def test_a_program_of_a_projects_folder_comes_with_the_packages_beside_it(tmp_path: Path, monkeypatch: Any) -> None:
    packages = tmp_path / "project" / "node_modules"
    program, link = packages / "typescript" / "bin" / "tsc", packages / ".bin" / "tsc"
    for file in (program, link):
        file.parent.mkdir(parents=True)
    program.touch(0o755)
    link.symlink_to("../typescript/bin/tsc")
    monkeypatch.setenv("PATH", f"{link.parent}:{os.defpath}")
    assert locate("tsc") == (str(program), (str(packages),))
