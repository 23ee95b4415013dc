"""`ebft compare`: on runs written by hand, so that every number is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.studies import figures, report
from ebft.studies.evidence import read_runs
from ebft.studies.report import Report
from tests.imports import imports_torch
from tests.studies.made_study import make_run, write_jsonl


def compared(tmp_path: Path, *runs: object, **options: Any) -> Report:
    return report.compare(list(map(str, runs)), str(tmp_path / "out"), **options)


def rows(found: Report, name: str) -> list[list[str]]:
    return next((table.texts.values.tolist() for table in found.tables if table.name == name), [])


def test_the_tables(runs: list[str], tmp_path: Path) -> None:
    three = make_run(tmp_path / "three", [1.3, 1.1], "rlvr")
    found = compared(tmp_path, *runs, three)
    measured = rows(found, "validation")
    one, two, _ = (row for row in measured if row[2] == "feature-matching loss")
    assert one == ["one", "ebft", one[2], "1.3000 ± 0.0100", "1.1000 ± 0.0100", "10", "1.2000 ± 0.0100", "20"]
    assert two == ["two", "sft", two[2], "1.3000 ± 0.0100", "1.2500 ± 0.0100", "10", "1.2500 ± 0.0100", "10"]
    proxy = next(row for row in measured if row[2].startswith("whitened proxy"))
    assert proxy[4] == "-1.1000"  # the largest
    # RLVR's own, and not EBFT's on validation.
    rewards = [row for row in measured if "reward" in row[2]]
    assert rewards == [["three", "rlvr", "training reward", "0.2500", "0.2500", "0", "0.2500", "10"]]
    one, two, _ = rows(found, "costs")
    assert one == ["one", "ebft", "finished", "20", "200", "4", "2e+09", ""]
    assert two[:4] == ["two", "sft", "not finished", "10"]
    # A run without validation has costs; equal names become paths.
    bare = make_run(tmp_path / "more" / "one", [])
    assert [row[0] for row in rows(compared(tmp_path, *runs, bare), "costs")] == [*runs, str(bare)]


def test_the_error_is_that_of_the_differences(tmp_path: Path) -> None:
    """Sequences differ by 1 from each other, and the runs by about 0.1 on each: values have errors of 0.58."""
    one, two = make_run(tmp_path / "one", [1.3, 1.2]), make_run(tmp_path / "two", [1.3, 1.1], "sft")
    found = compared(tmp_path, one, two)
    half = 4.3027 * 0.01 / 3**0.5  # by Student's t with two degrees of freedom
    (row,) = (row for row in rows(found, "differences") if row[0] == "feature-matching loss")
    assert row[1:4] == ["two", "one", f"-0.1 [{-0.1 - half:.4g},\N{NO-BREAK SPACE}{-0.1 + half:.4g}]"]
    numbers = json.loads((tmp_path / "out" / "compare.json").read_text())["differences"]
    (moved,) = (one for one in numbers if one["metric"] == row[0])
    assert [moved[name] for name in ("difference of", "from")] == ["two", "one"]
    ends = [moved[f"difference [95 %]{end}"] for end in (": low", "", ": high")]
    assert ends == pytest.approx([-0.1 - half, -0.1, -0.1 + half], rel=1e-4)


@pytest.mark.parametrize(
    ("change", "left", "words"),
    [
        ({"validation": "cc"}, 0, "validated differently (validation cc and bb)"),
        ({"horizon": 5}, 1, "(horizon 5 and None)"),  # cross-entropy
        ({"samples": 8}, 2, "(samples 8 and 4)"),  # and the feature-matching loss
        ({"network": "moving average"}, 1, "(moving averages)"),
    ],
)
def test_only_what_was_measured_alike_is_paired(tmp_path: Path, change: dict[str, Any], left: int, words: str) -> None:
    both = change if change.get("network") == "moving average" else {}  # each run's own
    runs = [make_run(tmp_path / "one", [1.0], **both), make_run(tmp_path / "two", [1.0], **change)]
    found = compared(tmp_path, *runs)
    assert words in found.notes[0]
    paired = ["CE, all tokens", "feature-matching loss"][:left]
    assert [row[0] for row in rows(found, "differences")] == paired
    file = runs[1] / "validation-after.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    assert rows(compared(tmp_path, *runs), "differences") == [], "other sequences are not paired"


def test_bad_input_is_one_line(capsys: Any, runs: list[str], tmp_path: Path) -> None:
    (thesis := tmp_path / "thesis").mkdir()
    (thesis / "thesis.tex").write_text("precious")
    without = make_run(tmp_path / "without", [])
    write_jsonl(without / "metrics.jsonl", [{"step": 0, "eval_cfm": 1.0}])
    cut = make_run(tmp_path / "cut", [1.0], validation_sequences=4)
    out = ["--output", str(tmp_path / "out")]
    for words, *arguments in (
        ("is no output folder of a run", str(tmp_path / "nothing"), *out),
        ("validation-after.jsonl holds 3 of 4 sequences", *runs, str(cut), *out),
        ("given 1 times for 2 runs", *runs, "--name", "a", *out),
        ("is not empty and holds no compare.json", *runs, "--output", str(thesis)),
        ("not logged validation metrics over tokens yet", str(without), "--x", "tokens", *out),
    ):
        assert cli.main(["compare", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert [p.name for p in thesis.iterdir()] == ["thesis.tex"]
    assert not (tmp_path / "out").exists()


@pytest.mark.pictures
def test_a_picture_and_a_page(runs: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compare", *runs, "--x", "flops", "--name", "a <b>", "--name", "c"]) == 0
    printed = capsys.readouterr().out
    assert "1.1000 ± 0.0100" in printed
    assert "compare/compare.html" in printed
    assert {file.name for file in Path("compare").iterdir()} == {"compare.png", "compare.html", "compare.json"}
    assert Path("compare/compare.png").read_bytes().startswith(b"\x89PNG")
    page = Path("compare/compare.html").read_text()
    assert "a &lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count('src="data:image/svg+xml;base64,') == page.count("src=") == 1
    numbers = json.loads(Path("compare/compare.json").read_text())["runs"]["c"]["metrics"]["cfm"]
    point = {"step": 10, "value": 1.25, "standard_error": 0.01, "steps": 10}
    assert numbers[1] == {**point, "tokens": 100, "seconds": 2.0, "FLOPs": 1e9}


def test_comparing_is_quick(runs: list[str], tmp_path: Path) -> None:
    assert not imports_torch("compare", *runs, "--output", str(tmp_path / "out"))


def test_what_is_drawn(runs: list[str], tmp_path: Path) -> None:
    def panels(*runs: object, axis: str = "steps") -> dict[str, Any]:
        figure = figures.training_figure(read_runs(tmp_path, [*map(str, runs)], ()), axis)
        return {panel.get_title(): panel.lines for panel in figure.axes if panel.lines} if figure else {}

    for axis, x in {"steps": [0, 10, 20], "tokens": [0, 100, 200]}.items():
        lines = panels(*runs, axis=axis)["feature-matching loss"]
        assert [list(line.get_xdata()) for line in lines] == [x, x[:2]]
        assert [list(line.get_ydata()) for line in lines] == [[1.3, 1.1, 1.2], [1.3, 1.25]]
    # Only what does not compare is dashed.
    both = make_run(tmp_path / "a", [1.0, 2.0]), make_run(tmp_path / "b", [1.0, 2.0], samples=8)
    for title, lines in panels(*both).items():
        assert [line.get_linestyle() for line in lines] == ["-", "--" if title.startswith("whitened") else "-"]
    # The best model is not a point of the last step.
    entries = [{"step": 10 * place, "eval_cfm": value} for place, value in enumerate([3.0, 1.0, 2.0])]
    write_jsonl(both[0] / "metrics.jsonl", [*entries, {"step": 20, "eval_cfm": 1.0, "model_step": 10}])
    assert list(panels(both[0])["feature-matching loss"][0].get_ydata()) == [3.0, 1.0, 2.0]
    (row,) = rows(compared(tmp_path, both[0]), "validation")
    assert row[3:8] == ["3.0000", "1.0000", "10", "1.0000", "10"]  # the last: of the model that is left
