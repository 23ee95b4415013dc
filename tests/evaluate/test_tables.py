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
    entry = lambda value: {"value": value, "standard_error": 0.1, "count": 2}  # noqa: E731
    results = {
        name: {
            "tasks": {"calibration": {"metrics": {}, "profile": [{"length": g, **entry(g * s)} for g in (1, 8, 128)]}}
        }
        for name, s in (("base", 1), ("ebft", 2))
    }
    tables.draw(results, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["profile.png"]
    axis = drawn[0].axes[0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == (
        "completion length (tokens)",
        "conditional feature-matching loss",
    )
    assert [line.get_label() for line in axis.lines] == ["base", "ebft"]
    assert [list(line.get_ydata()) for line in axis.lines] == [[1, 8, 128], [2, 16, 256]]
    assert list(axis.lines[0].get_xdata()) == [1, 8, 128]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["base", "ebft"]


@pytest.mark.pictures
def test_temperatures_have_a_table_and_a_picture(tmp_path: Path) -> None:
    point = {"value": 2.0, "standard_error": 0.1, "count": 3}
    points = [{"temperature": t, "cross_entropy": point, "answer_cross_entropy": None} for t in TEMPERATURES]
    results = {"base": {"tasks": {"calibration": {"metrics": {}, "temperatures": points}}}, "code": {"tasks": {}}}
    differences = {"code": {("calibration", "cross_entropy_temperature_0.6"): Estimate(-0.5, 0.25)}}
    rows = tables.temperature_table(results, differences)
    assert rows[0] == ("metric", "temperature", "base", "code", "code - base")
    assert rows[2] == ("cross-entropy, all tokens", "0.6", "2.0000 ± 0.1000 (n=3)", "", "-0.5000 ± 0.2500")
    assert len(rows) == 1 + len(TEMPERATURES), "no answer tokens, no rows"
    assert tables.temperature_table({"code": {"tasks": {}}}, {}) == []
    tables.draw(results, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["temperatures.png"]


def test_labels_tell_models_apart() -> None:
    assert tables.labels(["runs/a/final", "runs/b/final", "final"]) == ["a", "b", "final"]
    assert tables.labels(["one/a/final", "two/a"]) == ["one/a", "two/a"]
    assert tables.labels(["runs/a/final", "runs/a"]) == ["runs/a/final (1)", "runs/a (2)"]
    assert tables.labels(["x/y", "org/z"]) == ["y", "z"]
    assert tables.labels(["m", "m"]) == ["m (1)", "m (2)"]


def calibrated(horizon: int = 8, lengths: tuple[int, ...] = (1, 4), taps: tuple[int, ...] = (1,)) -> dict[str, Any]:
    entry = {"value": 1.0, "standard_error": 0.1, "count": 2}
    features = {"weights": "w", "taps": list(taps), "pooling": "last", "normalize": "joint", "model": "m"}
    settings = {"horizon": horizon, "stride": horizon, "profile_lengths": list(lengths), "feature_model": "any"}
    profile = [{"length": length, **entry} for length in lengths]
    found = {"metrics": {"cfm": entry}, "profile": profile, "features": features, "settings": settings}
    return {"tasks": {"calibration": found}}


class TestWhatCompares:
    def test_all_differences_are_named(self) -> None:
        with pytest.raises(ConfigError, match=r"\(horizon: 8 and 4, stride: 8 and 4\)"):
            tables.check_same_space({"a": calibrated(), "b": calibrated(horizon=4)})
        with pytest.raises(ConfigError, match=r"calibrated differently \(taps: \[1\] and \[2\]\)"):
            tables.check_same_space({"a": calibrated(), "b": calibrated(taps=(2,))})
        with pytest.raises(ConfigError, match=r"profile_lengths: \[1, 4\] and \[1, 2, 4\]"):
            tables.check_same_space({"a": calibrated(), "b": calibrated(lengths=(1, 2, 4))})
        tables.check_same_space({"a": calibrated(), "b": calibrated()})

    def test_losses_at_more_temperatures_change_nothing_else(self) -> None:
        more = calibrated()
        more["tasks"]["calibration"]["settings"]["also_at_temperatures"] = [1.0]
        tables.check_same_space({"a": calibrated(), "b": more})
