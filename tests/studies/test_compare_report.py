"""The picture and the page of `ebft compare`, which the code of study reports makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.studies import compare, figures
from tests.studies.made_runs import make_run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of figures that are saved, as they are then."""
    found: list[Any] = []
    saved = figures.saved
    monkeypatch.setattr(figures, "saved", lambda figure, *kinds: (found.append(figure.axes), saved(figure, *kinds))[1])
    return found


def panels(drawn: list[Any]) -> dict[str, Any]:
    every = {panel.get_title(): panel for panel in drawn[0]}
    return {title: panel for title, panel in every.items() if panel.lines and "(training)" not in title}


@pytest.mark.pictures
def test_pictures_and_a_page_that_needs_nothing_else(runs: list[str], tmp_path: Path) -> None:
    output = tmp_path / "compared"
    found = compare.compare(runs, str(output), "flops", ["a <b>", "c"])
    assert (output / "compare.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "compare.html").read_text()
    assert "a &lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count('src="data:image/svg+xml;base64,') == page.count("src=") == 3
    numbers = json.loads((output / "compare.json").read_text())["runs"]["c"]["metrics"]["cfm"]
    point = {"step": 10, "value": 1.25, "standard_error": 0.01, "steps": 10}
    assert numbers[1] == {**point, "tokens": 100, "seconds": 2.0, "FLOPs": 1e9}
    assert len(found.files) == 3
    compare.compare(runs, str(output))  # again, over its own files


@pytest.mark.parametrize(("axis", "x"), [("steps", [0, 10, 20]), ("tokens", [0, 100, 200]), ("seconds", [0, 2, 4])])
def test_the_axis_is_what_is_plotted(axis: str, x: list[float], runs: list[str], tmp_path: Path, drawn: Any) -> None:
    compare.compare(runs, str(tmp_path / "out"), axis)
    lines = panels(drawn)["feature-matching loss"].lines
    assert [list(line.get_xdata()) for line in lines] == [x, x[:2]]
    assert [list(line.get_ydata()) for line in lines] == [[1.3, 1.1, 1.2], [1.3, 1.25]]


@pytest.mark.parametrize(
    ("change", "alike"),
    [({"validation": "other"}, set()), ({"samples": 8}, {"cross-entropy, all tokens", "feature-matching loss"})],
)
def test_only_what_does_not_compare_is_dashed(
    change: dict[str, Any], alike: set[str], tmp_path: Path, drawn: Any
) -> None:
    runs = [make_run(tmp_path / "one", [1.0, 2.0]), make_run(tmp_path / "two", [1.0, 2.0], **change)]
    compare.compare([str(run) for run in runs], str(tmp_path / "out"))
    for title, panel in panels(drawn).items():
        assert [line.get_linestyle() for line in panel.lines] == ["-", "-" if title in alike else "--"]
        words = [text.get_text() for text in panel.get_legend().get_texts()]
        assert words == ["one", "two" if title in alike else "two (does not compare)"]


def test_the_best_model_is_not_a_point_of_the_last_step(tmp_path: Path, drawn: Any) -> None:
    run = make_run(tmp_path / "run", [1.0, 2.0])
    entries = [{"step": 10 * place, "eval_cfm": value} for place, value in enumerate([3.0, 1.0, 2.0])]
    entries.append({"step": 20, "eval_cfm": 1.0, "model_step": 10})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    found = compare.compare([str(run)], str(tmp_path / "out"))
    assert list(panels(drawn)["feature-matching loss"].lines[0].get_ydata()) == [3.0, 1.0, 2.0]
    numbers = [cell for row in found.table for cell in row if cell.endswith(".0000")]
    assert numbers == ["3.0000", "1.0000", "1.0000"]  # before, after and best: of the model that is left
    assert [row[-1] for row in found.table if "3.0000" in row] == ["10, kept"]


def test_what_differs_between_the_settings(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "one", [1.0]), make_run(tmp_path / "two", [1.0], "sft")]
    for run, rate in zip(runs, (1e-3, 1e-4), strict=True):
        settings = {"learning_rate": rate, "gamma": 10 * rate, "alpha": 0.0, "output_dir": str(run), "seed": rate}
        settings |= {"max_steps": 5, "num_train_epochs": 1e3 * rate, "packing": rate == 1e-3}
        (run / "resolved.json").write_text(json.dumps(settings))
        (run / "recipe.yaml").write_text(f"learning_rate: {rate}\ngamma: {10 * rate}\n")
    compare.compare([str(run) for run in runs], str(tmp_path / "out"))
    page = (tmp_path / "out" / "compare.html").read_text()
    table = page[page.index("table-settings") : page.index("</table>", page.index("table-settings"))].replace("\n", "")
    assert "<td>learning_rate</td><td>0.001</td><td>0.0001</td>" in table
    assert "<td>gamma</td><td>0.01</td><td></td>" in table, "SFT has none"
    assert "alpha" not in table
    assert "num_train_epochs" not in table, "steps are given, which decide"
    assert "output_dir" not in table
