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
from tests.studies.made_study import NASTY, make_study, write_jsonl


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path)


def rows_of(study: Path, table: str) -> list[dict[str, str]]:
    with (study / "report" / "tables" / f"{table}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def each_row(study: Path, **changes: Any) -> None:
    rows = json.loads((study / "study.json").read_text())["rows"]
    change(study / "study.json", rows=[{**row, **{n: f(row) for n, f in changes.items()}} for row in rows])


class TestTables:
    @pytest.mark.pictures
    def test_a_report(self, study: Path) -> None:
        found = report.write(str(study), paper=True)
        rows = {row["method"]: row for row in rows_of(study, "main")}
        assert list(rows) == ["base", "sft", "ebft", "rlvr"]
        assert float(rows["ebft"]["CE, all tokens"]) == pytest.approx(0.5, abs=0.1)
        assert float(rows["ebft"]["CE, all tokens: low"]) < 0.5 < float(rows["ebft"]["CE, all tokens: high"])
        assert float(rows["base"]["humaneval greedy"]) == 0.0
        assert float(rows["base"]["humaneval greedy: high"]) == pytest.approx(0.2425, abs=1e-3)  # Wilson, 0 of 12
        assert rows_of(study, "settings") == [{"setting": "learning_rate", "sft": "1", "ebft": "0.5", "rlvr": "1.5"}]

        of_pairs = rows_of(study, "differences")
        assert len(of_pairs) == 6 * 6  # pairs of four rows, times six metrics
        assert all(float(row["p, corrected"]) >= float(row["p"]) for row in of_pairs)
        readings = {(row["metric"], row["difference of"], row["from"]): row["reading"] for row in of_pairs}
        assert readings["CE, all tokens", "ebft", "sft"] == "better"
        text = (study / "report" / "report.md").read_text()
        assert "36 tests were made here" in text
        assert "Copied from the paper, not measured here" in text
        paper = {row["method"]: row for row in rows_of(study, "paper-qa-code")}
        assert (paper["EBFT"]["CE"], paper["RLVR (ws.)"]["pass@1"]) == ("0.207", "0.529")

        cfm, greedy = (v for v in found.verdicts if v.startswith(("feature-matching loss, on", "humaneval greedy, on")))
        assert cfm.startswith("feature-matching loss, on the test data: ebft (0.2")
        assert "p < 0.0001 alone, < 0.0001 after correction for 6 tests." in cfm
        assert ": not decided between ebft (0.75" in greedy

        page = (study / "report" / "report.html").read_text()
        tags: list[tuple[str, dict[str, Any]]] = []
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))  # type: ignore[method-assign]
        parser.feed(page)
        assert not [tag for tag, _ in tags if tag in ("script", "link", "iframe", "a", "b")]
        pictures = [attributes["src"].partition(",")[0] for tag, attributes in tags if tag == "img"]
        assert set(pictures) == {"data:image/svg+xml;base64"}
        assert "default-src 'none'" in page
        assert page.count("needle") == 5, "five problems side by side"
        figures = {file.name for file in (study / "report" / "figures").iterdir()}
        assert {"profile.svg", "training-steps.svg", "training-flops.png"} <= figures

    def test_the_loss_at_other_temperatures_stands_beside_its_own_and_shares_apart(self, study: Path) -> None:
        for place in (study / "evaluations").iterdir():
            tasks = json.loads((place / "results.json").read_text())["tasks"]
            tasks["humaneval"]["metrics"] |= {"greedy_empty": {"value": 0.5, "count": 12}}
            tasks["calibration"]["metrics"]["cfm_temperature_1"] = tasks["calibration"]["metrics"]["cfm"]
            change(place / "results.json", tasks=tasks)
            records = [json.loads(line) for line in (place / "calibration.jsonl").read_text().splitlines()]
            write_jsonl(place / "calibration.jsonl", [{**r, "cfm_temperature_1": 3 * r["cfm"]} for r in records])
        evidence = read_study_folder(study)
        metrics = tables.main_metrics(evidence)
        assert metrics[2:4] == ["calibration cfm", "calibration cfm_temperature_1"]
        assert "humaneval greedy_empty" not in metrics
        plain, other = [found for m in metrics[2:4] if (found := tables.summary_of(evidence.rows[1], m)) is not None]
        assert other.value == pytest.approx(3 * plain.value)

    def test_languages_stand_apart_from_their_mean(self, study: Path) -> None:
        """A task of several sets of problems: each set weighs the same, and only the mean is in the main table."""
        entry = {"value": 0.25, "standard_error": 0.1, "count": 3}
        parts = [{"name": "multipl-e-js"}, {"name": "multipl-e-rs"}, {"name": "multipl-e-go", "skipped": "no go"}]
        metrics = {"greedy_pass@1": entry, "multipl-e-js greedy_pass@1": entry}
        for place in (study / "evaluations").iterdir():
            change(place / "results.json", tasks={"multipl-e": {"metrics": metrics, "parts": parts, "settings": {}}})
            for language, passed in ("js", ["passed", "failed"]), ("rs", ["failed"]):
                rows = [{"task_id": f"{n}", "sample": 0, "status": status} for n, status in enumerate(passed)]
                write_jsonl(place / f"multipl-e-{language}.greedy.scores.samples.jsonl", rows)
        evidence = read_study_folder(study)
        assert tables.main_metrics(evidence) == ["multipl-e greedy_pass@1"]
        found = tables.summary_of(evidence.rows[0], "multipl-e greedy_pass@1")
        assert found is not None
        assert (found.value, found.items) == (pytest.approx((0.5 + 0.0) / 2), 3)


class TestVerdicts:
    def test_methods_are_compared_also_if_the_runner_up_is_of_the_same(self, tmp_path: Path) -> None:
        study = make_study(tmp_path, gammas=(0.0, 0.01), ebft=0.5, sft=1.0)
        first = report.write(str(study)).verdicts[0]
        assert first.startswith("cross-entropy, all tokens, on the test data: ebft (alpha 0, gamma 0) (0.5")
        assert "is better than sft (1.0" in first

    def test_one_seed_and_a_head_start_are_said(self, study: Path) -> None:
        warm = {"ebft": "sft"}
        each_row(study, models=lambda row: row["models"][:1], after=lambda row: warm.get(row["title"]))
        answer = next(v for v in report.write(str(study)).verdicts if "feature-matching" in v)
        assert "; with one training run each, this says nothing about training again. ebft started" in answer
        assert answer.endswith("ebft started from the final models of sft, so it had more training.")

    def test_without_a_test_it_is_validation_and_says_so(self, study: Path) -> None:
        each_row(study, models=lambda row: [{**model, "evaluation": None} for model in row["models"]])
        for run in (study / "runs").iterdir():
            records = (study / "evaluations" / run.name / "calibration.jsonl").read_text()
            (run / "validation-after.jsonl").write_text(records)
            ruler = {"validation": "v", "network": "other" if run.name.startswith("sft") else "n"}
            change(run / "results.json", after={}, ruler=ruler)
        found = report.write(str(study))
        assert "on validation data: ebft" in found.verdicts[0]
        assert any("it and ebft were validated differently (network other and n)" in n for n in found.notes)
        (row,) = [row for row in read_study_folder(study).rows if row.title == "sft"]
        assert not row.scores("validation cfm")
        assert len(row.scores("validation cross_entropy")) == 2


class TestWhatIsMissing:
    def test_a_run_that_failed_is_shown_with_its_error(self, study: Path) -> None:
        for seed in (0, 1):
            (study / "runs" / f"sft,seed={seed}" / "results.json").write_text('{"method": "sft"}')
        (study / "logs").mkdir()
        (study / "logs" / "sft,seed=0.log").write_text("$ ebft sft\nebft: the disk is full: runs/x\n")
        notes = report.write(str(study)).notes
        assert "sft, seed 0: failed after 20 steps: the disk is full: runs/x" in notes
        assert "sft, seed 1: not finished: 20 steps" in notes
        assert rows_of(study, "main")[1]["CE, all tokens"] == "missing"
        states = {(row["method"], row["seed"]): row["state"] for row in rows_of(study, "costs")}
        assert states["sft", "0"].startswith("failed after 20 steps")

    @pytest.mark.parametrize(
        ("file", "text", "words"),
        [
            ("runs/sft,seed=0/results.json", "{", ".* not valid JSON"),
            ("evaluations/sft,seed=0/results.json", "{", "its evaluation is not there"),
            (
                "evaluations/sft,seed=0/calibration.jsonl",
                '{"sequence": 0, "tokens": 1}\n',
                "its evaluation of calibration is broken: ValueError calibration.jsonl holds 1 of 30",
            ),
            ("logs/evaluate-sft,seed=0.log", "$ x\nebft: no\n", "its evaluation failed, and the numbers are of one"),
        ],
    )
    def test_what_is_broken_is_said(self, study: Path, file: str, text: str, words: str) -> None:
        (study / "logs").mkdir()
        (study / file).write_text(text)
        evidence = read_study_folder(study)
        (note,) = evidence.notes
        assert re.match(f"sft, seed 0: {words}", note)
        found = tables.summary_of(evidence.rows[1], "calibration cross_entropy")
        assert found is not None
        assert found.value == pytest.approx(1.0, abs=0.1)  # by the other seed

    def test_other_data_are_not_put_together(self, study: Path) -> None:
        place = study / "evaluations" / "ebft,seed=0" / "results.json"
        tasks = json.loads(place.read_text())["tasks"]
        tasks["calibration"] |= {"text": "other", "settings": {"seed": 0, "horizon": 4}}
        change(place, tasks=tasks)
        evidence = read_study_folder(study)
        (note,) = evidence.notes
        assert "calibration was measured differently than of base (horizon 4 and 8, text other and t)" in note
        (ebft,) = [row for row in evidence.rows if row.title == "ebft"]
        assert len(ebft.scores("calibration cfm")) == 1  # the other seed
        assert ["calibration" in model.results for model in ebft.models] == [False, True], "for the figures"
        assert len(ebft.scores("humaneval pass@1")) == 2

    def test_a_task_of_some_models_only(self, study: Path) -> None:
        for place in (study / "evaluations").iterdir():
            tasks = json.loads((place / "results.json").read_text())["tasks"]
            if place.name == "sft,seed=1":
                tasks["humaneval"] |= {"metrics": {}, "unscored": True, "skipped": "not scored yet"}
            elif place.name not in ("base", "ebft,seed=0"):
                del tasks["humaneval"]
            change(place / "results.json", tasks=tasks)
        without, unscored = read_study_folder(study).notes
        assert unscored.startswith(f"sft, seed 1: humaneval is not all scored yet: run `ebft score {study}`")
        assert without.startswith("sft, seed 0; ebft, seed 1; rlvr, seed 0; rlvr, seed 1: humaneval was measured on")

    def test_nothing_at_all_yet_and_no_study(self, study: Path, capsys: Any) -> None:
        each_row(study, models=lambda row: [])
        assert "waits for a search to choose its settings" in report.write(str(study)).notes[0]
        for arguments in ([str(study / "runs")], [str(study), "--output", str(study / "runs")]):
            assert cli.main(["study", "report", *arguments]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "holds no " in line


def hostile(text: str) -> tables.Table:
    return tables.Table("t", f"title {text}", [{text: text, "n": 1.0}], text)


def test_hostile_names_in_latex_markdown_and_csv() -> None:
    comment, found = hostile(r"a_b 50% & $x$ #1 {y} \input{secret} ~^ <b>" + "\nline").as_latex().split("\n", 1)
    assert comment.startswith("% title a_b")
    assert r"a\_b 50\% \& \$x\$ \#1 \{y\} \textbackslash input\{secret\}" in found
    assert not re.search(r"(?<!\\)[$%#_]|\\input", found)
    assert "\n{}[x] & 1" in hostile("[x]").as_latex(), "a row does not begin with an option"
    found = hostile("a|b <script> `x` *y*\nnew line & [link](http://x)").as_markdown()
    assert r"a\|b \<script\> \`x\` \*y\* new line &amp; \[link\](http://x)" in found
    for text in ("=1+1", "@x", "-cmd"):
        assert hostile(text).as_csv().splitlines() == [f"'{text},n", f"'{text},1.0"]
    assert hostile("-0.5 to 1").as_csv().splitlines()[1] == "-0.5 to 1,1.0"
    assert NASTY in hostile(NASTY).as_csv().replace('""', '"')
