"""The picture and the page of `ebft compare`, which the code of study reports makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.studies import compare
from ebft.studies.report import pictures
from tests.studies.made_runs import make_run
from tests.studies.pages import data_of, no_outside

pytestmark = pytest.mark.pictures


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures that are saved, before they are."""
    found: list[Any] = []
    both = pictures.both
    monkeypatch.setattr(pictures, "both", lambda figure: (found.append(figure), both(figure))[1])
    return found


def test_pictures_and_a_page_that_needs_nothing_else(runs: list[str], tmp_path: Path) -> None:
    output = tmp_path / "compared"
    found = compare.compare(runs, str(output), "flops", ["a <b>", "c"])
    assert (output / "compare.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "compare.html").read_text()
    assert "a &lt;b&gt;" in page
    assert "<b>" not in page.replace("<b>${", "")
    no_outside(page)
    data = data_of(page)
    assert data["axis"] == "flops"
    assert list(data["colors"]) == ["a <b>", "c"]
    (cfm,) = [chart for chart in data["charts"] if chart["title"] == "feature-matching loss"]
    one, two = cfm["series"]
    assert (one["y"], one["x"]["flops"]) == ([1.3, 1.1, 1.2], [0, 1e9, 2e9])
    assert two["low"] == pytest.approx([1.29, 1.24])  # one standard error below
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


@pytest.mark.parametrize(("axis", "x"), [("steps", [0, 10, 20]), ("tokens", [0, 100, 200]), ("seconds", [0, 2, 4])])
def test_the_axis_is_what_is_plotted(
    axis: str, x: list[float], runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn(monkeypatch)
    compare.compare(runs, str(tmp_path / "out"), axis)
    panel = next(p for p in figures[0].axes if p.get_title() == "feature-matching loss")
    assert [list(line.get_xdata()) for line in panel.lines] == [x, x[:2]]


def test_runs_that_do_not_compare_are_marked_in_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn(monkeypatch)
    runs = [make_run(tmp_path / "one", [1.0, 2.0]), make_run(tmp_path / "two", [1.0, 2.0], validation="other")]
    compare.compare([str(run) for run in runs], str(tmp_path / "out"))
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    assert "dashed: does not compare" in figures[0].axes[0].get_title()
    assert [line.get_linestyle() for line in figures[0].axes[0].lines] == ["-", "--"]
    page = (tmp_path / "out" / "compare.html").read_text()
    assert [series["dashed"] for series in data_of(page)["charts"][0]["series"]] == [False, True]


def test_only_what_does_not_compare_is_dashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn(monkeypatch)
    runs = [
        make_run(tmp_path / name, [1.0, 2.0], whitening=whitening) for name, whitening in (("a", "none"), ("b", "both"))
    ]
    compare.compare([str(run) for run in runs], str(tmp_path / "out"))
    styles = {
        panel.get_title().split("\n")[0]: panel.lines[1].get_linestyle() for panel in figures[0].axes if panel.lines
    }
    proxy = styles.pop("whitened proxy (larger is better)")
    assert (proxy, set(styles.values())) == ("--", {"-"})


def test_the_best_model_is_not_a_point_of_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = drawn(monkeypatch)
    run = make_run(tmp_path / "run", [1.0, 2.0])
    entries = [{"step": 10 * place, "eval_cfm": value} for place, value in enumerate([3.0, 1.0, 2.0])]
    entries.append({"step": 20, "eval_cfm": 1.0, "model_step": 10})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    found = compare.compare([str(run)], str(tmp_path / "out"))
    assert list(figures[0].axes[0].lines[0].get_ydata()) == [3.0, 1.0, 2.0]
    numbers = [cell for row in found.table for cell in row if cell.endswith(".0000")]
    assert numbers == ["3.0000", "1.0000", "1.0000"]  # before, after and best: of the model that is left
    assert [row[-1] for row in found.table if "3.0000" in row] == ["10, kept"]


def test_what_differs_between_the_settings(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "one", [1.0]), make_run(tmp_path / "two", [1.0], "sft")]
    for run, rate in zip(runs, (1e-3, 1e-4), strict=True):
        settings = {"learning_rate": rate, "gamma": 10 * rate, "alpha": 0.0, "output_dir": str(run), "seed": rate}
        settings |= {"max_steps": 5, "num_train_epochs": 1e3 * rate}
        (run / "resolved.json").write_text(json.dumps(settings))
        (run / "recipe.yaml").write_text(f"learning_rate: {rate}\ngamma: {10 * rate}\n")
    compare.compare([str(run) for run in runs], str(tmp_path / "out"))
    page = (tmp_path / "out" / "compare.html").read_text()
    table = page[page.index("id=table-settings") : page.index("</table>", page.index("id=table-settings"))]
    assert "<td>learning_rate</td><td>0.001</td><td>0.0001</td>" in table
    assert "<td>gamma</td><td>0.01</td><td></td>" in table, "SFT has none"
    assert "alpha" not in table
    assert "num_train_epochs" not in table, "steps are given, which decide"
    assert "output_dir" not in table
