"""`ebft study run` and `ebft sweep` through the command: with stand-ins for the runs and for Slurm's commands, and once
with real runs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ebft import cli
from ebft.config.recipe import read_values
from ebft.runtime.files import locked
from ebft.studies import figures, launchers
from ebft.studies.study import Job, Plan, read_study
from tests.baselines.runs import SETTINGS as REAL
from tests.sandbox.sandboxed import wait_for
from tests.studies.conftest import attempts, run, sweep, write_study

pytestmark = pytest.mark.usefixtures("offline")
SLURM = ("--launcher", "slurm")


def started(out: Path) -> dict[str, int]:
    """How often each run was started."""
    runs = [place for place in (out / "runs").iterdir() if (place / "attempts.jsonl").exists()]
    return {place.name: sum("start" in a for a in attempts(place)) for place in runs}


@pytest.mark.usefixtures("stub")
def test_a_search_chooses_on_validation_and_the_others_follow(tmp_path: Path, capsys: Any) -> None:
    """The stand-in's cross-entropy is its learning rate, so the smallest is chosen. A model is evaluated before the
    next one is trained."""
    methods = {"sft": {"search": {"learning_rate": [0.5, 0.25]}}, "warm": {"method": "ebft", "after": "sft"}}
    assert run(write_study(tmp_path, methods), "--jobs", 1) == 0
    said = capsys.readouterr().err.splitlines()
    jobs = "jobs: 2 training runs (2 of 5 epochs) and 1 evaluations, 0 of them finished; 7 more wait for a search"
    assert said[0] == jobs
    finals = ["sft,learning_rate=0.25,seed=0", "sft,learning_rate=0.25,seed=1", "warm,seed=0", "warm,seed=1"]
    one_by_one = [word for name in finals for word in (name, f"evaluate-{name}")]
    began = [line.split(": ")[0] for line in said if ": started" in line]
    assert began == ["evaluate-base", "sft,learning_rate=0.5,seed=0", *one_by_one]
    out = tmp_path / "out"
    recipe = read_values(out / "recipes" / "warm,seed=1.yaml")
    assert recipe["model"] == str(out / "runs" / "sft,learning_rate=0.25,seed=1")
    assert recipe["feature_model"] == "some/model"
    base, sft, warm = json.loads((out / "study.json").read_text())["rows"]
    assert (base["title"], base["models"][0]["evaluation"]) == ("base", "evaluations/base")
    assert (sft["chosen"], warm["after"], warm["kind"]) == ({"learning_rate": 0.25}, "sft", "ebft")
    assert warm["models"][1]["evaluation"] == "evaluations/warm,seed=1"


@pytest.mark.usefixtures("stub")
def test_a_search_seed_of_its_own_and_a_candidate_that_diverges(tmp_path: Path) -> None:
    methods = {"sft": {"search": {"learning_rate": [1, 2]}, "settings": {"run_name": "diverge"}}}
    file = write_study(tmp_path, methods, search_seed=9)
    assert Plan(read_study(file)).unknown == 4  # two seeds and their tests
    assert run(file, "--jobs", 2) == 1
    expected = {"sft,learning_rate=1,seed=0", "sft,learning_rate=1,seed=1", "sft,learning_rate=1,seed=9"}
    assert {*started(tmp_path / "out")} == expected | {"sft,learning_rate=2,seed=9"}


def test_features_of_another_method_and_a_grid_for_all(tmp_path: Path) -> None:
    methods = {"first": {"method": "sft", "seeds": [0]}, "ebft": {"after": "first"}}
    plan = Plan(read_study(write_study(tmp_path, methods, settings={"feature_model": "first"})))
    first, ebft = plan.runs[0].settings, plan.runs[2].settings
    assert "feature_model" not in first
    assert ebft["feature_model"] == ebft["model"] == first["output_dir"]
    methods = {"sft": {"seeds": [0]}, "ebft": {"after": "sft", "seeds": [0]}}
    plan = Plan(read_study(write_study(tmp_path, methods, grid={"model": ["a/small", "b/large"]})))
    large = plan.runs[3].settings
    assert large["model"].endswith("sft,model=large,seed=0")
    assert large["feature_model"] == "b/large"
    assert [job.name for job in plan.evaluations][:2] == ["evaluate-base,model=small", "evaluate-base,model=large"]


@pytest.mark.usefixtures("stub")
def test_what_is_done_is_skipped_and_a_failure_stops_nobody_else(tmp_path: Path, capsys: Any) -> None:
    failing = {"sft": {"settings": {"run_name": "fail"}}, "child": {"method": "ebft", "after": "sft"}}
    file = write_study(tmp_path, {**failing, "ebft": {"settings": {"run_name": "once"}}}, seeds=[0])
    assert [run(file, "--jobs", 2) for _ in range(2)] == [1, 1]
    printed = capsys.readouterr()
    assert "sft,seed=0: failed: this point fails" in printed.out
    assert "2 jobs failed; the same command tries again" in printed.err
    assert started(tmp_path / "out") == {"sft,seed=0": 2, "ebft,seed=0": 2}
    states = {job.name: job.state for job in Plan(read_study(file)).jobs}
    assert (states["child,seed=0"], states["evaluate-ebft,seed=0"]) == ("to do", "finished")
    assert len(attempts(tmp_path / "out" / "evaluations" / "base")) == 1


@pytest.mark.usefixtures("stub")
def test_what_has_changed_is_made_again_and_a_copy_is_as_finished(tmp_path: Path) -> None:
    methods: dict[str, Any] = {"sft": {}, "warm": {"method": "ebft", "after": "sft"}}
    other = {"evaluation": {"tasks": ["humaneval"], "limit": 4}}
    longer = {**other, "settings": {"max_steps": 9}}
    for changes, runs, evaluations in ({}, 1, 1), (other, 1, 2), (longer, 2, 3):
        assert run(write_study(tmp_path, methods, seeds=[0], **changes), "--jobs", 2) == 0
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


def test_inputs_are_looked_at_before_anything_starts(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    real = {**REAL, "model": str(tiny), "dataset": [str(sums)], "validation_dataset": str(sums), "max_steps": 1}
    evaluation = {"tasks": ["mbpp"], "mbpp": "three.jsonl"}
    for settings, words in (
        ({"model": "smollm2-153m"}, "did you mean 'smollm2-135m'"),
        ({}, "three.jsonl: no such file"),
    ):
        file = write_study(tmp_path, {"sft": {"settings": settings}}, settings=real, evaluation=evaluation)
        assert run(file, "--dry-run") == run(file) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("stub")
def test_a_sweep_has_one_point_at_a_time_on_each_gpu(
    recipe: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    arguments = ("--set", "learning_rate=1,2,3,4,5", "--command", "sft", "--use_cpu", "false")
    assert sweep(recipe, *arguments, "--dry-run") == 0
    assert capsys.readouterr().out.startswith("learning_rate=1: to do")
    out = tmp_path / "out"
    with locked(out / "sweep.lock"):
        assert sweep(recipe, *arguments) == sweep(recipe, *arguments, "--per-gpu", 0) == 2
    assert sweep(recipe, *arguments) == 0
    spans: dict[str, list[tuple[float, float]]] = {}
    for point in out.glob("learning_rate=*"):
        start, end = attempts(point)
        assert start["command"] == "sft"
        spans.setdefault(start["gpu"], []).append((start["start"], end["end"]))
    assert set(spans) == {"4", "6"}
    for on_one_gpu in spans.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(on_one_gpu)))
    assert (out / "compare" / "compare.html").exists()


@pytest.mark.usefixtures("stub")
def test_ctrl_c_stops_the_points_and_says_how_to_resume(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    runs = [tmp_path / "out" / f"run_name=wait,learning_rate={rate}" for rate in (1, 2)]

    def stop() -> None:
        wait_for(lambda: all((point / "attempts.jsonl").exists() for point in runs), 60)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    (stopping := threading.Thread(target=stop)).start()
    assert sweep(recipe, "--set", "run_name=wait", "--set", "learning_rate=1,2", "--jobs=2") == 130
    stopping.join()
    assert "stopped; the same command resumes from here" in capsys.readouterr().err
    assert all((point / "interrupted").exists() for point in runs)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch runs every task of an array at once, and notes other jobs in `later`; squeue says what is in `queue`."""
    folder, log = tmp_path / "bin", tmp_path / "cluster"
    folder.mkdir()
    log.mkdir()
    (folder / "sbatch").write_text(
        f"""#!/bin/bash
echo "$2" >> {log}/submitted
[ -e {log}/never ] && echo 4711 && exit
[ -e "$2" ] || {{ printf '%s\\n' "$@" > {log}/later; echo 4712; exit; }}
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$2")
for task in $(seq 0 "$last"); do (cd / && SLURM_ARRAY_TASK_ID=$task bash "$2" >> {log}/output 2>&1); done
echo "4711;cluster"
"""
    )
    (folder / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {log}/requeued\n')
    (folder / "squeue").write_text(f"#!/bin/bash\ncat {log}/queue 2>/dev/null\nexit 0\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


@pytest.mark.usefixtures("stub")
def test_an_array_job_runs_what_is_left(recipe: Path, tmp_path: Path, cluster: Path, capsys: Any) -> None:
    arguments = [*SLURM, "--set", "run_name=good,once", "--slurm", "partition=gpu", "--slurm", "no-requeue", "--jobs=3"]
    file = tmp_path / "out" / "sweep.sbatch"
    assert sweep(recipe, *arguments, "--dry-run") == 0
    assert f"written and not submitted: sbatch {file}" in capsys.readouterr().out
    assert not (cluster / "submitted").exists()
    assert sweep(recipe, *arguments) == 0
    assert "submitted as job 4711" in capsys.readouterr().err
    lines = file.read_text().splitlines()
    assert {"#SBATCH --array=0-1%3", "#SBATCH --partition=gpu", "#SBATCH --no-requeue"} <= set(lines)
    # The second time only the one that failed is in the array; a third time there is nothing to submit.
    assert sweep(recipe, *arguments) == sweep(recipe, *arguments) == 0
    assert "#SBATCH --array=0-0%3\n" in file.read_text()
    assert len((cluster / "submitted").read_text().splitlines()) == 2
    assert "run_name=once: finished\n" in capsys.readouterr().out

    # A task whose time is up goes back into the queue.
    assert sweep(recipe, *SLURM, "--set", "run_name=wait", "--dry-run") == 0
    variables = {**os.environ, "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0"}
    with subprocess.Popen(["bash", str(file)], env=variables, start_new_session=True) as process:
        wait_for((tmp_path / "out" / "run_name=wait" / "attempts.jsonl").exists, 60)
        assert not (cluster / "requeued").exists()
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 75, "the run has ended by itself"
    assert (cluster / "requeued").read_text() == "requeue 4711_0\n"


@pytest.mark.usefixtures("stub")
def test_a_study_is_submitted_stage_by_stage(tmp_path: Path, cluster: Path, capsys: Any) -> None:
    """First the search, then the seed that is left and what starts from it, where jobs fail."""
    bad = {"method": "ebft", "after": "sft", "settings": {"run_name": "fail"}}
    methods = {"sft": {"search": {"learning_rate": [0.5, 0.25]}}, "bad": bad}
    three_stages = (write_study(tmp_path, methods, evaluation=False), *SLURM, "--slurm", "partition=gpu")
    # A chain ends where tasks never start.
    (cluster / "never").touch()
    assert run(*three_stages) == run(*three_stages, "--next-stage") == 0
    assert len((cluster / "submitted").read_text().splitlines()) == 2, "one stage, and what would follow"
    (cluster / "never").unlink()
    assert run(*three_stages) == 0
    script, later = tmp_path / "out" / "study.sbatch", cluster / "later"
    assert "#SBATCH --array=0-1\n" in script.read_text(), "two candidates"
    (cluster / "queue").write_text("4700\n4712\n")
    assert run(*three_stages) == 2
    assert "job 4711 4712 of this study is still in the queue" in capsys.readouterr().err
    # As Slurm would: the job that waited runs the command, which submits a stage and the next job, until there is none.
    for stage in (["sft,learning_rate=0.25,seed=1", "bad,seed=0"], ["bad,seed=1"]):
        asked = dict(line.lstrip("-").partition("=")[::2] for line in later.read_text().splitlines())
        later.unlink()
        assert asked.items() >= {"dependency": "afterany:4711", "partition": "gpu"}.items()
        assert "gpus-per-task" not in asked
        words = shlex.split(asked["wrap"])
        assert words[-1] == "--next-stage"
        assert cli.main(words[words.index("study") :]) == 0
        assert all(f"{name}.yaml" in script.read_text() for name in stage)
        assert f"0-{len(stage) - 1}" in script.read_text()
    assert not later.exists(), "the chain has ended, though a job has failed"
    jobs = json.loads((tmp_path / "out" / "study.json").read_text())["jobs"]
    states = [jobs[name]["state"] for name in ("sft,learning_rate=0.25,seed=1", "bad,seed=0")]
    assert states == ["finished", "failed: this point fails"]
    # By hand, what failed is tried again, and nothing waits for it.
    (cluster / "queue").unlink()
    assert run(*three_stages) == 0
    assert "bad,seed=0" in script.read_text()
    assert not later.exists()


def test_real_runs_and_their_report(tiny: Path, sums: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    settings = {**REAL, "model": str(tiny), "dataset": [str(sums)], "max_steps": 2, "test_split": 8}
    evaluation = {"sequences": 2, "profile_lengths": [1, 4], "profile_stride": 8, "also_at_temperatures": [0.3]}
    file = write_study(tmp_path, {"ebft": {}}, seeds=[0], settings=settings, evaluation=evaluation)
    monkeypatch.setattr(launchers, "_start", in_this_process)
    assert run(file) == 0
    out = tmp_path / "out"
    assert not Plan(read_study(file)).unfinished
    data = json.loads((out / "runs" / "ebft,seed=0" / "data.json").read_text())
    assert data["documents"] == round(0.8 * (36 - 8))  # neither those of validation nor those of the test
    results = json.loads((out / "evaluations" / "base" / "results.json").read_text())["tasks"]["calibration"]
    assert (results["settings"]["test_split"], "cfm_temperature_0.3" in results["metrics"]) == (8, True)
    monkeypatch.setattr(figures, "draw", lambda evidence: {})  # takes seconds, and is tested elsewhere
    assert cli.main(["study", "report", str(out)]) == 0
    assert "feature-matching loss, on the test data: " in capsys.readouterr().out
    assert (out / "report" / "report.html").exists()


def in_this_process(job: Job, *_: object) -> Any:
    """A job that needs no imports of its own."""
    job.prepare()
    return SimpleNamespace(returncode=(code := cli.main(job.arguments)), poll=lambda: code)
