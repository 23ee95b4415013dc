"""One-line functions with unit tests, made up by rule: a task that a model of a few million parameters can learn.

    def f(x):
        \"\"\"x plus 3, times 7\"\"\"
        return (x + 3) * 7

Rows have the fields of HumanEval (`task_id`, `prompt`, `entry_point`, `test`) and the body as `completion`, so the same
source serves training, rewards by unit tests, and evaluation. No function is in two of the splits.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

SIZES = {"test": 100, "validation": 300}  # the rest is for training
_NUMBERS = range(2, 10)
_STEPS = {"plus": "+", "minus": "-", "times": "*"}
_INPUTS = (-60, 0, 3, 60)


def toy_functions(split: str = "train") -> Iterator[dict[str, Any]]:
    every = list(_functions())
    random.Random(0).shuffle(every)
    held_out = SIZES["test"] + SIZES["validation"]
    parts = {"test": every[: SIZES["test"]], "validation": every[SIZES["test"] : held_out], "train": every[held_out:]}
    for number, (name, words, expression) in enumerate(parts.get(split, parts["train"])):
        checks = "".join(f"    assert candidate({x}) == {eval(expression, {'x': x})}\n" for x in _INPUTS)
        yield {
            "task_id": f"{split}/{number}",
            "prompt": f'def {name}(x):\n    """{words}"""\n',
            "completion": f"    return {expression}\n",
            "entry_point": name,
            "test": f"def check(candidate):\n{checks}",
        }


def _functions() -> Iterator[tuple[str, str, str]]:
    """Name, words and expression."""
    for name, (words, expression) in itertools.product("fghpqr", _expressions()):
        yield name, words, expression


def _expressions() -> Iterator[tuple[str, str]]:
    """x, and one or two steps from it."""
    for (first, sign), a in itertools.product(_STEPS.items(), _NUMBERS):
        yield f"x {first} {a}", f"x {sign} {a}"
        for (second, then), b in itertools.product(_STEPS.items(), _NUMBERS):
            inner = f"(x {sign} {a})" if then == "*" and sign != "*" else f"x {sign} {a}"
            yield f"x {first} {a}, {second} {b}", f"{inner} {then} {b}"
