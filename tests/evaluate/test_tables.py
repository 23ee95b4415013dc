from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.errors import ConfigError
from ebft.evaluate import tables
from ebft.method.measures import TEMPERATURES, Estimate


@pytest.mark.pictures
def test_curves_are_drawn_with_the_papers_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    drawn: list[Any] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    results = {
        name: {
            "tasks": {
                "calibration": {
                    "metrics": {},
                    "profile": [{"length": g, "value": g * s, "standard_error": 0.1, "count": 2} for g in (1, 8, 128)],
                }
            }
        }
        for name, s in (("base", 1), ("ebft", 2))
    }
    tables.draw(results, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["profile.png"]
    axis = drawn[0].axes[0]
    assert axis.get_xlabel() == "completion length (tokens)"
    assert axis.get_ylabel() == "conditional feature-matching loss"
    assert [list(line.get_ydata()) for line in axis.lines] == [[1, 8, 128], [2, 16, 256]]
    assert list(axis.lines[0].get_xdata()) == [1, 8, 128]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["base", "ebft"]


@pytest.mark.pictures
def test_temperatures_have_rows_and_a_picture(tmp_path: Path) -> None:
    point = {"value": 2.0, "standard_error": 0.1, "count": 3}
    points = [{"temperature": t, "cross_entropy": point, "answer_cross_entropy": None} for t in TEMPERATURES]
    results = {"base": {"tasks": {"calibration": {"metrics": {}, "temperatures": points}}}, "code": {"tasks": {}}}
    differences = {"code": {("calibration", "cross_entropy_temperature_0.6"): Estimate(-0.5, 0.25)}}
    rows = tables.table(results, differences, temperatures=True)
    assert rows[0] == ("task", "metric", "base", "code", "code - base")
    name = "cross-entropy, all tokens at temperature 0.6"
    assert rows[2] == ("calibration", name, "2.0000 ± 0.1000 (n=3)", "", "-0.5000 ± 0.2500")
    assert len(rows) == 1 + len(TEMPERATURES), "no answer tokens, no rows"
    assert len(tables.table(results, differences)) == 1
    tables.draw(results, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["temperatures.png"]


def test_labels_tell_models_apart() -> None:
    assert tables.labels(["runs/a/final", "runs/b/final", "final"]) == ["a", "b", "final"]
    assert tables.labels(["one/a/final", "two/a"]) == ["one/a", "two/a"]
    assert tables.labels(["runs/a/final", "runs/a"]) == ["runs/a/final (1)", "runs/a (2)"]
    assert tables.labels(["x/y", "org/z"]) == ["y", "z"]
    assert tables.labels(["m", "m"]) == ["m (1)", "m (2)"]


def calibrated(**settings: Any) -> dict[str, Any]:
    features = {"weights": "w", "taps": settings.pop("taps", [1]), "model": "m"}
    settings = {"horizon": 8, "stride": 8, "feature_model": "any", **settings}
    return {"tasks": {"calibration": {"features": features, "settings": settings}}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"horizon": 4, "stride": 4}, r"\(horizon: 8 and 4, stride: 8 and 4\)"),
        ({"taps": [2]}, r"calibrated differently \(taps: \[1\] and \[2\]\)"),
        ({"profile_lengths": [1, 2]}, r"profile_lengths: None and \[1, 2\]"),
    ],
)
def test_other_measurements_are_not_compared(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        tables.check_same_space({"a": calibrated(), "b": calibrated(**settings)})


def test_losses_at_more_temperatures_change_nothing_else() -> None:
    tables.check_same_space({"a": calibrated(), "b": calibrated(also_at_temperatures=[1.0], feature_model="x")})
