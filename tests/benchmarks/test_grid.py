from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import grid


def test_the_grid_resumes_retries_failures_and_survives_a_lost_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "grid.json"
    options = f"--size tiny --device cpu --sequences 1 --repeats 1 --contexts 24 --horizons 4 --at-once 2 --json {file}"

    def measured(samples: int) -> str:
        monkeypatch.setattr(sys, "argv", ["grid.py", *f"{options} --samples {samples}".split()])
        assert grid.main() == 0
        return capsys.readouterr().out

    assert "its process ended with code 2" in measured(2), "step.py wants 3 samples"
    assert [row.get("error") is None for row in json.loads(file.read_text())["rows"]] == [False]
    assert measured(3).count(" packed tokens") == 1
    rows = json.loads(file.read_text())["rows"]
    assert [(row["samples"], row["horizon"]) for row in rows] == [(3, 4)], "what failed is not kept"
    assert measured(3) == ""


def test_the_grid_has_every_setting_once_and_shows_what_is_missing() -> None:
    points = grid.settings_of_grid()
    assert len(points) == 5 * 3 * 4 + 4
    dealt = [point for group in grid.groups_of(points, 7) for point in group]
    assert sorted(dealt, key=str) == sorted(points, key=str)
    assert max(len(group) for group in grid.groups_of(points, 7)) <= 7
    rows = [
        {**point, "seconds": {"iteration": number / 10}, "peak_memory_bytes": 2**30 * number}
        for number, point in enumerate(points)
    ]
    shown = grid.tables({"rows": rows[1:]})
    assert shown.count("not measured") == 1  # the first one
    assert "0.10 s, 1.0 GiB" in shown
    assert "6.30 s, 63.0 GiB" in shown
