"""`ebft study run` and `ebft sweep` through the command: with a stand-in for the runs, and once with real ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ebft import cli
from ebft.config.recipe import read_values
from ebft.runtime.files import locked
from ebft.studies import launchers
from ebft.studies.jobs import Plan
from ebft.studies.study_file import read_study
from tests.baselines.runs import SETTINGS as REAL
from tests.studies.commands import attempts, run, sweep, write_study
from tests.studies.conftest import STUB

pytestmark = pytest.mark.usefixtures("offline")


def started(out: Path) -> dict[str, int]:
    """How often each run was started."""
    runs = [place for place in (out / "runs").iterdir() if (place / "attempts.jsonl").exists()]
    return {place.name: sum("start" in a for a in attempts(place)) for place in runs}


@pytest.mark.usefixtures("stub")
class TestOrder:
    def test_a_search_chooses_on_validation_and_the_others_follow(self, tmp_path: Path, capsys: Any) -> None:
        """The stand-in's cross-entropy is its learning rate, so the smallest is chosen. A model is evaluated before the
        next one is trained."""
        methods = {"sft": {"search": {"learning_rate": [0.5, 0.25]}}, "warm": {"method": "ebft", "after": "sft"}}
        assert run(write_study(tmp_path, methods), "--jobs", 1) == 0
        said = capsys.readouterr().err.splitlines()
        assert said[0] == "jobs: 2 training runs and 1 evaluations, 0 of them finished; 7 more wait for a search"
        finals = ["sft,learning_rate=0.25,seed=0", "sft,learning_rate=0.25,seed=1", "warm,seed=0", "warm,seed=1"]
        one_by_one = [word for name in finals for word in (name, f"evaluate-{name}")]
        began = [line.split(": ")[0] for line in said if ": started" in line]
        assert began == ["evaluate-base", "sft,learning_rate=0.5,seed=0", *one_by_one]
        out = tmp_path / "out"
        recipe = read_values(out / "recipes" / "warm,seed=1.yaml")
        assert recipe["model"] == str(out / "runs" / "sft,learning_rate=0.25,seed=1")
        assert recipe["feature_model"] == "some/model"
        manifest = json.loads((out / "study.json").read_text())
        base, sft, warm = manifest["rows"]
        assert (base["title"], base["models"][0]["evaluation"]) == ("base", "evaluations/base")
        assert sft["chosen"] == {"learning_rate": 0.25}
        assert (warm["after"], warm["kind"]) == ("sft", "ebft")
        assert warm["models"][1]["evaluation"] == "evaluations/warm,seed=1"
        assert manifest["jobs"]["warm,seed=0"]["command"].startswith("ebft train --config")

    def test_a_search_seed_of_its_own_and_a_candidate_that_diverges(self, tmp_path: Path) -> None:
        methods = {"sft": {"search": {"learning_rate": [1, 2]}, "settings": {"run_name": "diverge"}}}
        file = write_study(tmp_path, methods, search_seed=9)
        assert Plan(read_study(file)).unknown == 4  # two seeds and their tests
        assert run(file, "--jobs", 2) == 1
        expected = {"sft,learning_rate=1,seed=0", "sft,learning_rate=1,seed=1", "sft,learning_rate=1,seed=9"}
        assert {*started(tmp_path / "out")} == expected | {"sft,learning_rate=2,seed=9"}

    def test_features_of_another_method_and_a_grid_for_all(self, tmp_path: Path) -> None:
        methods = {"first": {"method": "sft", "seeds": [0]}, "ebft": {"after": "first"}}
        plan = Plan(read_study(write_study(tmp_path, methods, settings={"feature_model": "first"})))
        first, ebft = (
            next(run.given for run in plan.runs if run.name == name) for name in ("first,seed=0", "ebft,seed=1")
        )
        assert "feature_model" not in first
        assert ebft["feature_model"] == ebft["model"] == first["output_dir"]
        methods = {"sft": {"seeds": [0]}, "ebft": {"after": "sft", "seeds": [0]}}
        plan = Plan(read_study(write_study(tmp_path, methods, grid={"model": ["a/small", "b/large"]})))
        large = next(run.given for run in plan.runs if run.name == "ebft,model=large,seed=0")
        assert large["model"].endswith("sft,model=large,seed=0")
        assert large["feature_model"] == "b/large"
        assert [job.name for job in plan.evaluations][:2] == ["evaluate-base,model=small", "evaluate-base,model=large"]


@pytest.mark.usefixtures("stub")
class TestAgain:
    def test_what_is_done_is_skipped_and_a_failure_stops_nobody_else(self, tmp_path: Path, capsys: Any) -> None:
        methods = {
            "sft": {"settings": {"run_name": "fail"}},
            "child": {"method": "ebft", "after": "sft"},
            "ebft": {"settings": {"run_name": "once"}},
        }
        file = write_study(tmp_path, methods, seeds=[0])
        assert run(file, "--jobs", 2) == 1
        printed = capsys.readouterr()
        assert "2 jobs failed; the same command tries again" in printed.err
        assert "sft,seed=0: failed: this point fails" in printed.out
        assert run(file, "--jobs", 2) == 1
        assert started(tmp_path / "out") == {"sft,seed=0": 2, "ebft,seed=0": 2}
        states = {job.name: job.state for job in Plan(read_study(file)).jobs}
        assert (states["child,seed=0"], states["evaluate-ebft,seed=0"]) == ("to do", "finished")
        assert len(attempts(tmp_path / "out" / "evaluations" / "base")) == 1

    def test_what_has_changed_is_made_again_and_a_copy_is_as_finished(self, tmp_path: Path) -> None:
        methods: dict[str, Any] = {"sft": {}, "warm": {"method": "ebft", "after": "sft"}}
        other = {"evaluation": {"tasks": ["humaneval"], "limit": 4}}
        longer = {**other, "settings": {"max_steps": 9}}
        for changes, runs, evaluations in ({}, 1, 1), ({}, 1, 1), (other, 1, 2), (longer, 2, 3):
            assert run(write_study(tmp_path, methods, seeds=[0], **changes)) == 0
            assert started(tmp_path / "out") == {"sft,seed=0": runs, "warm,seed=0": runs}
            assert len(attempts(tmp_path / "out" / "evaluations" / "sft,seed=0")) == evaluations
        shutil.copytree(tmp_path / "out", copied := tmp_path / "elsewhere" / "copy")
        for result in (copied / "evaluations").rglob("*"):
            os.utime(result, (0, 0))
        longer |= {"seeds": [0], "output_dir": str(copied)}
        assert not Plan(read_study(write_study(tmp_path, methods, **longer))).unfinished
        methods["sft"] = {"settings": {"max_steps": 7}}
        plan = Plan(read_study(write_study(tmp_path, methods, **longer)))
        assert [job.name for job in plan.unfinished] == ["sft,seed=0"]


@pytest.mark.usefixtures("stub")
def test_points_of_a_sweep_are_skipped_resumed_and_tried_again(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = ("--command", "sft", "--set", "learning_rate=1,2", "--set", "run_name=good,once,fail", "--jobs", 3)
    assert sweep(recipe, *arguments, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], len(lines)) == ("learning_rate=1,run_name=good: to do", 7)
    assert not (tmp_path / "out").exists()
    assert sweep(recipe, *arguments) == 1
    assert "4 jobs failed; the same command tries again" in capsys.readouterr().err
    assert sweep(recipe, *arguments) == 1
    printed = capsys.readouterr()
    assert "6 training runs and 0 evaluations, 2 of them finished" in printed.err
    assert "learning_rate=1,run_name=fail: failed (exit code 2): this point fails" in printed.err
    states = [line.split()[1] for line in printed.out.splitlines() if line.startswith("learning_rate=")]
    assert states[:6] == ["finished", "finished", "failed:"] * 2
    assert "1.0000 ± 0.2500" in printed.out
    assert (tmp_path / "out" / "compare" / "compare.html").exists()
    assert sweep(recipe, *arguments, "--max_steps", 7) == 1  # a finished point whose recipe has changed is resumed
    of_good = attempts(tmp_path / "out" / "learning_rate=1,run_name=good")
    assert [attempt.get("command", "end") for attempt in of_good] == ["sft", "end"] * 2
    with locked(tmp_path / "out" / "sweep.lock"):
        assert sweep(recipe, *arguments) == 2
    assert sweep(recipe, *arguments, "--per-gpu", 0) == sweep(recipe, *arguments, "--slurm", "time=1") == 2


def test_inputs_are_looked_at_before_anything_starts(
    tiny: Path, sums: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    """On another machine, what is missing is a warning."""
    real = {**REAL, "model": str(tiny), "dataset": ["one.jsonl"], "validation_dataset": str(sums), "max_steps": 1}
    good = {"dataset": [str(sums)]}
    for settings, words in (
        ({**good, "model": "smollm2-153m"}, "did you mean 'smollm2-135m'"),
        ({}, "ebft: one.jsonl: no such file"),
        (good, "evaluation: three.jsonl: no such file"),
    ):
        methods = {"sft": {"settings": good}, "ebft": {"settings": settings}}
        file = write_study(tmp_path, methods, settings=real, evaluation={"tasks": ["mbpp"], "mbpp": "three.jsonl"})
        assert run(file, "--dry-run") == run(file) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    monkeypatch.setenv("PATH", "/nonexistent")  # no sbatch here
    assert run(file, "--launcher", "slurm", "--dry-run") == 0
    assert "not on this machine: evaluation: three.jsonl: no such file" in capsys.readouterr().err
    assert (tmp_path / "out" / "study.sbatch").exists()
    # What was run is not replaced: the settings of a run that has begun cannot change.
    monkeypatch.setattr(launchers, "ENTRY", (str(STUB),))
    two = {"evaluation": False, "output_dir": str(tmp_path / "two")}
    assert run(write_study(tmp_path, {"sft": {}}, settings={**real, "dataset": [str(sums)]}, **two)) == 0
    other = {**real, "dataset": [str(sums)], "learning_rate": 2e-4}
    assert run(write_study(tmp_path, {"sft": {}}, settings=other, **two)) == 2
    assert "holds a run with learning_rate=0.001, not 0.0002" in capsys.readouterr().err


def test_real_runs_and_their_report(tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**REAL, "model": str(tiny), "dataset": [str(sums)], "max_steps": 2, "test_split": 8}
    evaluation = {"sequences": 4, "profile_lengths": [1, 4], "profile_stride": 8, "also_at_temperatures": [0.3]}
    file = write_study(tmp_path, {"ebft": {}}, seeds=[0], settings=settings, evaluation=evaluation)
    assert run(file, "--jobs", 2) == 0
    out = tmp_path / "out"
    assert not Plan(read_study(file)).unfinished
    data = json.loads((out / "runs" / "ebft,seed=0" / "data.json").read_text())
    assert data["documents"] == round(0.8 * (36 - 8))  # neither those of validation nor those of the test
    results = json.loads((out / "evaluations" / "base" / "results.json").read_text())["tasks"]["calibration"]
    assert (results["settings"]["test_split"], "cfm_temperature_0.3" in results["metrics"]) == (8, True)
    capsys.readouterr()
    assert cli.main(["study", "report", str(out)]) == 0
    assert "Which has the lowest feature-matching loss on the test data?" in capsys.readouterr().out
    assert (out / "report" / "report.html").exists()
