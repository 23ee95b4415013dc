"""Curves and the HTML page of `ebft compare`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ebft.studies import compare, compare_page
from ebft.studies.run_reader import read_run


def test_pictures_and_a_page_that_needs_nothing_else(runs: list[str], tmp_path: Path) -> None:
    output = tmp_path / "compared"
    found = compare.compare(runs, str(output), "flops", ["a <b>", "c"])
    assert (output / "compare.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "compare.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert re.findall(r'id="x-(\w+)"( checked)?', page) == [
        ("steps", ""),
        ("tokens", ""),
        ("seconds", ""),
        ("flops", " checked"),
    ]
    assert "a &lt;b&gt;" in page
    assert "<b>" not in page
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert "<script" not in page
    numbers = json.loads((output / "compare.json").read_text())["runs"]["c"]["metrics"]["cfm"]
    assert numbers[1] == {
        "step": 10,
        "value": 1.25,
        "standard_error": 0.01,
        "steps": 10,
        "tokens": 100,
        "seconds": 2.0,
        "FLOPs": 1e9,
    }
    assert len(found.files) == 3
    compare.compare(runs, str(output))  # again, over its own files


def test_the_axis_is_what_is_plotted(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.axes

    seen: list[list[float]] = []
    plot = matplotlib.axes.Axes.plot

    def spy(self: Any, x: Any, y: Any, **kwargs: Any) -> Any:
        seen.append(list(x))
        return plot(self, x, y, **kwargs)

    monkeypatch.setattr(matplotlib.axes.Axes, "plot", spy)
    found = [read_run(Path(run)) for run in runs]
    for axis, expected in (("steps", [0, 10, 20]), ("tokens", [0, 100, 200]), ("seconds", [0.0, 2.0, 4.0])):
        seen.clear()
        compare_page.draw(found, ["cfm"], axis)
        assert seen == [expected, expected[:2]]
