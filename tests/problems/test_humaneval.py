from __future__ import annotations

from typing import Any

import pytest

from ebft.errors import DataError
from ebft.problems.problem import Record, run_tests
from ebft.problems.python_problems import humaneval_problem
from ebft.sandbox.bubblewrap import Limits
from tests.problems.rows import HUMANEVAL
from tests.sandbox.sandboxed import ADD, HEAD, needs_sandbox

LONG = Limits(seconds=30.0)


@needs_sandbox
def test_helpers_of_the_prompt_are_the_problems_own() -> None:
    head = "def half(x):\n    return x / 2\n\n\ndef double(x):\n    '''Undo half.'''\n"
    tests = "def check(candidate):\n    for n in range(5):\n        assert half(candidate(n)) == n\n"
    row = {"task_id": "Own/1", "prompt": head, "entry_point": "double", "test": tests}
    problem = humaneval_problem(Record("own", row))
    assert run_tests(problem, "    return 2 * x\n", limits=LONG).passed
    cheat = "    return 7\n\ndef half(x):\n    import itertools\n    return next(half.n)\nhalf.n = iter(range(99))\n"
    assert run_tests(problem, cheat, limits=LONG).status == "failed"
    # An answer of the function only has the prompt's helpers, too.
    uses = "```python\ndef double(x):\n    return x + 2 * half(x)\n```"
    assert run_tests(problem, uses, limits=LONG).passed


def test_prompts() -> None:
    assert ADD.prompt("raw") == HEAD
    assert ADD.prompt("chat").endswith(f"in a markdown code block:\n```\n{HEAD.strip()}\n```\n")
    assert ADD.answer_start.endswith(":\n```python\n")
    assert "\n```" in ADD.stop_strings("chat")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": "def check(:"}, "'test' is not valid Python"),
        ({"test": "x = " + "-" * 100_000 + "1"}, r"'test' is not valid Python .nested too deeply"),
        ({"entry_point": "a b"}, "is not a name"),
        ({"prompt": 5}, "'prompt' is a number, not a string"),
    ],
)
def test_fields_that_cannot_be_used(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        humaneval_problem(Record("own", {**HUMANEVAL, **change}))


def test_a_prompt_that_no_parser_can_read_is_a_prompt() -> None:
    assert humaneval_problem(Record("own", {**HUMANEVAL, "prompt": "-" * 100_000 + "1"})).classes == ()
