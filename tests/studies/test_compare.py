"""`ebft compare`: on runs written by hand, so that every number in the table is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.errors import ConfigError
from ebft.studies import compare
from ebft.studies.runs import against, read_run
from tests.imports import imports_torch
from tests.studies.made_runs import make_run


def test_the_table_has_best_and_last_with_standard_errors(runs: list[str]) -> None:
    found = compare.compare(runs)
    first_table = found.table[: found.table.index(("",) * 8)]
    rows = [row for row in first_table if row[2] == "feature-matching loss"]
    assert rows == [
        ("one", "ebft", "feature-matching loss", "1.3000 ± 0.0100", "1.1000 ± 0.0100", "10", "1.2000 ± 0.0100", "20"),
        ("two", "sft", "feature-matching loss", "1.3000 ± 0.0100", "1.2500 ± 0.0100", "10", "1.2500 ± 0.0100", "10"),
    ]
    (proxy, _) = [row for row in first_table if row[2].startswith("whitened proxy")]
    assert proxy[4] == "-1.1000"  # the largest
    (spent_one, spent_two) = found.table[-2:]
    assert spent_one == ("one", "ebft", "finished", "20", "200", "", "4.0", "2e+09")
    assert spent_two[:4] == ("two", "sft", "not finished", "10")
    assert found.notes == []
    assert found.files == []


class TestPairedDifferences:
    def test_the_error_is_that_of_the_differences(self, tmp_path: Path) -> None:
        """Sequences differ by 1 from each other, and the runs by about 0.1 on each: values have errors of 0.58."""
        one, two = make_run(tmp_path / "one", [1.3, 1.2]), make_run(tmp_path / "two", [1.3, 1.1], "sft", tilt=0.01)
        found = compare.compare([str(one), str(two)], str(tmp_path / "out"))
        start = [row[2] for row in found.table].index("paired difference")
        assert [row[:5] for row in found.table[start : start + 6]] == [
            ("run", "method", "paired difference", "last - first", "last - last of one"),
            ("two", "sft", "cross-entropy, all tokens", "", "-0.1000 ± 0"),
            ("one", "ebft", "feature-matching loss", "-0.1000 ± 0.0020", ""),
            ("two", "sft", "feature-matching loss", "-0.2000 ± 0.0020", "-0.1000 ± 0.0058"),
            ("two", "sft", "whitened proxy (larger is better)", "", "+0.1000 ± 0"),
            ("", "", "", "", ""),
        ]
        assert found.notes == []
        numbers = json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]
        assert numbers["two"]["change"]["cfm"] == {"difference": pytest.approx(-0.2), "standard_error": 0.002}
        expected = {"difference": pytest.approx(-0.1), "standard_error": pytest.approx(0.01 / 3**0.5)}
        assert numbers["two"]["against_first"]["cfm"] == expected
        assert numbers["one"]["against_first"] == {}
        assert "<td>-0.1000 ± 0.0058</td>" in (tmp_path / "out" / "compare.html").read_text()

    def test_one_run_has_no_column_for_other_runs(self, tmp_path: Path) -> None:
        found = compare.compare([str(make_run(tmp_path / "one", [1.3, 1.2]))])
        start = [row[2] for row in found.table].index("paired difference")
        assert found.table[start][3:5] == ("last - first", "")
        assert found.table[start + 1][:4] == ("one", "ebft", "feature-matching loss", "-0.1000 ± 0.0020")

    def test_runs_from_before_say_that_they_have_none(self, tmp_path: Path) -> None:
        runs = [make_run(tmp_path / "one", [1.0]), make_run(tmp_path / "two", [1.0], records=False)]
        (note,) = compare.compare([str(run) for run in runs]).notes
        assert note.startswith("no paired differences of two: not evaluated after training (in Python: `trainer.eval")

    @pytest.mark.parametrize(
        ("change", "left"),
        [
            ({"validation": "cc"}, set()),
            ({"network": "cc"}, {"cross_entropy"}),
            ({"samples": 8}, {"cross_entropy", "cfm"}),
            ({"network": "moving average"}, {"cross_entropy"}),
        ],
    )
    def test_only_of_what_was_measured_alike(self, tmp_path: Path, change: dict[str, Any], left: set[str]) -> None:
        both = change if change.get("network") == "moving average" else {}  # each run's own
        one = read_run(make_run(tmp_path / "one", [1.0], **both))
        two = read_run(make_run(tmp_path / "two", [1.0], **change))
        assert set(against(one, two)) == left

    def test_other_sequences_are_not_paired(self, tmp_path: Path) -> None:
        one, two = (read_run(make_run(tmp_path / name, [1.0])) for name in ("one", "two"))
        del two.records[0]
        assert against(one, two) == {}


class TestRewards:
    """RLVR's own reward stands in the table; EBFT's reward on validation, which repeats the proxy, does not."""

    def test_rows(self, tmp_path: Path) -> None:
        one, two = make_run(tmp_path / "one", [1.3, 1.1]), make_run(tmp_path / "two", [1.3, 1.2], "rlvr")
        for run in (one, two):
            with (run / "metrics.jsonl").open("a") as file:
                file.write('{"step": 5, "reward": 0.25, "eval_reward": 7.0}\n{"step": 10, "reward": 0.5}\n')
        rows = [row for row in compare.compare([str(one), str(two)]).table if "reward" in row[2]]
        assert rows == [("two", "rlvr", "training reward", "0.2500", "0.5000", "10", "0.5000", "10")]


class TestBrokenRecords:
    def test_records_that_were_cut_off_are_told_and_not_used(self, tmp_path: Path) -> None:
        one = make_run(tmp_path / "one", [1.0], validation_sequences=3)
        two = make_run(tmp_path / "two", [1.0], validation_sequences=3)
        file = two / "validation-after.jsonl"
        file.write_text(file.read_text()[:-30])
        found = compare.compare([str(one), str(two)])
        assert (
            "two: validation-after.jsonl holds 2 of 3 sequences; it was cut off, so it has no paired" in found.notes[0]
        )
        assert len(found.notes) == 1
        assert all(row[0] != "two" or row[4] == "" for row in found.table if row[2] == "paired difference")
        assert against(read_run(one), read_run(two)) == {}

    def test_records_that_are_no_records(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "one", [1.0])
        (run / "validation-after.jsonl").write_text('{"sequence": \n')
        assert "one: validation-after.jsonl is not valid JSON" in compare.compare([str(run)]).notes[0]


class TestNotes:
    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (
                {"network": "cc"},
                "measured differently (the frozen feature network); only their cross-entropies can be compared",
            ),
            ({"horizon": 5}, "(horizon 5 and not set); only their cross-entropies can be compared"),
            ({"network": "cc", "validation": "cc"}, "do not compare their numbers"),
            ({"validation": "cc"}, "measured differently (the validation text)"),
            ({"context_length": 64}, "measured differently (context_length 64 and 48)"),
            ({"short_truths": True}, "measured differently (short_truths True and not set); only their"),
            ({"samples": 8}, "differ in samples 8 and 4; their whitened proxy"),
        ],
    )
    def test_runs_that_were_measured_differently(self, tmp_path: Path, change: dict[str, Any], what: str) -> None:
        runs = [make_run(tmp_path / "one", [1.0]), make_run(tmp_path / "two", [1.0], **change)]
        (note,) = compare.compare([str(run) for run in runs]).notes
        assert what in note


def test_a_run_without_validation_stands_in_the_second_table(runs: list[str], tmp_path: Path) -> None:
    found = compare.compare([*runs, str(make_run(tmp_path / "bare", []))])
    assert found.notes == ["bare has no validation metrics, so it appears only in the second table"]
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
            # A table does not need the folder that it is refused.
            assert bool(printed.out) == ("no files were written: --output" in line)
            return line

        return run

    def test_one_line(self, refused: Any, runs: list[str], tmp_path: Path) -> None:
        assert "is no output folder of a run" in refused(tmp_path / "nothing")
        assert "no metrics.jsonl" in refused(tmp_path)
        assert "--x: invalid choice: 'epochs'" in refused(*runs, "--x", "epochs")
        assert "given 1 times for 2 runs" in refused(*runs, "--name", "a")
        assert "a run is given twice" in refused(runs[0], runs[0])
        assert "is not empty and holds no comparison" in refused(*runs, "--output", runs[0])
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

    def test_comparing_is_quick(self, runs: list[str], tmp_path: Path) -> None:
        assert not imports_torch("compare", *runs, "--output", str(tmp_path / "out"))


class TestAnotherComparisonInTheFolder:
    def test_of_other_runs_is_not_overwritten(self, runs: list[str], tmp_path: Path) -> None:
        output = str(tmp_path / "out")
        compare.compare(runs, output)
        before = (tmp_path / "out" / "compare.json").read_text()
        third = str(make_run(tmp_path / "three", [1.0]))
        with pytest.raises(ConfigError, match=r"holds a comparison with other runs \(two\); choose another"):
            compare.compare([runs[0], third], output)
        assert (tmp_path / "out" / "compare.json").read_text() == before
        compare.compare([runs[0], third], output, replace=True)  # as a sweep does in its own folder
        assert set(json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]) == {"one", "three"}

    def test_the_table_is_printed_all_the_same(
        self, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        one, two = (str(Path(run).resolve()) for run in runs)
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        assert cli.main(["compare", one]) == 0
        before = Path("compare/compare.json").read_text()
        capsys.readouterr()
        assert cli.main(["compare", two]) == 0, "no files were asked for"
        printed = capsys.readouterr()
        assert "cross-entropy, all tokens" in printed.out
        assert "no files were written: --output compare holds a comparison with other runs (one)" in printed.err
        assert cli.main(["compare", two, "--output", "compare"]) == 2, "they were"
        assert Path("compare/compare.json").read_text() == before
        assert cli.main(["compare", two, "--output", "another"]) == 0

    def test_of_the_same_runs_and_more_takes_its_place(self, runs: list[str], tmp_path: Path) -> None:
        output = str(tmp_path / "out")
        for names in (["one", "two"], ["A", "B"]):
            compare.compare(runs, output, names=names)
        compare.compare([*runs, str(make_run(tmp_path / "three", [1.0]))], output)
        assert len(json.loads((tmp_path / "out" / "compare.json").read_text())["runs"]) == 3
