"""Metrics and differences from records of single sequences."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ebft.method.measures import as_logged, differences, estimates


def record(sequence: int, contexts: int, cfm: float | None, **more: Any) -> dict[str, Any]:
    base = {"tokens": 10, "log_probs": -20.0, "answer_tokens": 0, "answer_log_probs": 0.0}
    return {"sequence": sequence, **base, "contexts": contexts, "cfm": cfm, "whitened_proxy": cfm, **more}


def test_metrics_are_over_tokens_and_contexts() -> None:
    found = estimates([record(0, 127, 1.0), record(1, 1, 3.0, tokens=30, log_probs=-30.0)])
    assert found["cfm"].mean == pytest.approx((127 * 1 + 3) / 128)
    assert found["cross_entropy"].mean == pytest.approx(50 / 40)
    assert "answer_cross_entropy" not in found


def test_a_broken_sequence_shows_and_an_empty_one_does_not_count() -> None:
    assert math.isnan(estimates([record(0, 2, None), record(1, 2, 1.0)])["cfm"].mean)
    assert estimates([record(0, 0, None), record(1, 2, 1.0)])["cfm"].mean == 1.0


def test_differences_are_of_the_same_sequences_in_any_order() -> None:
    before = [record(n, n + 1, 10.0 * n) for n in range(4)]
    after = [record(n, n + 1, 10.0 * n - 1, cfm_at_8=1.0, profile_contexts=1) for n in (2, 0, 3, 1)]
    found = differences(after, before)
    assert found["cfm"] == (pytest.approx(-1), pytest.approx(0, abs=1e-12))
    assert found["cross_entropy"] == (0, 0)
    assert "cfm_at_8" not in found  # only one of them has it
    assert differences(after[:3], before) == {}
    assert differences([{**r, "tokens": 9} for r in after], before) == {}
    assert differences([], before) == {}


def test_as_it_is_logged() -> None:
    found = as_logged(differences([record(0, 1, 1.0)], [record(0, 1, 3.0)]))
    assert found["eval_cfm"] == -2
    assert math.isnan(found["eval_cfm_se"])
