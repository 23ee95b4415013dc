from __future__ import annotations

from typing import Any

import pytest

from ebft.tasks.run_task import joined


def part(name: str, value: float, error: float | None) -> dict[str, Any]:
    metrics = {"pass@1": {"value": value, "standard_error": error, "count": 10}}
    return {"name": name, "metrics": metrics, "problems": 10, "notes": [f"a note on {name}"]}


def test_languages_are_averaged_and_kept() -> None:
    skipped = {"name": "go", "metrics": {}, "problems": 10, "notes": ["go is skipped"], "skipped": "no compiler"}
    found = joined([part("cpp", 0.5, 0.3), skipped, part("js", 0.7, 0.4)])
    mean = found["metrics"]["pass@1"]
    assert (mean["value"], mean["standard_error"], mean["count"]) == (pytest.approx(0.6), pytest.approx(0.25), 20)
    assert found["metrics"]["js pass@1"]["value"] == 0.7
    assert found["problems"] == 20, "a skipped language has no answers"
    assert [p["name"] for p in found["parts"]] == ["cpp", "js", "go"]
    assert len(found["notes"]) == 3


def test_an_unknown_error_leaves_the_mean_without_one() -> None:
    assert joined([part("cpp", 0.5, None), part("js", 0.7, 0.4)])["metrics"]["pass@1"]["standard_error"] is None
