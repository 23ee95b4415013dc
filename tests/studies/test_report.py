"""`ebft study report` on a study written by hand, `ebft compare` on runs written by hand: all answers are known."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.runtime.files import read_jsonl
from ebft.studies import figures, report, tables
from ebft.studies.evidence import read_runs, read_study_folder
from ebft.studies.report import Report
from tests.imports import imports_torch
from tests.studies.made_study import NASTY, make_run, make_study, write_jsonl


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


@pytest.mark.pictures
def test_a_report(study: Path) -> None:
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


def test_the_loss_at_other_temperatures_and_the_mean_of_languages(study: Path) -> None:
    """They stand beside the loss at the usual one; a set of problems weighs the same however many these are, and only
    the mean of all sets is in the main table, shares of bad answers are not."""
    entry = {"value": 0.25, "standard_error": 0.1, "count": 3}
    place = study / "evaluations" / "base"
    tasks = json.loads((place / "results.json").read_text())["tasks"]
    tasks["calibration"]["metrics"]["cfm_temperature_1"] = entry
    parts = [{"name": "multipl-e-js"}, {"name": "multipl-e-rs"}, {"name": "multipl-e-go", "skipped": "no go"}]
    metrics = dict.fromkeys(("greedy_pass@1", "multipl-e-js greedy_pass@1", "greedy_empty"), entry)
    change(place / "results.json", tasks={**tasks, "multipl-e": {"metrics": metrics, "parts": parts}})
    records = read_jsonl(place / "calibration.jsonl")
    write_jsonl(place / "calibration.jsonl", [{**r, "cfm_temperature_1": 3 * r["cfm"]} for r in records])
    for language, passed in ("js", ["passed", "failed"]), ("rs", ["failed"]):
        rows = [{"task_id": f"{n}", "sample": 0, "status": status} for n, status in enumerate(passed)]
        write_jsonl(place / f"multipl-e-{language}.greedy.scores.samples.jsonl", rows)
    evidence = read_study_folder(study)
    found: Any = {name: tables.summary_of(evidence.rows[0], name) for name in tables.main_metrics(evidence)}
    names = ["cfm", "cfm_temperature_1", "humaneval greedy_pass@1", "humaneval pass@1", "humaneval pass@4"]
    assert [name.removeprefix("calibration ") for name in found][2:] == [*names, "multipl-e greedy_pass@1"]
    _, _, plain, other, *_, passed = found.values()
    assert other.value == pytest.approx(3 * plain.value)
    assert (passed.value, passed.items) == (pytest.approx((0.5 + 0.0) / 2), 3)


def test_methods_are_compared_also_if_the_runner_up_is_of_the_same(tmp_path: Path) -> None:
    study = make_study(tmp_path, gammas=(0.0, 0.01), ebft=0.5, sft=1.0)
    (first, *_) = tables.rankings(read_study_folder(study), ["calibration cross_entropy"])
    assert (first.mine.title, first.other.title, first.reading) == ("ebft (alpha 0, gamma 0)", "sft", "better")


def test_one_seed_a_head_start_and_no_test_are_said(study: Path) -> None:
    each_row(study, models=lambda row: row["models"][:1], after=lambda row: {"ebft": "sft"}.get(row["title"]))
    (answer,) = (v for v in report.write(str(study)).verdicts if v.startswith("feature-matching loss"))
    end = " ebft started from the final models of sft, so it had more training."
    assert answer.endswith(f"; with one training run each, this says nothing about training again.{end}")
    # Without evaluations it is validation.
    each_row(study, models=lambda row: [{**model, "evaluation": None} for model in row["models"]])
    first, *_ = report.write(str(study)).verdicts
    assert first.startswith("cross-entropy, all tokens, on validation data: not decided between ebft (")


# ---- what is missing -------------------------------------------------------------------------------------------------


def test_runs_and_evaluations_that_failed_are_shown_and_left_out(study: Path) -> None:
    for seed in (0, 1):
        file = study / "runs" / f"sft,seed={seed}" / "results.json"
        file.write_text(file.read_text().replace('"steps": 20, ', ""))
    (study / "evaluations" / "ebft,seed=0" / "results.json").write_text("{")
    records = study / "evaluations" / "ebft,seed=1" / "calibration.jsonl"
    records.write_text(records.read_text().partition("\n")[0] + "\n")
    for name in ("sft,seed=0", "evaluate-rlvr,seed=0"):
        (study / "logs").mkdir(exist_ok=True)
        (study / "logs" / f"{name}.log").write_text("$ ebft x\nebft: the disk is full: runs/x\n")
    assert report.write(str(study)).notes == [
        "sft, seed 0: failed after 20 steps: the disk is full: runs/x",
        "sft, seed 1: not finished: 20 steps",
        "ebft, seed 0: its evaluation is not there yet",
        "rlvr, seed 0: its evaluation failed, and the numbers are of one before: the disk is full: runs/x",
    ]
    _, sft, ebft, _ = rows_of(study, "main")
    assert sft["CE, all tokens"] == "missing"
    assert float(ebft["CE, all tokens"]) == 0.5, "while it is measured again, what its results say"
    states = {(row["method"], row["seed"]): row["state"] for row in rows_of(study, "costs")}
    assert states["sft", "0"].startswith("failed after 20 steps")


def test_other_data_are_not_put_together(study: Path) -> None:
    for place in (study / "evaluations").iterdir():
        tasks = json.loads((place / "results.json").read_text())["tasks"]
        if place.name == "ebft,seed=0":
            tasks["calibration"] |= {"text": "other", "settings": {"seed": 0, "horizon": 4}}
        elif place.name == "sft,seed=1":
            tasks["humaneval"] |= {"metrics": {}, "unscored": True, "skipped": "not scored yet"}
        elif place.name != "base":
            del tasks["humaneval"]
        change(place / "results.json", tasks=tasks)
    evidence = read_study_folder(study)
    without, unscored, other = evidence.notes
    assert without.startswith("sft, seed 0; ebft, seed 1; rlvr, seed 0; rlvr, seed 1: humaneval was measured on")
    assert unscored.startswith(f"sft, seed 1: humaneval is not all scored yet: run `ebft score {study}`")
    assert "calibration was measured differently than of base (horizon 4 and 8, text other and t)" in other
    (ebft,) = [row for row in evidence.rows if row.title == "ebft"]
    assert len(ebft.scores("calibration cfm")) == 1  # the other seed
    assert ["calibration" in model.results for model in ebft.models] == [False, True], "for the figures"
    assert len(ebft.scores("humaneval pass@1")) == 1


def test_nothing_at_all_yet_and_no_study(study: Path, capsys: Any) -> None:
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


# ---- ebft compare ----------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    one = make_run(tmp_path / "one", [1.3, 1.1, 1.2])
    two = make_run(tmp_path / "two", [1.3, 1.25], "sft", finished=False)
    with (two / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "eval_cf')  # the line that a running run is writing
    return [str(one), str(two)]


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
    for steps, shown in (9, []), (-1, [["num_train_epochs", "3", "4"]]):  # epochs decide nothing beside steps
        for epochs, run in zip((3, 4), runs, strict=True):
            (Path(run) / "resolved.json").write_text(json.dumps({"max_steps": steps, "num_train_epochs": epochs}))
        assert rows(compared(tmp_path, *runs), "settings") == shown
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
    assert {"ebft's loss (training)", "sft's loss (training)"} <= panels(*runs).keys(), "they are different quantities"
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
