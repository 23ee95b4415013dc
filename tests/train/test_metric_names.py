"""Values with their standard errors, as tables show them."""

from __future__ import annotations

import math

import pytest

from ebft.train.metric_names import with_error


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (1.23456, 0.01, "1.2346 ± 0.0100"),
        (1.0, 0.0, "1.0000 ± 0.0000"),
        (1.0, None, "1.0000"),
        (1.0, math.nan, "1.0000"),
        (0.0, None, "0.0000"),
        (None, None, ""),
        (None, 0.1, ""),
    ],
)
def test_a_value_and_its_error(value: float | None, error: float | None, shown: str) -> None:
    assert with_error(value, error) == shown


def test_a_difference_shows_its_sign() -> None:
    assert with_error(0.5, 0.25, "+") == "+0.5000 ± 0.2500"
    assert with_error(-0.5, None, "+") == "-0.5000"
