"""`ebft compare`: on runs written by hand, so that every number in the table is known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.errors import ConfigError
from ebft.studies import compare

RULER = {"context_length": 48, "network": "aa", "validation": "bb", "samples": 4, "whitening": "reference"}


def make_run(
    folder: Path, values: list[float], method: str = "ebft", finished: bool = True, spent: bool = True, **ruler: Any
) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for place, value in enumerate(values):
        entry: dict[str, Any] = {"step": 10 * place, "eval_cfm": value, "eval_cfm_se": 0.01}
        entry |= {"eval_cross_entropy": value + 1, "eval_cross_entropy_se": 0.02, "eval_whitened_proxy": -value}
        if spent:
            entry |= {"spent/seconds": 2.0 * place, "spent/tokens": 100 * place, "spent/flops": 1e9 * place}
        lines += [json.dumps({"step": 10 * place, "loss": 0.1}), json.dumps(entry)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    results: dict[str, Any] = {"method": method, "ruler": {**RULER, **ruler}}
    if finished:
        results["steps"] = 10 * (len(values) - 1)
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    one = make_run(tmp_path / "one", [1.3, 1.1, 1.2])
    two = make_run(tmp_path / "two", [1.3, 1.25], "sft", finished=False)
    with (two / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "eval_cf')  # the line that a running run is writing
    return [str(one), str(two)]


def test_the_table_has_best_and_last_with_standard_errors(runs: list[str]) -> None:
    found = compare.compare(runs)
    rows = [row for row in found.table if row[2] == "feature-matching loss"]
    assert rows == [
        ("one", "ebft", "feature-matching loss", "1.3000 ± 0.0100", "1.1000 ± 0.0100", "10", "1.2000 ± 0.0100", "20"),
        ("two", "sft", "feature-matching loss", "1.3000 ± 0.0100", "1.2500 ± 0.0100", "10", "1.2500 ± 0.0100", "10"),
    ]
    (proxy, _) = [row for row in found.table if row[2].startswith("whitened proxy")]
    assert proxy[4] == "-1.1000"  # the largest
    (spent_one, spent_two) = found.table[-2:]
    assert spent_one == ("one", "ebft", "finished", "20", "200", "", "4.0", "2e+09")
    assert spent_two[:4] == ("two", "sft", "not finished", "10")
    assert found.notes == []
    assert found.files == []


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
    found = [compare.read_run(Path(run)) for run in runs]
    for axis, expected in (("steps", [0, 10, 20]), ("tokens", [0, 100, 200]), ("seconds", [0.0, 2.0, 4.0])):
        seen.clear()
        compare._picture(found, ["cfm"], axis)
        assert seen == [expected, expected[:2]]


class TestNotes:
    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (
                {"network": "cc"},
                "not measured alike (the frozen feature network); of their numbers compare",
            ),
            ({"horizon": 5}, "(horizon 5 and None); of their numbers compare only the cross-entropies"),
            ({"network": "cc", "validation": "cc"}, "do not compare their numbers"),
            ({"validation": "cc"}, "not measured alike (the validation text)"),
            ({"context_length": 64}, "not measured alike (context_length 64 and 48)"),
            ({"samples": 8}, "differ in samples 8 and 4; their whitened proxy"),
        ],
    )
    def test_runs_that_were_measured_differently(self, tmp_path: Path, change: dict[str, Any], what: str) -> None:
        runs = [make_run(tmp_path / "one", [1.0]), make_run(tmp_path / "two", [1.0], **change)]
        (note,) = compare.compare([str(run) for run in runs]).notes
        assert what in note

    def test_runs_from_before(self, tmp_path: Path) -> None:
        one, two = make_run(tmp_path / "one", [1.0]), make_run(tmp_path / "two", [1.0], spent=False)
        (two / "results.json").unlink()
        found = compare.compare([str(one), str(two)])
        assert found.notes == ["two does not say how it was measured; its numbers may not compare"]
        with pytest.raises(ConfigError, match="made before ebft logged it"):
            compare.compare([str(two)], str(tmp_path / "out"), "flops")


def test_a_run_without_validation_stands_in_the_second_table(runs: list[str], tmp_path: Path) -> None:
    found = compare.compare([*runs, str(make_run(tmp_path / "bare", []))])
    assert found.notes == ["bare has no validation metrics, so it stands only in the second table"]
    assert [row[0] for row in found.table].count("bare") == 1


def test_equal_names_become_paths(tmp_path: Path) -> None:
    runs = [str(make_run(tmp_path / part / "run", [1.0])) for part in ("a", "b")]
    assert [row[0] for row in compare.compare(runs).table[1:3]] == runs


class TestBadInput:
    @pytest.fixture
    def refused(self, capsys: pytest.CaptureFixture[str]) -> Any:
        def run(*arguments: object) -> str:
            try:
                code = cli.main(["compare", *map(str, arguments)])
            except SystemExit as error:  # argparse's own complaints
                code = int(error.code or 0)
            printed = capsys.readouterr()
            assert code == 2
            (line,) = printed.err.splitlines()
            assert printed.out == ""
            return line

        return run

    def test_one_line(self, refused: Any, runs: list[str], tmp_path: Path) -> None:
        assert "no such run" in refused(tmp_path / "nothing")
        assert "holds no metrics.jsonl" in refused(tmp_path)
        assert "--x epochs is not one of" in refused(*runs, "--x", "epochs")
        assert "given 1 times for 2 runs" in refused(*runs, "--name", "a")
        assert "a run is given twice" in refused(runs[0], runs[0])
        assert "is the folder of a run" in refused(*runs, "--output", runs[0])
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "thesis.tex").write_text("precious")
        assert "is not empty and holds no comparison" in refused(*runs, "--output", tmp_path / "thesis")
        assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]
        (tmp_path / "file").write_text("precious")
        assert "is a file" in refused(*runs, "--output", tmp_path / "file")
        empty = make_run(tmp_path / "empty", [])
        assert "no validation metrics in these runs yet" in refused(empty)
        (Path(runs[0]) / "results.json").write_text("{")
        assert "not valid JSON" in refused(*runs)

    def test_pictures_go_into_a_folder_of_the_working_directory(
        self, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs = [str(Path(run).resolve()) for run in runs]
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        assert cli.main(["compare", *runs]) == 0
        assert {file.name for file in Path("compare").iterdir()} == {"compare.png", "compare.html", "compare.json"}

    def test_through_the_command(self, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["compare", *runs, "--output", str(tmp_path / "out"), "--x", "tokens"]) == 0
        printed = capsys.readouterr().out
        assert "1.1000 ± 0.0100" in printed
        assert str(tmp_path / "out" / "compare.html") in printed
