"""`ebft compare`: on runs written by hand, so that every number is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.errors import ConfigError
from ebft.studies import figures, report
from ebft.studies.report import Report
from tests.imports import imports_torch
from tests.studies.conftest import make_run


def compared(tmp_path: Path, *runs: object, **options: Any) -> Report:
    return report.compare(list(map(str, runs)), str(tmp_path / "out"), **options)


def rows(found: Report, name: str) -> list[list[str]]:
    return next((table.texts.values.tolist() for table in found.tables if table.name == name), [])


def test_the_tables(runs: list[str], tmp_path: Path) -> None:
    with (Path(runs[0]) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "reward": 0.25, "eval_reward": 7.0}\n')
    three = make_run(tmp_path / "three", [1.3, 1.1], "rlvr")
    with (three / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "reward": 0.25, "eval_reward": 7.0}\n{"step": 10, "reward": 0.5}\n')
    found = compared(tmp_path, *runs, three)
    measured = rows(found, "validation")
    one, two, _ = (row for row in measured if row[2] == "feature-matching loss")
    assert one == ["one", "ebft", one[2], "1.3000 ± 0.0100", "1.1000 ± 0.0100", "10", "1.2000 ± 0.0100", "20"]
    assert two == ["two", "sft", two[2], "1.3000 ± 0.0100", "1.2500 ± 0.0100", "10", "1.2500 ± 0.0100", "10"]
    proxy = next(row for row in measured if row[2].startswith("whitened proxy"))
    assert proxy[4] == "-1.1000"  # the largest
    # RLVR's own, and not EBFT's on validation.
    rewards = [row for row in measured if "reward" in row[2]]
    assert rewards == [["three", "rlvr", "training reward", "0.2500", "0.5000", "10", "0.5000", "10"]]
    one, two, _ = rows(found, "costs")
    assert one == ["one", "ebft", "finished", "20", "200", "4", "2,000,000,000", ""]
    assert two[:4] == ["two", "sft", "not finished", "10"]
    # A run without validation has costs; equal names become paths.
    bare = make_run(tmp_path / "more" / "one", [])
    assert [row[0] for row in rows(compared(tmp_path, *runs, bare), "costs")] == [*runs, str(bare)]


def test_the_error_is_that_of_the_differences(tmp_path: Path) -> None:
    """Sequences differ by 1 from each other, and the runs by about 0.1 on each: values have errors of 0.58."""
    one, two = make_run(tmp_path / "one", [1.3, 1.2]), make_run(tmp_path / "two", [1.3, 1.1], "sft", tilt=0.01)
    found = compared(tmp_path, one, two)
    half = 4.3027 * 0.01 / 3**0.5  # by Student's t with two degrees of freedom
    (row,) = (row for row in rows(found, "differences") if row[0] == "feature-matching loss")
    assert row[1:4] == ["two", "one", f"-0.1 [{-0.1 - half:.4g},\N{NO-BREAK SPACE}{-0.1 + half:.4g}]"]
    numbers = json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]
    expected = {"difference": pytest.approx(-0.1), "standard_error": pytest.approx(0.01 / 3**0.5)}
    assert numbers["two"]["against_first"]["cfm"] == expected
    assert numbers["one"]["against_first"] == {}


@pytest.mark.parametrize(
    ("change", "left", "words"),
    [
        ({"validation": "cc"}, set(), "validated differently (validation cc and bb)"),
        ({"horizon": 5}, {"cross_entropy"}, "(horizon 5 and None)"),
        ({"samples": 8}, {"cross_entropy", "cfm"}, "(samples 8 and 4)"),
        ({"network": "moving average"}, {"cross_entropy"}, "(moving averages)"),
    ],
)
def test_only_what_was_measured_alike_is_paired(
    tmp_path: Path, change: dict[str, Any], left: set[str], words: str
) -> None:
    both = change if change.get("network") == "moving average" else {}  # each run's own
    runs = [make_run(tmp_path / "one", [1.0], **both), make_run(tmp_path / "two", [1.0], **change)]
    found = compared(tmp_path, *runs)
    assert words in found.notes[0]
    assert len(rows(found, "differences")) == len(left)

    def against_first() -> set[str]:
        return {*json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]["two"]["against_first"]}

    assert against_first() == left
    file = runs[1] / "validation-after.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    compared(tmp_path, *runs)
    assert against_first() == set(), "other sequences are not paired"


def test_records_that_are_not_there_or_broken_are_told_and_not_used(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", [1.0], validation_sequences=3)
    cut = make_run(tmp_path / "cut", [1.0], validation_sequences=3)
    none, broken = make_run(tmp_path / "none", [1.0], records=False), make_run(tmp_path / "broken", [1.0])
    file = cut / "validation-after.jsonl"
    file.write_text(file.read_text()[:-30])
    (broken / "validation-after.jsonl").write_text('{"sequence": \n')
    for run, words in (cut, "validation-after.jsonl holds 2 of 3 sequences"), (broken, "not valid JSON"):
        with pytest.raises(ConfigError, match=words):
            compared(tmp_path, one, run)
    assert rows(compared(tmp_path, one, none), "differences") == []


def test_bad_input_is_one_line(capsys: Any, runs: list[str], tmp_path: Path) -> None:
    (thesis := tmp_path / "thesis").mkdir()
    (thesis / "thesis.tex").write_text("precious")
    without = make_run(tmp_path / "without", [1.0], spent=False)
    out = ["--output", str(tmp_path / "out")]
    for words, *arguments in (
        ("is no output folder of a run", str(tmp_path / "nothing"), *out),
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
def test_a_picture_and_a_page_in_the_working_directory(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert cli.main(["compare", runs[0]]) == 0, "over its own files"


def test_comparing_is_quick(runs: list[str], tmp_path: Path) -> None:
    assert not imports_torch("compare", *runs, "--output", str(tmp_path / "out"))


def test_what_is_drawn(runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "saved", lambda figure, kind: (drawn.append(figure.axes), b"")[1])

    def panels(*runs: object, axis: str = "steps") -> dict[str, Any]:
        drawn.clear()
        compared(tmp_path, *runs, axis=axis)
        every = {panel.get_title(): panel for panel in drawn[0]}
        return {title: panel for title, panel in every.items() if panel.lines and "(training)" not in title}

    for axis, x in {"steps": [0, 10, 20], "tokens": [0, 100, 200]}.items():
        lines = panels(*runs, axis=axis)["feature-matching loss"].lines
        assert [list(line.get_xdata()) for line in lines] == [x, x[:2]]
        assert [list(line.get_ydata()) for line in lines] == [[1.3, 1.1, 1.2], [1.3, 1.25]]
    # Only what does not compare is dashed.
    both = make_run(tmp_path / "a", [1.0, 2.0]), make_run(tmp_path / "b", [1.0, 2.0], samples=8)
    for title, panel in panels(*both).items():
        alike = title in ("cross-entropy, all tokens", "feature-matching loss")
        assert [line.get_linestyle() for line in panel.lines] == ["-", "-" if alike else "--"]
    # The best model is not a point of the last step.
    run = make_run(tmp_path / "run", [1.0, 2.0])
    entries = [{"step": 10 * place, "eval_cfm": value} for place, value in enumerate([3.0, 1.0, 2.0])]
    entries.append({"step": 20, "eval_cfm": 1.0, "model_step": 10})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert list(panels(run)["feature-matching loss"].lines[0].get_ydata()) == [3.0, 1.0, 2.0]
    (row,) = rows(compared(tmp_path, run), "validation")
    assert row[3:8] == ["3.0000", "1.0000", "10", "1.0000", "10"]  # the last: of the model that is left
