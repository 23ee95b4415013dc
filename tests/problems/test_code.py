"""Reading Python answers, and what crosses the border between tests and program."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import DataError
from ebft.problems.answers import fenced_blocks, python_variants
from ebft.problems.code import MBPPProblem, humaneval_problem, load_problems, mbpp_problem, run_tests
from ebft.problems.records import Record
from ebft.sandbox.isolated_tests import Outcome, PythonTests, run_python
from ebft.sandbox.isolation import Limits, Sandbox
from tests.sandbox.sandboxed import ADD, HEAD, needs_sandbox

LONG = Limits(seconds=30.0)
BODY = "    return a + b\n"
FUNCTION = "def add(a, b):\n    return a + b\n"
ANSWERS = {
    "body": BODY,
    "body without its first indentation": "return a + b\n",
    "body of two lines without its first indentation": "total = a + b\n    return total\n",
    "body at the margin": "total = a + b\nreturn total\n",
    "body and more functions": BODY + "\ndef other():\n    return 1\n",
    "body and prose": BODY + "\nThis function adds two numbers.\n",
    "body and a closing fence": BODY + "```\n\nExplanation follows.\n",
    "body and tests": BODY + "\nassert add(1, 1) == 2\n",
    "function": FUNCTION,
    "prompt repeated": HEAD + BODY,
    "fenced function": f"Here you go:\n\n```python\n{FUNCTION}```\nIt adds.",
    "fenced without language": f"```\n{FUNCTION}```",
    "fence not closed": f"Sure!\n```python\n{FUNCTION}",
    "fenced body": f"```python\n{BODY}```",
    "fenced body at the margin": "```python\nreturn a + b\n```",
    "tildes": f"~~~python\n{FUNCTION}~~~",
    "second block has it": f"First install it:\n```bash\npip install nothing\n```\nThen:\n```python\n{FUNCTION}```",
    "usage after it": f"```python\n{FUNCTION}```\nUse it:\n```python\nprint(add(1, 2))\n```",
    "indented fence": "1. Do this:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n",
    "windows lines": "```python\r\n" + FUNCTION.replace("\n", "\r\n") + "```\r\n",
    "prose around": f"The function is\n\n{FUNCTION}\nand that is all.",
    "future import": f"```python\nfrom __future__ import annotations\n{FUNCTION}```",
    "main block": f"```python\n{FUNCTION}\nif __name__ == '__main__':\n    raise SystemExit(input())\n```",
    "lambda": "```python\nadd = lambda a, b: a + b\n```",
    "helper before it": "```python\ndef plus(a, b):\n    return a + b\n\ndef add(a, b):\n    return plus(a, b)\n```",
    "begin and done": f"[BEGIN]\n{FUNCTION}[DONE]",
}


@needs_sandbox
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_read(name: str) -> None:
    outcome = run_tests(ADD, ANSWERS[name], limits=LONG)
    assert outcome.passed, outcome


@needs_sandbox
@pytest.mark.parametrize(
    "answer", ["", "    pass\n", "pass", "I cannot help.", "```python\n```", "def sub(a, b): return a + b"]
)
def test_answers_without_a_solution_fail(answer: str) -> None:
    assert run_tests(ADD, answer, limits=LONG).status == "failed"


def test_the_first_reading_is_prompt_and_completion() -> None:
    assert python_variants(HEAD, BODY, "add")[0] == (HEAD + BODY,)


def test_blocks() -> None:
    assert fenced_blocks("none") == []
    assert fenced_blocks("```a\n1\n```\n2\n```\n3\n```") == ["1", "3"]
    assert fenced_blocks("x `y` ```not a fence``` z") == []
    assert fenced_blocks("code\n```\n") == ["code"]


def check(code: str, tests: str, **more: Any) -> Outcome:
    names = more.pop("names", ("f",))
    return run_python(Sandbox(), PythonTests(((code,),), tests, names=names, **more), LONG)


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
def test_values_cross_the_border_as_they_are() -> None:
    outcome = check("def f(x): return x", ROUND_TRIP)
    assert outcome.passed, outcome


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(x):\n    yield from x", "assert list(f([1, 2])) == [1, 2]"),
        ("def f(x):\n    while True: yield x", "g = f(3)\nassert next(g) == 3 and next(g) == 3"),
        ("def f(x): return map(str, x)", "assert list(f([1])) == ['1']"),
        ("def f(x): return x.keys()", "assert f({1: 2}) == {1} and list(f({3: 4})) == [3]"),
        ("def f(x): x.sort()", "a = [[3, 1], 2]\nf(a[0])\nassert a == [[1, 3], 2]"),
        ("def f(x): x['b'].append(1)", "a = {'b': []}\nb = a['b']\nf(a)\nassert b == [1] and a['b'] is b"),
        ("def f(g, x): return g(x) + 1", "assert f(lambda v: v * 2, 4) == 9"),
        ("def f(g, x): return [g(v) for v in x]", "assert f(len, ['ab']) == [2] and f(str, [1]) == ['1']"),
        ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
        (
            "def f(x): raise ValueError('no')",
            "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'",
        ),
        (
            "class E(Exception): pass\ndef f(x): raise E('own')",
            "try:\n    f(1)\nexcept Exception as e:\n    assert 'own' in str(e)",
        ),
        ("import re\ndef f(x): return re.match('a', x)", "assert f('ab')\nassert not f('b')\nassert f('b') is None"),
        ("import collections\nP = collections.namedtuple('P', 'a b')\ndef f(): return P(1, 2)", "assert f() == (1, 2)"),
        (
            "import numpy\ndef f(): return numpy.float32(0.5), numpy.int64(3), numpy.bool_(True)",
            "assert f() == (0.5, 3, True)",
        ),
        ("def f(a, *, b=1, **c): return (a, b, c)", "assert f(1, b=2, d=3) == (1, 2, {'d': 3})"),
    ],
)
def test_what_tests_do_with_programs(code: str, tests: str) -> None:
    outcome = check(code, tests)
    assert outcome.passed, outcome


@needs_sandbox
def test_a_program_that_ends_does_not_count_as_an_expected_error() -> None:
    tests = "for _ in range(2):\n    try:\n        f(1)\n    except:\n        pass"
    assert check("def f(x): raise ValueError", tests).passed
    assert not check("import os\ndef f(x): os._exit(0)", tests).passed


@needs_sandbox
def test_tests_that_test_nothing_do_not_pass() -> None:
    assert check("def f(x): return 1", "assert True").status == "error"


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


MBPP = {
    "task_id": 7,
    "text": "Write a function to find the depth of a tree.",
    "code": "class Node:\n    def __init__(self, data):\n        self.data = data\n"
    "        self.left = self.right = None\n"
    "def depth(node):\n    return 0 if node is None else 1 + max(depth(node.left), depth(node.right))\n",
    "test_setup_code": "root = Node(1) \r\nroot.left = Node(2) \r\nroot.left.right = Node(3)",
    "test_list": ["assert depth(root) == 3", "assert depth(root.left) == 2", "assert depth(None) == math.floor(0.5)"],
    "challenge_test_list": [],
}


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


def test_mbpp_function_named_like_a_builtin() -> None:
    row = {"task_id": 1, "text": "t", "code": "def sum(a, b):\n    return a", "test_list": ["assert sum(10, 15) == 6"]}
    assert mbpp_problem(Record("own", row)).names == ("sum",)
    assert mbpp_problem(Record("own", {**row, "code": ""})).names == ("sum",)


def test_prompts() -> None:
    assert ADD.prompt("raw") == HEAD
    assert HEAD.strip() in ADD.prompt("instruct")
    mbpp = mbpp_problem(Record("own", MBPP))
    assert isinstance(mbpp, MBPPProblem)
    assert mbpp.prompt("raw") == f'"""\n{MBPP["text"]}\n{MBPP["test_list"][0]}\n"""\n'
    assert all(test in mbpp.prompt("instruct") for test in MBPP["test_list"])


HUMANEVAL = {
    "task_id": "Own/0",
    "prompt": HEAD,
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}


@pytest.mark.parametrize("field", ["task_id", "prompt", "entry_point", "test"])
def test_missing_fields_are_named(field: str, tmp_path: Path) -> None:
    row = {name: value for name, value in HUMANEVAL.items() if name != field}
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps(HUMANEVAL) + "\n\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"line 3 has no field '{field}'"):
        load_problems("humaneval", str(file))


@pytest.mark.parametrize("field", ["task_id", "text", "test_list"])
def test_missing_fields_of_mbpp_are_named(field: str) -> None:
    with pytest.raises(DataError, match=f"has no field '{field}'"):
        mbpp_problem(Record("own", {name: value for name, value in MBPP.items() if name != field}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": "def check(:"}, "'test' is not valid Python"),
        ({"entry_point": "a b"}, "is not a name"),
        ({"prompt": 5}, "'prompt' is a int, not a string"),
    ],
)
def test_fields_that_cannot_be_used(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        humaneval_problem(Record("own", {**HUMANEVAL, **change}))


def test_without_tests_there_is_no_problem() -> None:
    with pytest.raises(DataError, match="test_list is empty"):
        mbpp_problem(Record("own", {**MBPP, "test_list": []}))


def test_files(tmp_path: Path) -> None:
    zipped = tmp_path / "problems.jsonl.gz"
    zipped.write_bytes(gzip.compress((json.dumps(HUMANEVAL) + "\n").encode()))
    assert [problem.task_id for problem in load_problems("humaneval", str(zipped))] == ["Own/0"]
    zipped.write_bytes(zipped.read_bytes()[:-12])
    with pytest.raises(DataError, match="damaged"):
        load_problems("humaneval", str(zipped))
    twice = tmp_path / "twice.jsonl"
    twice.write_text((json.dumps(HUMANEVAL) + "\n") * 2)
    with pytest.raises(DataError, match="line 2: the task 'Own/0' is already in"):
        load_problems("humaneval", str(twice))
