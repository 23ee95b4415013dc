"""One-line functions with unit tests, made up by rule: a task that a model of a few million parameters can learn.

    def f(x):
        \"\"\"x plus 3, times 7, minus 2\"\"\"
        return (x + 3) * 7 - 2

Rows have the fields of HumanEval (`task_id`, `prompt`, `entry_point`, `test`) and the body as `completion`, so the same
source serves training, rewards by unit tests, and evaluation. No function is in two of the splits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

SIZES = {"train": 8000, "validation": 300, "test": 200}
_STEPS = {"plus": "+", "minus": "-", "times": "*"}
_INPUTS = (-60, 0, 3, 60)


def toy_functions(split: str = "train") -> Iterator[dict[str, Any]]:
    """The rows of a split; of any other name, those for training."""
    split = split if split in SIZES else "train"
    chance = random.Random(0)
    bodies: dict[str, str] = {}  # expression by words: all splits are drawn together, so that none share one
    while len(bodies) < sum(SIZES.values()):
        words, expression = _function(chance)
        bodies[words] = expression
    names = list(SIZES)
    first = sum(SIZES[name] for name in names[: names.index(split)])
    for number, (words, expression) in enumerate(list(bodies.items())[first : first + SIZES[split]]):
        name = "fghpqr"[number % 6]
        checks = "".join(f"    assert candidate({x}) == {eval(expression, {'x': x})}\n" for x in _INPUTS)
        yield {
            "task_id": f"{split}/{number}",
            "prompt": f'def {name}(x):\n    """{words}"""\n',
            "completion": f"    return {expression}\n",
            "entry_point": name,
            "test": f"def check(candidate):\n{checks}",
        }


def _function(chance: random.Random) -> tuple[str, str]:
    """x and two or three steps from it, in words and as an expression."""
    words, expression, is_sum = "x", "x", False
    for place in range(chance.choice((2, 3))):
        step, number = chance.choice(list(_STEPS)), chance.randrange(2, 10)
        words += f"{',' if place else ''} {step} {number}"
        if step == "times" and is_sum:
            expression = f"({expression})"
        expression += f" {_STEPS[step]} {number}"
        is_sum = step != "times"
    return words, expression
