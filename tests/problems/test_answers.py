"""Reading Python answers."""

from __future__ import annotations

import time

import pytest

from ebft.problems.answers import fenced_blocks, has_code, python_variants
from ebft.problems.problem import run_tests
from ebft.sandbox.bubblewrap import Limits
from tests.sandbox.attacks.python import ADD, HEAD
from tests.sandbox.sandboxed import needs_sandbox

LONG = Limits(seconds=30.0)
BODY = "    return a + b\n"
FUNCTION = "def add(a, b):\n    return a + b\n"
ANSWERS = {
    "body": BODY,
    "body without its first indentation": "return a + b\n",
    "body of two lines without its first indentation": "total = a + b\n    return total\n",
    "body and prose": BODY + "\nThis function adds two numbers.\n",
    "body and a closing fence": BODY + "```\n\nExplanation follows.\n",
    "function": FUNCTION,
    "prompt repeated": HEAD + BODY,
    "fenced function": f"Here you go:\n\n```python\n{FUNCTION}```\nIt adds.",
    "fence not closed": f"Sure!\n```python\n{FUNCTION}",
    "fenced body": f"```python\n{BODY}```",
    "fenced body at the margin": "```python\nreturn a + b\n```",
    "second block has it": f"First install it:\n```bash\npip install nothing\n```\nThen:\n```python\n{FUNCTION}```",
    "usage after it": f"```python\n{FUNCTION}```\nUse it:\n```python\nprint(add(1, 2))\n```",
    "indented fence": "1. Do this:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n",
    "windows lines": "```python\r\n" + FUNCTION.replace("\n", "\r\n") + "```\r\n",
    "prose around": f"The function is\n\n{FUNCTION}\nand that is all.",
    "main block": f"```python\n{FUNCTION}\nif __name__ == '__main__':\n    raise SystemExit(input())\n```",
    "lambda": "```python\nadd = lambda a, b: a + b\n```",
    "byte order mark in a fence": f"```python\n\ufeff{FUNCTION}```",
    "quoted after prose": "Here it is:\n\n> " + FUNCTION.replace("\n", "\n> "),
    "quoted fence": "It is this:\n>\n" + f"> ```python\n{FUNCTION}```\n".replace("\n", "\n> "),
    "begin and done": f"[BEGIN]\n{FUNCTION}[DONE]",
    # of a chat
    "cut in an example": f"```python\n{FUNCTION}\n# Example\nprint(add(1,",
    "asks for input": f"```python\n{FUNCTION}\nprint(add(int(input()), 1))\n```",
    "continues and closes it": f"{FUNCTION}```\n",
    "the head again and a helper": f"def plus(a, b):\n    return a + b\n\n\n{HEAD}    return plus(a, b)\n",
    "cut in a second function": f"{FUNCTION}\n\ndef test():\n    x = [1,",
    "a word before the fence": f"Here: ```python\n{FUNCTION}```",
}


# A body and another function, raw and not stopped: the first function counts, as in other harnesses.
WRONG = ["", "pass", "I cannot help.", "```python\n```", "def sub(a, b): return a + b", f"    return 0\n\n{FUNCTION}"]
ANSWERS["begins anew"] = f"{BODY}\ndef add(a, b):\n    return 0\n"


@needs_sandbox
@pytest.mark.parametrize("answer", [*ANSWERS.values(), *WRONG], ids=[*ANSWERS, *WRONG])
def test_answers_are_read(answer: str) -> None:
    outcome = run_tests(ADD, answer, limits=LONG)
    assert outcome.status == ("failed" if answer in WRONG else "passed"), outcome


def test_reading_takes_linear_time() -> None:
    for piece in ("\n", " ", "```\n", "def add(", "\ndef ", "[BEGIN]", "x = ", "> ", "\ufeff", "for ", "a ", "if in "):
        started = time.process_time()
        python_variants(HEAD, piece * (40_000 // len(piece)), "add")
        has_code(piece * (200_000 // len(piece)))
        has_code(piece * (200_000 // len(piece)), "cpp")
        assert time.process_time() - started < 3, piece


def test_blocks_and_the_first_reading_which_is_prompt_and_completion() -> None:
    assert python_variants(HEAD, BODY, "add")[0] == (HEAD + BODY,)
    assert fenced_blocks("```a\n1\n```\n2\n```\n3\n```") == ["1", "3"]
    assert fenced_blocks("x `y` ```not a fence``` z") == []
    assert fenced_blocks("code\n```\n") == ["code"]


def test_programs_are_code_and_prose_is_none() -> None:
    assert all(map(has_code, ANSWERS.values()))
    assert has_code("```cpp\nint add(int a, int b) {\n    return a + b;\n}\n```", "cpp")
    for answer in ("What should it do?\nPlease say more.", "```python\n```", "The sum of a and b:\n\n$a+b$"):
        assert not has_code(answer)
        assert not has_code(answer, "cpp")
