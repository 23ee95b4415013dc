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
from ebft.studies import report, tables
from ebft.studies.evidence import read_study_folder
from ebft.studies.tables import Number, Table, as_csv, as_latex, as_markdown
from tests.studies.made_study import NASTY, make_study, write_jsonl


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def each_row(study: Path, **changes: Any) -> None:
    rows = json.loads((study / "study.json").read_text())["rows"]
    change(study / "study.json", rows=[{**row, **{n: f(row) for n, f in changes.items()}} for row in rows])


class TestTables:
    def test_the_main_table(self, study: Path) -> None:
        report.write(str(study))
        rows = {row["method"]: row for row in rows_of(study / "report" / "tables" / "main.csv")}
        assert list(rows) == ["base", "sft", "ebft", "rlvr"]
        assert float(rows["ebft"]["CE, all tokens"]) == pytest.approx(0.5, abs=0.1)
        assert float(rows["ebft"]["CE, all tokens: low"]) < 0.5 < float(rows["ebft"]["CE, all tokens: high"])
        # RLVR's own reward, by nobody else; 0.5 is what it logged last.
        assert [row["training reward"] for row in rows.values()] == ["", "", "", "0.5"]
        assert float(rows["base"]["humaneval greedy"]) == 0.0
        assert float(rows["base"]["humaneval greedy: high"]) == pytest.approx(0.2425, abs=1e-3)  # Wilson, 0 of 12
        settings = rows_of(study / "report" / "tables" / "settings.csv")
        assert settings == [{"setting": "learning_rate", "sft": "1", "ebft": "0.5", "rlvr": "1.5"}]
        shared = rows_of(study / "report" / "tables" / "shared-settings.csv")
        assert shared == [{"setting": "context_length", "in every row": "64"}]

    def test_bold_only_where_the_test_supports_it(self, tmp_path: Path) -> None:
        for name, sft in ("apart", 1.0), ("alike", 0.501):
            (folder := tmp_path / name).mkdir()
            report.write(str(make_study(folder, sft=sft, ebft=0.5)))
            text = (folder / "report" / "report.md").read_text()
            table = text[text.index("## Main results") : text.index("## Paired")]
            assert bool(re.search(r"\| ebft .*\*\*0\.\d+\*\*", table)) == (name == "apart")
            assert "Holm's correction for the" in table
            assert ("<b>0." in (folder / "report" / "report.html").read_text()) == (name == "apart")

    def test_differences_are_counted_and_corrected(self, study: Path) -> None:
        report.write(str(study))
        rows = rows_of(study / "report" / "tables" / "differences.csv")
        assert len(rows) == 6 * 6  # pairs of four rows, times six metrics
        assert all(float(row["p, corrected"]) >= float(row["p"]) for row in rows)
        keys = {(row["metric"], row["difference of"], row["from"]): row["reading"] for row in rows}
        assert keys["CE, all tokens", "ebft", "sft"] == "better"
        assert "36 tests were made here" in (study / "report" / "report.md").read_text()

    def test_the_papers_numbers_are_marked(self, study: Path) -> None:
        report.write(str(study), paper=True)
        assert "Copied from the paper, not measured here" in (study / "report" / "report.md").read_text()
        rows = {row["method"]: row for row in rows_of(study / "report" / "tables" / "paper-qa-code.csv")}
        assert (rows["EBFT"]["CE"], rows["RLVR (ws.)"]["pass@1"]) == ("0.207", "0.529")
        report.write(str(study))  # over its own files
        assert not (study / "report" / "tables" / "paper-qa-code.csv").exists()

    def test_shares_of_answers_stand_beside_pass_at_k_and_are_not_ranked(self, study: Path) -> None:
        for place in (study / "evaluations").iterdir():
            results = json.loads((place / "results.json").read_text())
            results["tasks"]["humaneval"] |= {"language": "python"}
            results["tasks"]["humaneval"]["metrics"] |= {"greedy_empty": {"value": 0.5, "count": 12}}
            (place / "results.json").write_text(json.dumps(results))
            rows = [{"task_id": f"{n}", "completion": " " if n < 6 else "x = 1"} for n in range(12)]
            write_jsonl(place / "humaneval.greedy.jsonl", [{**row, "sample": 0, "finish": "ended"} for row in rows])
        evidence = read_study_folder(study)
        metrics = tables.main_metrics(evidence)
        assert metrics[-2:] == ["humaneval greedy_empty", "reward"]
        assert not any(ranking.metric.endswith("empty") for ranking in tables.rankings(evidence, metrics))
        found = tables.summary_of(evidence.rows[0], "humaneval greedy_empty")
        assert found is not None
        assert (found.value, found.items) == (0.5, 12)

    def test_languages_stand_apart_from_their_mean(self, study: Path) -> None:
        """A task of several sets of problems: each set weighs the same, and only the mean is in the main table."""
        entry = {"value": 0.25, "standard_error": 0.1, "count": 3}
        parts = [{"name": "multipl-e-js"}, {"name": "multipl-e-rs"}, {"name": "multipl-e-go", "skipped": "no go"}]
        metrics = {"greedy_pass@1": entry, "multipl-e-js greedy_pass@1": entry}
        for place in (study / "evaluations").iterdir():
            change(place / "results.json", tasks={"multipl-e": {"metrics": metrics, "parts": parts, "settings": {}}})
            for language, passed in ("js", [True, False]), ("rs", [False]):
                rows = [
                    {"task_id": f"{n}", "sample": 0, "status": "passed" if p else "failed"}
                    for n, p in enumerate(passed)
                ]
                write_jsonl(place / f"multipl-e-{language}.greedy.scores.samples.jsonl", rows)
        evidence = read_study_folder(study)
        assert tables.main_metrics(evidence) == ["multipl-e greedy_pass@1", "reward"]
        found = tables.summary_of(evidence.rows[0], "multipl-e greedy_pass@1")
        assert found is not None
        assert (found.value, found.items) == (pytest.approx((0.5 + 0.0) / 2), 3)

    def test_a_profile_of_one_sequence_has_no_intervals_and_no_tests(self, study: Path) -> None:
        for file in study.rglob("calibration.jsonl"):
            records = [json.loads(line) for line in file.read_text().splitlines()]
            write_jsonl(file, [{**record, "profile_contexts": 3 * (record["sequence"] == 5)} for record in records])
        profile, differences = tables.profile_tables(read_study_folder(study))
        assert profile is not None
        assert differences is not None
        assert "Measured on 3 contexts in 1 sequences." in profile.caption
        assert {cell.interval for row in profile.rows for cell in row[1:] if isinstance(cell, Number)} == {None}
        assert {row[-1] for row in differences.rows} == {"not tested"}
        pairs = {(row[1], row[2]) for row in differences.rows}
        assert pairs == {("ebft", "sft"), ("rlvr", "sft"), ("rlvr", "ebft")}, "methods of different kinds"

    def test_what_rollouts_are_like_is_shown_and_other_temperatures_are_tested(self, study: Path) -> None:
        for folder in (study / "evaluations").iterdir():
            tasks = json.loads((folder / "results.json").read_text())["tasks"]
            entry = tasks["calibration"]["metrics"]["cfm"]
            tasks["calibration"]["metrics"]["cfm_temperature_1"] = entry
            tasks["calibration"]["rollouts"] = {"distinct": entry}
            change(folder / "results.json", tasks=tasks)
            records = [json.loads(line) for line in (folder / "calibration.jsonl").read_text().splitlines()]
            more = [
                {**r, "distinct": 1 - 0.2 * (not i), "cfm_temperature_1": 3 * r["cfm"]} for i, r in enumerate(records)
            ]
            write_jsonl(folder / "calibration.jsonl", more)
        evidence = read_study_folder(study)
        metrics = tables.main_metrics(evidence)
        assert metrics[2:4] == ["calibration cfm", "calibration cfm_temperature_1"]
        plain, other, shares = (tables.summary_of(evidence.rows[1], m) for m in (*metrics[2:4], "calibration distinct"))
        assert plain and other and shares and shares.interval  # noqa: PT018
        assert other.value == pytest.approx(3 * plain.value)
        assert shares.interval.low < shares.value < shares.interval.high == 1, "no share is more than all"


class TestVerdicts:
    def test_never_stronger_than_the_tests(self, study: Path) -> None:
        found = {verdict.question: verdict.answer for verdict in report.write(str(study)).verdicts}
        cfm = found["Which has the lowest feature-matching loss on the test data?"]
        assert cfm.startswith("ebft, with 0.2")
        assert "p < 0.0001 alone, < 0.0001 after correction for 6 tests)" in cfm
        greedy = found["Which solves the most problems, by humaneval greedy?"]
        assert greedy.startswith("Not decided: ")
        assert "more seeds or more test data" in greedy
        assert not any(question.startswith("Of ") for question in found), "with one row each there is nothing to add"

    def test_methods_are_compared_also_if_the_runner_up_is_of_the_same(self, tmp_path: Path) -> None:
        study = make_study(tmp_path, gammas=(0.0, 0.01), ebft=0.5, sft=1.0)
        found = {verdict.question: verdict.answer for verdict in report.write(str(study)).verdicts}
        assert "Not decided" in found["Which has the lowest cross-entropy, all tokens on the test data?"]
        of_kinds = "Of ebft and sft, each with its best row: which has the lowest cross-entropy, all tokens on the test"
        assert "; sft has " in (answer := found[f"{of_kinds} data?"])
        assert "p < 0.0001" in answer
        page = (study / "report" / "report.html").read_text()
        assert 'alt="map-1"' in page, "alpha and gamma"

    def test_one_seed_and_a_head_start_are_said(self, study: Path) -> None:
        each_row(
            study, models=lambda row: row["models"][:1], after=lambda row: "sft" if row["name"] == "ebft" else None
        )
        answer = next(v.answer for v in report.write(str(study)).verdicts if "feature-matching" in v.question)
        assert answer.startswith("Of these very models ebft")
        assert "says nothing about training again" in answer
        assert answer.endswith("ebft started from the final models of sft, so it had more training.")
        assert "One training run: sft, ebft, rlvr." in (study / "report" / "report.md").read_text()

    def test_without_a_test_it_is_validation_and_says_so(self, study: Path) -> None:
        each_row(study, models=lambda row: [{**model, "evaluation": None} for model in row["models"]])
        for run in (study / "runs").iterdir():
            records = (study / "evaluations" / run.name / "calibration.jsonl").read_text()
            (run / "validation-after.jsonl").write_text(records)
            ruler = {"validation": "v", "network": "other" if run.name.startswith("sft") else "n"}
            change(run / "results.json", after={}, ruler=ruler)
        found = report.write(str(study))
        assert "on validation data?" in found.verdicts[0].question
        assert any("sft and ebft were measured differently (the frozen feature network)" in n for n in found.notes)
        (row,) = [row for row in read_study_folder(study).rows if row.name == "sft"]
        assert not row.scores("validation cfm")
        assert len(row.scores("validation cross_entropy")) == 2


class TestWhatIsMissing:
    def main(self, study: Path) -> dict[str, str]:
        return {row["method"]: row["CE, all tokens"] for row in rows_of(study / "report" / "tables" / "main.csv")}

    def test_a_run_that_failed_is_shown_with_its_error(self, study: Path) -> None:
        for seed in (0, 1):
            (study / "runs" / f"sft,seed={seed}" / "results.json").write_text('{"method": "sft"}')
        (study / "logs").mkdir()
        (study / "logs" / "sft,seed=0.log").write_text("$ ebft sft\nebft: the disk is full: runs/x\n")
        notes = report.write(str(study)).notes
        assert "sft, seed 0: failed after 20 steps: the disk is full: runs/x" in notes
        assert "sft, seed 1: not finished: 20 steps" in notes
        assert self.main(study)["sft"] == "missing"
        states = {(r["method"], r["seed"]): r["state"] for r in rows_of(study / "report" / "tables" / "costs.csv")}
        assert states["sft", "0"].startswith("failed after 20 steps")

    @pytest.mark.parametrize(
        ("file", "text", "words"),
        [
            ("runs/sft,seed=0/results.json", "{", "broken: .* not valid JSON"),
            ("runs/sft,seed=0/metrics.jsonl", None, "nothing is logged yet"),
            ("evaluations/sft,seed=0/results.json", "{", "its evaluation is broken"),
            ("evaluations/sft,seed=0/results.json", None, "not evaluated yet"),
            (
                "evaluations/sft,seed=0/calibration.jsonl",
                '{"sequence": 0, "tokens": 1}\n',
                "its evaluation of calibration is broken: ValueError calibration.jsonl holds 1 of 30",
            ),
            ("evaluations/sft,seed=0/calibration.jsonl", "{]\n", "its evaluation of calibration is broken"),
            (
                "logs/evaluate-sft,seed=0.log",
                "$ x\nebft: no\n",
                "its evaluation failed, and the numbers are of one before: no",
            ),
        ],
    )
    def test_what_is_broken_is_said(self, study: Path, file: str, text: str | None, words: str) -> None:
        (study / "logs").mkdir()
        (study / file).unlink() if text is None else (study / file).write_text(text)
        (note,) = report.write(str(study)).notes
        assert re.match(f"sft, seed 0: {words}", note)
        assert float(self.main(study)["sft"]) == pytest.approx(1.0, abs=0.1)  # by the other seed

    def test_other_data_are_not_put_together(self, study: Path) -> None:
        place = study / "evaluations" / "ebft,seed=0" / "results.json"
        tasks = json.loads(place.read_text())["tasks"]
        tasks["calibration"] |= {"text": "other", "settings": {"seed": 0, "horizon": 4}}
        change(place, tasks=tasks)
        (note,) = report.write(str(study)).notes
        assert "ebft and base were measured differently by calibration (horizon 4 and 8, text other and t)" in note
        (ebft,) = [row for row in read_study_folder(study).rows if row.name == "ebft"]
        assert len(ebft.scores("calibration cfm")) == 1  # the other seed
        assert len(ebft.scores("humaneval pass@1")) == 2

    def test_a_task_of_some_models_only(self, study: Path) -> None:
        for place in (study / "evaluations").iterdir():
            tasks = json.loads((place / "results.json").read_text())["tasks"]
            if place.name == "sft,seed=1":
                tasks["humaneval"] |= {"metrics": {}, "unscored": True, "skipped": "not scored yet"}
            elif place.name not in ("base", "ebft,seed=0"):
                del tasks["humaneval"]
            change(place / "results.json", tasks=tasks)
        note, unscored = report.write(str(study)).notes
        assert unscored.startswith(f"humaneval is not all scored yet: run `ebft score {study}`")
        assert note.startswith(
            "humaneval was measured on some of the final models only: 0 of 2 of sft, 1 of 2 of ebft, "
        )

    def test_nothing_at_all_yet_and_no_study(self, study: Path, tmp_path: Path, capsys: Any) -> None:
        each_row(study, models=lambda row: [])
        assert report.write(str(study)).notes[0] == "base: waits for a search to choose its settings"
        for arguments in ([str(study / "runs")], [str(study), "--output", str(study / "runs")]):
            assert cli.main(["study", "report", *arguments]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "holds no " in line


@pytest.mark.pictures
def test_hostile_names_and_answers_are_text_in_one_file_that_loads_nothing(study: Path) -> None:
    report.write(str(study))
    page = (study / "report" / "report.html").read_text()
    tags: list[tuple[str, dict[str, Any]]] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.append((tag, dict(attrs)))

    Tags().feed(page)
    assert not [tag for tag, _ in tags if tag in ("script", "link", "iframe")]
    assert {attributes["src"].partition(",")[0] for tag, attributes in tags if tag == "img"} == {
        "data:image/svg+xml;base64"
    }
    assert all(attributes["href"].startswith("#") for tag, attributes in tags if tag == "a")
    assert "default-src 'none'" in page
    assert "<b>bold" not in page
    assert page.count("needle") == 5, "five problems side by side"
    figures = {file.name for file in (study / "report" / "figures").iterdir()}
    assert {"profile.svg", "pareto.png", "training-steps.svg", "training-flops.png"} <= figures


def hostile(text: str) -> Table:
    return Table("t", f"title {text}", [text, "n"], [[text, Number("1", 1.0)]], text)


def test_hostile_names_in_latex_markdown_and_csv() -> None:
    found = as_latex(hostile(r"a_b 50% & $x$ #1 {y} \input{secret} ~^ <b>"))
    assert r"a\_b 50\% \& \$x\$ \#1 \{y\} \textbackslash{}input\{secret\}" in found
    assert not re.search(r"(?<!\\)[$%#_]", found)
    assert r"\input" not in found
    assert "\n{}[x] & 1" in as_latex(hostile("[x]")), "a row does not begin with an option"
    found = as_markdown(hostile("a|b <script> `x` *y*\nnew line & [link](http://x)"))
    assert r"a\|b \<script\> \`x\` \*y\* new line &amp; \[link\](http://x)" in found
    for text in ("=1+1", "@x", "-cmd"):
        assert as_csv(hostile(text)).splitlines() == [f"'{text},n", f"'{text},1.0"]
    assert as_csv(hostile("-0.5 to 1")).splitlines()[1] == "-0.5 to 1,1.0"
    assert NASTY in as_csv(hostile(NASTY)).replace('""', '"')
