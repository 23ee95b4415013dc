"""`ebft study run` through the command: with a stand-in for the runs, and once with real ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft import cli
from ebft.runtime.files import locked
from ebft.studies import study_estimate
from ebft.studies.study_estimate import Estimate
from ebft.studies.study_file import read_study
from ebft.studies.study_jobs import StudyPlan
from tests.baselines.runs import SETTINGS as REAL
from tests.studies.commands import attempts

pytestmark = pytest.mark.usefixtures("offline")
EVALUATION = {"tasks": ["humaneval"], "limit": 3}


@pytest.fixture
def study(tmp_path: Path) -> Any:
    def write(methods: dict[str, Any], **changes: Any) -> Path:
        settings = {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True}
        given = {"output_dir": str(tmp_path / "out"), "seeds": [0, 1], "evaluation": EVALUATION, **changes}
        given["settings"] = {**settings, **changes.get("settings", {})}
        file = tmp_path / "study.yaml"
        file.write_text(yaml.safe_dump({**given, "methods": methods}, sort_keys=False))
        return file

    return write


def run(file: Path, *arguments: object) -> int:
    return cli.main(["study", "run", str(file), *map(str, arguments)])


def started(out: Path) -> dict[str, int]:
    """How often each run was started."""
    runs = [place for place in (out / "runs").iterdir() if (place / "attempts.jsonl").exists()]
    return {place.name: sum("start" in a for a in attempts(place)) for place in runs}


@pytest.mark.usefixtures("stub")
class TestOrder:
    def test_a_search_chooses_on_validation_and_the_others_follow(self, study: Any, tmp_path: Path) -> None:
        """The stand-in's cross-entropy is its learning rate, so the smallest is chosen."""
        file = study({"sft": {"search": {"learning_rate": [0.5, 0.25]}}, "warm": {"method": "ebft", "after": "sft"}})
        assert run(file, "--jobs", 3) == 0
        assert set(started(tmp_path / "out")) == {
            "sft,learning_rate=0.5,seed=0",
            "sft,learning_rate=0.25,seed=0",
            "sft,learning_rate=0.25,seed=1",
            "warm,seed=0",
            "warm,seed=1",
        }
        recipe = yaml.safe_load((tmp_path / "out" / "recipes" / "warm,seed=1.yaml").read_text())
        assert recipe["model"] == str(tmp_path / "out" / "runs" / "sft,learning_rate=0.25,seed=1")
        assert recipe["feature_model"] == "some/model"
        evaluated = {place.name for place in (tmp_path / "out" / "evaluations").iterdir()}
        assert evaluated == {
            "base",
            "sft,learning_rate=0.25,seed=0",
            "sft,learning_rate=0.25,seed=1",
            "warm,seed=0",
            "warm,seed=1",
        }
        manifest = json.loads((tmp_path / "out" / "study.json").read_text())
        rows = {row["name"]: row for row in manifest["rows"]}
        assert rows["sft"]["chosen"] == {"learning_rate": 0.25}
        assert manifest["jobs"]["warm,seed=0"]["state"] == "finished"
        assert manifest["jobs"]["warm,seed=0"]["command"].startswith("ebft train --config")
        assert manifest["machine"]["python"]

    def test_a_model_is_evaluated_before_the_next_one_is_trained(
        self, study: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """So that a study that is stopped has some whole results."""
        with caplog.at_level("INFO"):
            assert run(study({"sft": {}}), "--jobs", 1) == 0
        began = [record.message.split(": ")[0] for record in caplog.records if ": started" in record.message]
        assert began == ["evaluate base", "sft,seed=0", "evaluate sft,seed=0", "sft,seed=1", "evaluate sft,seed=1"]

    def test_a_search_seed_of_its_own(self, study: Any, tmp_path: Path) -> None:
        assert run(study({"sft": {"search": {"learning_rate": [0.5, 0.25]}}}, search_seed=9), "--jobs", 2) == 0
        seeds = sorted(name.rpartition("seed=")[2] for name in started(tmp_path / "out"))
        assert seeds == ["0", "1", "9", "9"]

    def test_features_of_another_method(self, study: Any, tmp_path: Path) -> None:
        methods = {"first": {"method": "sft", "seeds": [0]}, "ebft": {"after": "first"}}
        assert run(study(methods, settings={"feature_model": "first"}), "--jobs", 2) == 0
        recipes = {p.stem: yaml.safe_load(p.read_text()) for p in (tmp_path / "out" / "recipes").iterdir()}
        assert "feature_model" not in recipes["first,seed=0"]
        assert recipes["ebft,seed=1"]["feature_model"] == str(tmp_path / "out" / "runs" / "first,seed=0")
        assert recipes["ebft,seed=1"]["model"] == str(tmp_path / "out" / "runs" / "first,seed=0")

    def test_a_grid_for_all_methods(self, study: Any, tmp_path: Path) -> None:
        methods = {"sft": {"seeds": [0]}, "ebft": {"after": "sft", "seeds": [0]}}
        assert run(study(methods, grid={"model": ["a/small", "b/large"]}), "--jobs", 2) == 0
        recipe = yaml.safe_load((tmp_path / "out" / "recipes" / "ebft,model=large,seed=0.yaml").read_text())
        assert recipe["model"].endswith("sft,model=large,seed=0")
        assert recipe["feature_model"] == "b/large"
        assert (tmp_path / "out" / "evaluations" / "base,model=small").is_dir()


@pytest.mark.usefixtures("stub")
class TestAgain:
    def test_what_is_done_is_skipped_and_a_failure_stops_nobody_else(
        self, study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        methods = {
            "sft": {"settings": {"run_name": "fail"}},
            "child": {"method": "ebft", "after": "sft"},
            "ebft": {"settings": {"run_name": "once"}},
        }
        file = study(methods, seeds=[0])
        assert run(file, "--jobs", 2) == 1
        printed = capsys.readouterr()
        assert "2 jobs failed; the same command tries them again" in printed.err
        assert "failed: this point fails" in printed.out
        assert "child,seed=0" in printed.out
        assert run(file, "--jobs", 2) == 1
        assert started(tmp_path / "out") == {"sft,seed=0": 2, "ebft,seed=0": 2}
        manifest = json.loads((tmp_path / "out" / "study.json").read_text())
        assert manifest["jobs"]["sft,seed=0"]["state"] == "failed: this point fails"
        assert manifest["jobs"]["child,seed=0"]["state"] == "waiting"
        assert manifest["jobs"]["evaluate ebft,seed=0"]["state"] == "finished"
        assert len((tmp_path / "out" / "evaluations" / "base" / "attempts.jsonl").read_text().splitlines()) == 1

    def test_a_candidate_that_diverges_is_not_chosen(self, study: Any, tmp_path: Path) -> None:
        methods = {"sft": {"search": {"learning_rate": [1, 2]}, "settings": {"run_name": "diverge"}}}
        assert run(study(methods), "--jobs", 2) == 1
        assert "sft,learning_rate=1,seed=1" in started(tmp_path / "out")

    def test_another_evaluation_is_made_again_and_runs_are_not(self, study: Any, tmp_path: Path) -> None:
        assert run(study({"sft": {}}, seeds=[0])) == 0
        assert run(study({"sft": {}}, seeds=[0], evaluation={**EVALUATION, "limit": 4})) == 0
        assert started(tmp_path / "out") == {"sft,seed=0": 1}
        place = tmp_path / "out" / "evaluations" / "sft,seed=0" / "attempts.jsonl"
        assert len(place.read_text().splitlines()) == 2

    def test_a_model_that_was_trained_further_is_evaluated_again(self, study: Any, tmp_path: Path) -> None:
        assert run(study({"sft": {}}, seeds=[0])) == 0
        place = tmp_path / "out" / "evaluations" / "sft,seed=0"
        (place / "of-the-old-model").touch()
        assert run(study({"sft": {}}, seeds=[0], settings={"max_steps": 9})) == 0
        assert started(tmp_path / "out") == {"sft,seed=0": 2}
        assert not (place / "of-the-old-model").exists()
        assert (place / "results.json").exists()

    def test_a_copy_of_a_study_is_as_finished_as_the_study(self, study: Any, tmp_path: Path) -> None:
        """Whatever the times of its files are by then: here, runs look newer than what was measured of them."""
        file = study({"sft": {}}, seeds=[0])
        assert run(file) == 0
        out = tmp_path / "out"
        for result in (out / "evaluations").rglob("*"):
            os.utime(result, (0, 0))
        assert run(file) == 0
        assert len((out / "evaluations" / "sft,seed=0" / "attempts.jsonl").read_text().splitlines()) == 1

    def test_what_was_only_generated_is_scored_without_its_model(self, study: Any, tmp_path: Path) -> None:
        later = {**EVALUATION, "score": False}
        assert run(study({"sft": {}}, seeds=[0], evaluation=later)) == 0
        for place in (tmp_path / "out" / "evaluations").iterdir():
            results = json.loads((place / "results.json").read_text())
            results["tasks"]["humaneval"]["unscored"] = True
            (place / "results.json").write_text(json.dumps(results))

        def evaluation_of(file: Path) -> Any:
            return next(job for job in StudyPlan(read_study(str(file))).jobs if job.name == "evaluate sft,seed=0")

        evaluation = evaluation_of(study({"sft": {}}, seeds=[0]))
        assert not evaluation.finished
        assert evaluation.arguments == ["score", str((tmp_path / "out" / "evaluations" / "sft,seed=0").resolve())]
        assert evaluation_of(study({"sft": {}}, seeds=[0], evaluation=later)).finished

    @pytest.mark.parametrize("place", ["elsewhere/copy", "elsewhere/out"])
    def test_a_copy_elsewhere_is_finished_too(self, study: Any, tmp_path: Path, place: str) -> None:
        """Also where one run starts from another of the study: a path that moves with it."""
        methods = {"sft": {}, "warm": {"method": "ebft", "after": "sft"}}
        assert run(study(methods, seeds=[0])) == 0
        copied = tmp_path / place
        shutil.copytree(tmp_path / "out", copied)
        assert run(study(methods, seeds=[0], output_dir=str(copied))) == 0
        assert started(copied) == {"sft,seed=0": 1, "warm,seed=0": 1}
        assert len((copied / "evaluations" / "warm,seed=0" / "attempts.jsonl").read_text().splitlines()) == 1
        assert run(study({**methods, "sft": {"settings": {"max_steps": 7}}}, seeds=[0], output_dir=str(copied))) == 0
        assert started(copied)["sft,seed=0"] == 2

    def test_two_at_once_do_not_meet(self, study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = study({"sft": {}}, seeds=[0])
        assert run(file) == 0
        with locked(tmp_path / "out" / "study.lock"):
            assert run(file) == 2
        assert f"out is in use by process {os.getpid()} on " in capsys.readouterr().err
        assert not (tmp_path / "out" / "study.lock").exists()

    def test_a_folder_that_is_not_ours(self, study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("precious")
        assert run(study({"sft": {}})) == 2
        assert "is not empty and holds no study" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "run"], "the following arguments are required: STUDY"),
        (["study", "rnu"], "there is run, report; did you mean 'run'"),
        (["study", "run", "nothing.yaml"], "nothing.yaml: no such study: neither a file nor one that"),
        (["study", "run", "nope"], "comes with ebft; there are studies/paper/..., studies/small/..."),
        (["study", "run", "qa_code"], "did you mean 'studies/paper/qa_code'?"),
        (["study", "run", "x", "--per-gpu", "0"], "--per-gpu 0 must be at least 1"),
        (["study", "report", "nothing"], "nothing: no such folder; give the output folder of `ebft study run`"),
    ],
)
def test_errors_are_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(arguments)
    except SystemExit as left:
        code = int(left.code or 0)
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.usefixtures("stub")
def test_dry_run_starts_nothing(
    study: Any, tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**REAL, "model": str(tiny), "dataset": [str(sums)]}
    methods = {"sft": {"search": {"learning_rate": [1, 2]}}, "ebft": {"after": "sft", "grid": {"gamma": [0, 1]}}}
    assert run(study(methods, settings=settings), "--dry-run", "--jobs", 2) == 0
    printed = capsys.readouterr().out
    assert "7 training runs (0 finished) and 7 evaluations, 2 at once" in printed
    assert "measured now with a matrix product" in printed
    assert "not known" not in printed
    assert not (tmp_path / "out").exists()


def test_the_estimate_of_a_grid_is_that_of_its_points(study: Any, tiny: Path, sums: Path) -> None:
    settings = {**REAL, "model": str(tiny), "dataset": [str(sums)]}

    def found(grid: dict[str, Any], **more: Any) -> Estimate:
        file = study({"ebft": {"grid": grid}}, settings={**settings, **more})
        read = read_study(str(file))
        plan = StudyPlan(read)
        return Estimate.of_all([study_estimate._estimate(read, plan, row, 5e8) for row in read.rows])

    points = [found({"gamma": [0]}, samples=n) for n in (2, 8)]
    together = found({"samples": [2, 8]})
    assert together.runs == sum(point.runs for point in points)
    assert together.seconds == pytest.approx(sum(point.seconds for point in points))
    assert together.disk == pytest.approx(sum(point.disk for point in points))
    assert together.memory == max(point.memory for point in points) > min(point.memory for point in points)


@pytest.mark.usefixtures("stub")
def test_dry_run_says_what_it_does_not_know(study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(study({"ebft": {}}, settings={"model": "./nowhere"}), "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "2 training runs" in printed
    assert "not known: ebft: model='./nowhere': no such folder" in printed
    assert "at least 0 s of training to do" in printed


def test_real_runs_and_their_report(
    study: Any, tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**REAL, "model": str(tiny), "dataset": [str(sums)], "max_steps": 2, "test_split": 8}
    evaluation = {"sequences": 4, "profile_lengths": [1, 4], "profile_stride": 8}
    file = study({"ebft": {}}, seeds=[0], settings=settings, evaluation=evaluation)
    assert run(file, "--jobs", 2) == 0
    plan = StudyPlan(read_study(file))
    assert all(job.finished for job in plan.jobs)
    assert len(plan.jobs) == 1 + 2
    data = json.loads((tmp_path / "out" / "runs" / "ebft,seed=0" / "data.json").read_text())
    results = json.loads((tmp_path / "out" / "evaluations" / "base" / "results.json").read_text())
    assert results["tasks"]["calibration"]["settings"]["test_split"] == 8
    assert data["documents"] == round(0.8 * (36 - 8))  # neither those of validation nor those of the test
    capsys.readouterr()
    assert cli.main(["study", "report", str(tmp_path / "out")]) == 0
    assert "Which has the lowest feature-matching loss on the test data?" in capsys.readouterr().out
    assert (tmp_path / "out" / "report" / "report.html").exists()

    evaluation["also_at_temperatures"] = "0.3,1.0"  # tests whose options have changed are made again
    file = study({"ebft": {}}, seeds=[0], settings=settings, evaluation=evaluation)
    assert run(file, "--jobs", 1, "--reuse-processes") == 0
    results = json.loads((tmp_path / "out" / "evaluations" / "base" / "results.json").read_text())
    assert {"cfm_temperature_0.3", "cfm_temperature_1"} < results["tasks"]["calibration"]["metrics"].keys()
