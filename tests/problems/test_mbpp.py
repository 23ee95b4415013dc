from __future__ import annotations

import pytest

from ebft.errors import DataError
from ebft.problems.problem import Record, run_tests
from ebft.problems.python_problems import mbpp_problem
from ebft.sandbox.bubblewrap import Limits
from tests.problems.rows import MBPP
from tests.sandbox.sandboxed import needs_sandbox

LONG = Limits(seconds=30.0)


@needs_sandbox
def test_mbpp_with_a_class_of_the_program() -> None:
    problem = mbpp_problem(Record("own", MBPP))
    assert (problem.names, problem.classes, problem.modules) == (("depth",), ("Node",), ("math",))
    assert run_tests(problem, MBPP["code"], limits=LONG).passed
    assert run_tests(problem, MBPP["code"].replace("1 +", "2 +"), limits=LONG).status == "failed"
    assert run_tests(problem, "class Node:\n    pass\ndef depth(node):\n    return 3", limits=LONG).status == "failed"


@needs_sandbox
def test_mbpp_with_the_fields_of_the_sanitized_set() -> None:
    row = {
        "task_id": 8,
        "prompt": "Write a function for the area of a circle.",
        "code": "def area(r):\n    return 3.14159265 * r * r",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(area(2), 12.566, rel_tol=0.001)"],
    }
    problem = mbpp_problem(Record("own", row))
    assert run_tests(problem, str(row["code"]), limits=LONG).passed
    forged = "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef area(r):\n    return 0"
    assert run_tests(problem, forged, limits=LONG).status == "failed"


LAST_DIGIT = {
    "task_id": 9,
    "text": "Write a function to find the last digit of a number.",
    "code": "def last(n):\n    return n % 10\n",
    "test_list": ["assert last(123) == 3", "assert last(7) == 7"],
}
RIGHT, WRONG = "def last(n):\n    return n % TEN\nTEN = 10\n", "def last(n):\n    return n\n"


@needs_sandbox
@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        (RIGHT + "\ndef first(n):\n    while n >= 10:\n        n = n //", True),  # cut off
        (RIGHT + '\ndef first(n):\n    """The fir', True),
        (RIGHT + "\ndef first(n", True),
        (RIGHT + "\ndef first(n):", True),
        (RIGHT + "\ndef last(n):\n    return n", True),  # cut off, and by chance it compiles
        (RIGHT + "\nlast(undefined)\nx = last(undefined)\nwhile True: pass", True),
        ("```python\n" + RIGHT + "\ndef first(n):\n    return (n", True),
        ("import math\nsum = 2 +\n" + RIGHT, False),
        (WRONG + "\n" + RIGHT, False),
        (WRONG + "\ndef first(n):\n    return (n", False),
        ("def last(n):\n    return n %", False),
    ],
)
def test_what_follows_the_function_does_not_count(answer: str, passes: bool) -> None:
    outcome = run_tests(mbpp_problem(Record("own", LAST_DIGIT)), answer, limits=LONG)
    assert outcome.passed == passes, outcome


def test_mbpp_function_named_like_a_builtin() -> None:
    row = {"task_id": 1, "text": "t", "code": "def sum(a, b):\n    return a", "test_list": ["assert sum(10, 15) == 6"]}
    assert mbpp_problem(Record("own", row)).names == ("sum",)
    assert mbpp_problem(Record("own", {**row, "code": ""})).names == ("sum",)


def test_prompts() -> None:
    mbpp = mbpp_problem(Record("own", MBPP))
    assert mbpp.prompt("raw") == f'"""\n{MBPP["text"]}\n{MBPP["test_list"][0]}\n"""\n'
    assert f"```\n{mbpp.prompt().strip()}\n```\n" in mbpp.prompt("chat")


@pytest.mark.parametrize("field", ["task_id", "text", "test_list"])
def test_missing_fields_of_mbpp_are_named(field: str) -> None:
    with pytest.raises(DataError, match=f"has no field '{field}'"):
        mbpp_problem(Record("own", {name: value for name, value in MBPP.items() if name != field}))


def test_without_tests_there_is_no_problem() -> None:
    with pytest.raises(DataError, match="test_list is empty"):
        mbpp_problem(Record("own", {**MBPP, "test_list": []}))


@pytest.mark.parametrize("field", ["test_list", "code"])
def test_sources_that_are_nested_too_deeply(field: str) -> None:
    deep = "x = " + "-" * 100_000 + "1"
    with pytest.raises(DataError, match=f"own: the field '{field}' is not valid Python .nested too deeply"):
        mbpp_problem(Record("own", {**MBPP, field: [deep] if field == "test_list" else deep}))
