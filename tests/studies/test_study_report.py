"""`ebft study report`: on a study written by hand, where the answers are known."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.studies.report import study_report, study_tables
from ebft.studies.report.evidence import read_study_folder
from ebft.studies.report.tables import Cell, Column, Table, as_csv, as_latex, as_markdown
from tests.imports import imports_torch
from tests.studies.made_study import NASTY, make_study, write_jsonl
from tests.studies.pages import data_of, no_outside

pytestmark = pytest.mark.pictures


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw them takes seconds."""
    monkeypatch.setattr(study_report, "_figures", lambda page: [])


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


class TestTables:
    @pytest.mark.usefixtures("without_figures")
    def test_the_main_table(self, study: Path) -> None:
        study_report.write(str(study))
        rows = {row["method"]: row for row in rows_of(study / "report" / "tables" / "main.csv")}
        assert list(rows) == ["base", "sft", "ebft", "rlvr"]
        assert float(rows["ebft"]["CE, all tokens"]) == pytest.approx(0.5, abs=0.1)
        assert float(rows["ebft"]["feature-matching loss"]) == pytest.approx(0.25, abs=0.05)
        assert float(rows["ebft"]["CE, all tokens: low"]) < 0.5 < float(rows["ebft"]["CE, all tokens: high"])
        # RLVR's own reward, by nobody else; 0.5 is what it logged last.
        assert [row["training reward"] for row in rows.values()] == ["", "", "", "0.5"]
        none_passed = rows["base"]
        assert float(none_passed["humaneval greedy"]) == 0.0
        assert float(none_passed["humaneval greedy: high"]) == pytest.approx(0.2425, abs=1e-3)  # Wilson, 0 of 12

    @pytest.mark.usefixtures("without_figures")
    def test_bold_only_where_the_test_supports_it(self, tmp_path: Path) -> None:
        for name, sft in ("apart", 1.0), ("alike", 0.501):
            folder = tmp_path / name
            folder.mkdir()
            make_study(folder, sft=sft, ebft=0.5)
            study_report.write(str(folder))
            text = (folder / "report" / "report.md").read_text()
            table = text[text.index("## Main results") : text.index("## Paired")]
            assert bool(re.search(r"\| ebft .*\*\*0\.\d+\*\*", table)) == (name == "apart")
            assert "Holm's correction for the" in table
            if name == "alike":
                assert "**0." not in table

    @pytest.mark.usefixtures("without_figures")
    def test_what_holds_of_several_rows_is_said_once(self, tmp_path: Path) -> None:
        make_study(tmp_path, gammas=(0.3, 1.0), sft=1.0, ebft=0.5, rlvr=1.5)
        for file in (tmp_path / "runs").glob("ebft*/results.json"):
            results = json.loads(file.read_text())
            results["ruler"]["whitening"] = "none"
            file.write_text(json.dumps(results))
        found = [note for note in study_report.write(str(tmp_path)).notes if "Validation" in note]
        assert found == [
            "Validation, in the curves: ebft (alpha 0.3, gamma 0.3), ebft (alpha 1, gamma 1) and sft differ in "
            "whitening none and not set; their whitened proxy and reward do not compare"
        ]

    @pytest.mark.usefixtures("without_figures")
    def test_differences_are_counted_and_corrected(self, study: Path) -> None:
        study_report.write(str(study))
        rows = rows_of(study / "report" / "tables" / "differences.csv")
        assert len(rows) == 6 * 6  # pairs of four rows, times six metrics
        assert all(float(row["p, corrected"]) >= float(row["p"]) for row in rows)
        (found,) = [
            r for r in rows if (r["metric"], r["difference of"], r["from"]) == ("CE, all tokens", "ebft", "sft")
        ]
        assert found["reading"] == "better"
        assert "36 tests were made here" in (study / "report" / "report.md").read_text()

    def test_other_files(self, study: Path) -> None:
        found = study_report.write(str(study))
        assert [file.name for file in found.files] == ["report.html", "report.md", "tables", "figures"]
        figures = {file.name for file in (study / "report" / "figures").iterdir()}
        for name in ("curves-steps", "curves-tokens", "curves-seconds", "curves-flops", "profile", "pareto"):
            assert {f"{name}.png", f"{name}.svg"} <= figures
        settings = rows_of(study / "report" / "tables" / "settings.csv")
        assert settings == [{"setting": "learning_rate", "sft": "1", "ebft": "0.5", "rlvr": "1.5"}]
        shared = rows_of(study / "report" / "tables" / "shared-settings.csv")
        assert shared == [{"setting": "context_length", "in every row": "64"}]
        study_report.write(str(study))  # again, over its own files

    def test_a_map_of_two_settings(self, tmp_path: Path) -> None:
        make_study(tmp_path, gammas=(0.0, 0.1))
        evidence = read_study_folder(tmp_path)
        assert [row.title for row in evidence.rows][2:4] == ["ebft (alpha 0, gamma 0)", "ebft (alpha 0.1, gamma 0.1)"]
        study_report.write(str(tmp_path))
        assert (tmp_path / "report" / "figures" / "heat-map-1.svg").exists()
        page = (tmp_path / "report" / "report.html").read_text()
        assert "<td class=number>missing</td>" in page  # alpha 0 with gamma 0.1 was not run
        assert "--shade:1.000" in page

    @pytest.mark.usefixtures("without_figures")
    def test_the_papers_numbers_are_marked(self, study: Path) -> None:
        study_report.write(str(study), paper=True)
        text = (study / "report" / "report.md").read_text()
        assert "The paper's own numbers: Q&amp;A coding" in text
        assert "Copied from the paper, not measured here" in text
        rows = {row["method"]: row for row in rows_of(study / "report" / "tables" / "paper-qa-code.csv")}
        assert (rows["EBFT"]["CE"], rows["RLVR (ws.)"]["pass@1"]) == ("0.207", "0.529")
        study_report.write(str(study))
        assert "paper's own" not in (study / "report" / "report.md").read_text()
        assert not (study / "report" / "tables" / "paper-qa-code.csv").exists()


@pytest.mark.usefixtures("without_figures")
class TestVerdicts:
    def test_never_stronger_than_the_tests(self, study: Path) -> None:
        found = {verdict.question: verdict.answer for verdict in study_report.write(str(study)).verdicts}
        cfm = found["Which has the lowest feature-matching loss on the test data?"]
        assert cfm.startswith("ebft, with 0.2")
        assert "p < 0.0001 alone, < 0.0001 after correction for 6 tests)" in cfm
        greedy = found["Which solves the most problems, by humaneval greedy?"]
        assert greedy.startswith("Not decided: ")
        assert "more seeds or more test data" in greedy

    def test_methods_are_compared_also_if_the_runner_up_is_of_the_same(self, tmp_path: Path) -> None:
        study = make_study(tmp_path, gammas=(0.0, 0.01), ebft=0.5, sft=1.0)
        found = {verdict.question: verdict.answer for verdict in study_report.write(str(study)).verdicts}
        assert "Not decided" in found["Which has the lowest cross-entropy, all tokens on the test data?"]
        question = (
            "Of ebft and sft, each with its best row: which has the lowest cross-entropy, all tokens on the test data?"
        )
        assert "; sft has " in found[question]
        assert "p < 0.0001" in found[question]
        # With one row each there is nothing to add.
        study = make_study(tmp_path / "one", ebft=0.5, sft=1.0)
        assert not any(verdict.question.startswith("Of ") for verdict in study_report.write(str(study)).verdicts)

    def test_a_row_that_started_from_another_had_more_training(self, study: Path) -> None:
        words = "ebft started from the final models of sft, so it had more training."
        manifest = json.loads((study / "study.json").read_text())
        assert not any(words in str(verdict) for verdict in study_report.write(str(study)).verdicts)
        for row in manifest["rows"]:
            row["after"] = "sft" if row["name"] == "ebft" else None
        (study / "study.json").write_text(json.dumps(manifest))
        found = {verdict.question: verdict.answer for verdict in study_report.write(str(study)).verdicts}
        assert found["Which has the lowest feature-matching loss on the test data?"].endswith(f"). {words}")

    def test_one_seed_says_nothing_of_training_again(self, study: Path) -> None:
        manifest = json.loads((study / "study.json").read_text())
        for row in manifest["rows"]:
            row["models"] = row["models"][:1]
        (study / "study.json").write_text(json.dumps(manifest))
        found = study_report.write(str(study))
        answer = next(v.answer for v in found.verdicts if "feature-matching" in v.question)
        assert answer.startswith("Of these very models ebft")
        assert "says nothing about training again" in answer
        text = (study / "report" / "report.md").read_text()
        assert "One training run: sft, ebft, rlvr." in text


@pytest.mark.usefixtures("without_figures")
class TestWhatIsMissing:
    def change(self, study: Path, name: str, file: str, text: str | None) -> None:
        place = study / name / file
        if text is None:
            place.unlink()
        else:
            place.write_text(text)

    def main(self, study: Path) -> dict[str, str]:
        return {row["method"]: row["CE, all tokens"] for row in rows_of(study / "report" / "tables" / "main.csv")}

    def test_a_run_that_failed_is_shown_with_its_error(self, study: Path) -> None:
        for seed in (0, 1):
            run = study / "runs" / f"sft,seed={seed}"
            results = json.loads((run / "results.json").read_text())
            del results["steps"]
            (run / "results.json").write_text(json.dumps(results))
        (study / "logs").mkdir()
        (study / "logs" / "sft,seed=0.log").write_text("$ ebft sft\nebft: the disk is full: runs/x\n")
        notes = study_report.write(str(study)).notes
        assert "sft, seed 0: failed after 20 steps: the disk is full: runs/x" in notes
        assert "sft, seed 1: not finished: 20 steps" in notes
        assert self.main(study)["sft"] == "missing"
        states = {
            (row["method"], row["seed"]): row["state"] for row in rows_of(study / "report" / "tables" / "costs.csv")
        }
        assert states["sft", "0"].startswith("failed after 20 steps")

    def test_a_broken_run_is_shown_as_such(self, study: Path) -> None:
        self.change(study, "runs/sft,seed=0", "results.json", "{")
        (note,) = study_report.write(str(study)).notes
        assert note.startswith("sft, seed 0: broken: ")
        assert "results.json is not valid JSON" in note
        assert float(self.main(study)["sft"]) == pytest.approx(1.0, abs=0.1)  # by the other seed

    def test_a_run_that_has_just_started(self, study: Path) -> None:
        self.change(study, "runs/sft,seed=0", "metrics.jsonl", None)
        assert study_report.write(str(study)).notes == ["sft, seed 0: has started, nothing is logged yet"]

    @pytest.mark.parametrize(
        ("file", "text", "words"),
        [
            ("results.json", "{", "its evaluation is broken"),
            ("results.json", None, "not evaluated yet"),
            ("calibration.jsonl", '{"sequence": 0, "tokens": 1}\n', "holds 1 of 30 sequences; it was cut off"),
            ("calibration.jsonl", "{]\n", "its evaluation of calibration is broken"),
        ],
    )
    def test_a_broken_evaluation(self, study: Path, file: str, text: str | None, words: str) -> None:
        for seed in (0, 1):
            self.change(study, f"evaluations/sft,seed={seed}", file, text)
        notes = study_report.write(str(study)).notes
        assert len(notes) == 2
        assert all(words in note for note in notes)
        assert self.main(study)["sft"] == "missing"

    def test_an_evaluation_that_failed_after_one_that_did_not(self, study: Path) -> None:
        (study / "logs").mkdir(exist_ok=True)
        (study / "logs" / "evaluate-sft,seed=0.log").write_text("$ ebft eval\nebft: the disk is full: runs/x\n")
        (note,) = study_report.write(str(study)).notes
        assert note == "sft, seed 0: its evaluation failed, and the numbers are of one before: the disk is full: runs/x"
        assert float(self.main(study)["sft"]) == pytest.approx(1.0, abs=0.1)

    def test_other_data_are_not_put_together(self, study: Path) -> None:
        place = study / "evaluations" / "ebft,seed=0" / "results.json"
        results = json.loads(place.read_text())
        results["tasks"]["calibration"]["text"] = "other"
        results["tasks"]["calibration"]["settings"]["horizon"] = 4
        place.write_text(json.dumps(results))
        (note,) = study_report.write(str(study)).notes
        assert "ebft and base were measured differently by calibration (horizon 4 and 8, text other and t)" in note
        evidence = read_study_folder(study)
        (ebft,) = [row for row in evidence.rows if row.name == "ebft"]
        assert len(ebft.scores("calibration cfm")) == 1  # the other seed
        assert len(ebft.scores("humaneval pass@1")) == 2

    def test_a_task_of_some_models_only(self, study: Path) -> None:
        for place in (study / "evaluations").iterdir():
            if place.name not in ("base", "ebft,seed=0"):
                results = json.loads((place / "results.json").read_text())
                if place.name == "sft,seed=1":
                    results["tasks"]["humaneval"] |= {"metrics": {}, "unscored": True, "skipped": "not scored yet"}
                else:
                    del results["tasks"]["humaneval"]
                (place / "results.json").write_text(json.dumps(results))
        note, unscored = study_report.write(str(study)).notes
        assert unscored.startswith(f"humaneval is not all scored yet: run `ebft score {study}`")
        assert note.startswith(
            "humaneval was measured on some of the final models only: 0 of 2 of sft, 1 of 2 of ebft, "
        )
        for place in (study / "evaluations").iterdir():
            results = json.loads((place / "results.json").read_text())
            results["tasks"]["humaneval"] = {"metrics": {}, "unscored": True, "skipped": "not scored yet"}
            (place / "results.json").write_text(json.dumps(results))
        (note,) = study_report.write(str(study)).notes
        assert note.startswith("humaneval is not all scored yet: run `ebft score ")

    def test_nothing_at_all_yet(self, study: Path) -> None:
        manifest = json.loads((study / "study.json").read_text())
        for row in manifest["rows"]:
            row["models"] = []
        (study / "study.json").write_text(json.dumps(manifest))
        notes = study_report.write(str(study)).notes
        assert notes[0] == "base: waits for a search to choose its settings"

    def test_without_a_test_it_is_validation_and_says_so(self, study: Path) -> None:
        manifest = json.loads((study / "study.json").read_text())
        for row in manifest["rows"]:
            for model in row["models"]:
                model["evaluation"] = None
        (study / "study.json").write_text(json.dumps(manifest))
        for run in (study / "runs").iterdir():
            records = (study / "evaluations" / run.name / "calibration.jsonl").read_text()
            (run / "validation-after.jsonl").write_text(records)
            results = json.loads((run / "results.json").read_text())
            # SFT was validated with another feature network.
            if run.name.startswith("sft"):
                results["ruler"]["network"] = "other"
            (run / "results.json").write_text(json.dumps({**results, "after": {}}))
        found = study_report.write(str(study))
        assert "on validation data?" in found.verdicts[0].question
        (row,) = [row for row in read_study_folder(study).rows if row.name == "sft"]
        assert not row.scores("validation cfm")
        assert len(row.scores("validation cross_entropy")) == 2


@pytest.mark.usefixtures("without_figures")
class TestEscaping:
    """Whatever comes from data: names, prompts, answers and messages."""

    def test_the_page(self, study: Path) -> None:
        study_report.write(str(study))
        page = (study / "report" / "report.html").read_text()
        no_outside(page)
        assert page.count("<script") == 2
        assert "<b>bold" not in page

        class Tags(HTMLParser):
            found: list[str] = []  # noqa: RUF012

            def handle_starttag(self, tag: str, attrs: Any) -> None:
                self.found.append(tag)

        Tags().feed(page)
        assert Tags.found.count("script") == 2
        problems = data_of(page)["generations"][0]["problems"]
        assert NASTY in problems[0]["prompt"]
        assert NASTY in problems[0]["answers"]["base"]["text"]

    def table(self, text: str) -> Table:
        return Table(
            "t", f"title {text}", [Column(text, text=True), Column("n")], [[Cell(text), Cell("1", value=1.0)]], text
        )

    def test_latex(self) -> None:
        found = as_latex(self.table(r"a_b 50% & $x$ #1 {y} \input{secret} ~^ <b> [x]"))
        assert r"a\_b 50\% \& \$x\$ \#1 \{y\} \textbackslash{}input\{secret\}" in found
        assert not re.search(r"(?<!\\)[$%#_]", found.replace("% Needs", ""))
        assert r"\input" not in found

    def test_a_row_of_latex_does_not_begin_with_an_option(self) -> None:
        assert "\n{}[x] & 1" in as_latex(self.table("[x]"))

    def test_markdown(self) -> None:
        found = as_markdown(self.table("a|b <script> `x` *y*\nnew line & [link](http://x)"))
        assert r"a\|b \<script\> \`x\` \*y\* new line &amp; \[link\](http://x)" in found

    def test_csv(self) -> None:
        lines = as_csv(self.table("=1+1")).splitlines()
        assert lines[1] == "'=1+1,1.0"


def test_a_profile_of_one_sequence_has_no_intervals_and_no_tests(study: Path) -> None:
    profile, _ = study_tables.profile_tables(read_study_folder(study))
    assert profile is not None
    assert profile.caption.endswith("Measured on 30 contexts in 30 sequences.")
    for file in study.rglob("calibration.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        write_jsonl(file, [{**record, "profile_contexts": 3 * (record["sequence"] == 5)} for record in records])
    profile, differences = study_tables.profile_tables(read_study_folder(study))
    assert profile is not None
    assert differences is not None
    assert "Measured on 3 contexts in 1 sequence: without a second sequence" in profile.caption
    assert {cell.interval for row in profile.rows for cell in row[1:]} == {""}
    assert {(row[3].interval, row[4].text, row[-1].text) for row in differences.rows} == {("", "", "not tested")}
    assert differences.caption.startswith("Nothing is tested")


def test_rewards_and_profile_lengths_have_no_columns_of_their_own(study: Path) -> None:
    evidence = read_study_folder(study)
    names = {metric.rpartition(" ")[2] for metric in study_tables.main_metrics(evidence)}
    assert names == {"cross_entropy", "answer_cross_entropy", "cfm", "greedy_pass@1", "pass@1", "pass@4", "reward"}
    other = study_tables.all_metrics_table(evidence, study_tables.main_metrics(evidence))
    assert other is not None
    assert [column.title for column in other.columns] == ["method", "whitened proxy (larger is better)"]


def test_lengths_are_compared_between_kinds_or_within_the_only_one(study: Path, tmp_path: Path) -> None:
    def pairs(folder: Path) -> set[tuple[str, str]]:
        table = study_tables.profile_tables(read_study_folder(folder))[1]
        assert table is not None
        return {(row[1].text, row[2].text) for row in table.rows}

    assert pairs(study) == {("ebft", "sft"), ("rlvr", "sft"), ("rlvr", "ebft")}
    (alone := tmp_path / "alone").mkdir()
    make_study(alone, gammas=(0.1, 0.2), ebft=0.5)
    assert pairs(alone) == {("ebft (alpha 0.2, gamma 0.2)", "ebft (alpha 0.1, gamma 0.1)")}


def test_languages_stand_apart_from_their_mean(study: Path) -> None:
    """A task of several sets of problems: each set weighs the same, and only the mean is a column of the main table."""
    for place in (study / "evaluations").iterdir():
        results = json.loads((place / "results.json").read_text())
        entry = {"value": 0.25, "standard_error": 0.1, "count": 3}
        results["tasks"] = {
            "multipl-e": {
                "metrics": {"greedy_pass@1": entry, "multipl-e-js greedy_pass@1": entry},
                "parts": [
                    {"name": "multipl-e-js"},
                    {"name": "multipl-e-rs"},
                    {"name": "multipl-e-go", "skipped": "no go"},
                ],
                "settings": {},
            }
        }
        (place / "results.json").write_text(json.dumps(results))
        for language, passed in ("js", [True, False]), ("rs", [False]):
            write_jsonl(
                place / f"multipl-e-{language}.greedy.scores.samples.jsonl",
                [{"task_id": f"{n}", "sample": 0, "status": "passed" if p else "failed"} for n, p in enumerate(passed)],
            )
    evidence = read_study_folder(study)
    assert study_tables.main_metrics(evidence) == ["multipl-e greedy_pass@1", "reward"]
    found = study_tables.summary_of(evidence.rows[0], "multipl-e greedy_pass@1")
    assert found is not None
    assert (found.value, found.items) == (pytest.approx((0.5 + 0.0) / 2), 3)


class TestBadInput:
    @pytest.mark.parametrize(
        ("text", "words"), [(None, "holds no study"), ("{", "is not valid JSON"), ("[]", "holds no study")]
    )
    def test_no_study(self, text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        if text is not None:
            (tmp_path / "study.json").write_text(text)
        assert cli.main(["study", "report", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line

    def test_where_it_may_write(self, study: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["study", "report", str(study), "--output", str(study / "runs")]) == 2
        assert "is not empty and holds no report" in capsys.readouterr().err
        assert cli.main(["study", "report", str(study), "--output", str(study / "study.json")]) == 2
        assert "is a file; give a folder" in capsys.readouterr().err

    def test_a_report_that_was_collected_without_its_runs(
        self, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        collected = tmp_path / "collected"
        collected.mkdir()
        (collected / "study.json").write_text((study / "study.json").read_text())
        (collected / "report.html").write_text("made earlier")
        assert cli.main(["study", "report", str(collected)]) == 2
        assert f"the one that was made is {collected / 'report.html'}" in capsys.readouterr().err
        assert (collected / "report.html").read_text() == "made earlier"

    def test_reporting_is_quick(self, study: Path) -> None:
        assert not imports_torch("study", "report", str(study))


def test_what_rollouts_are_like_is_shown_and_other_temperatures_are_tested(study: Path) -> None:
    for folder in (study / "evaluations").iterdir():
        results = json.loads((folder / "results.json").read_text())
        found = results["tasks"]["calibration"]
        entry = found["metrics"]["cfm"]
        found["metrics"]["cfm_temperature_1"] = entry
        found["rollouts"] = {"distinct": entry, "entropy": entry}
        (folder / "results.json").write_text(json.dumps(results))
        records = [json.loads(line) for line in (folder / "calibration.jsonl").read_text().splitlines()]
        more = [{**r, "distinct": 0.5, "entropy": 2.0, "cfm_temperature_1": 3 * r["cfm"]} for r in records]
        write_jsonl(folder / "calibration.jsonl", more)
    evidence = read_study_folder(study)
    metrics = study_tables.main_metrics(evidence)
    assert [m.rpartition(" ")[2] for m in metrics[2:4]] == ["cfm", "cfm_temperature_1"]
    (sft,) = [row for row in evidence.rows if row.name == "sft"]
    plain, other = (study_tables.summary_of(sft, metric) for metric in metrics[2:4])
    assert plain is not None
    assert other is not None
    assert other.value == pytest.approx(3 * plain.value)
    table = study_tables.all_metrics_table(evidence, metrics)
    assert table is not None
    titles = ["method", "whitened proxy (larger is better)", "distinct rollouts", "entropy of rollouts"]
    assert [column.title for column in table.columns] == titles
    assert {row[2].text for row in table.rows} == {"0.5000"}

    for folder in (study / "evaluations").iterdir():
        records = [json.loads(line) for line in (folder / "calibration.jsonl").read_text().splitlines()]
        write_jsonl(
            folder / "calibration.jsonl", [{**r, "distinct": 1 - 0.2 * (i == 0)} for i, r in enumerate(records)]
        )
    (sft,) = [row for row in read_study_folder(study).rows if row.name == "sft"]
    shares = study_tables.summary_of(sft, "calibration distinct")
    assert shares is not None
    assert shares.interval is not None
    assert shares.interval.low < shares.value < shares.interval.high == 1, "no share is more than all"
