"""Jobs on this machine, one at a time on each GPU; and as an array job of Slurm, with stand-ins for its commands."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft import cli
from tests.studies.commands import attempts, run, sweep, write_study

pytestmark = pytest.mark.usefixtures("offline")
SLURM = ("--launcher", "slurm")


def wait_for(*files: Path) -> None:
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.usefixtures("stub")
def test_one_point_at_a_time_on_each_gpu(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert sweep(recipe, "--set", "learning_rate=1,2,3,4,5", "--use_cpu", "false") == 0
    spans: dict[str, list[tuple[float, float]]] = {}
    for point in (tmp_path / "out").glob("learning_rate=*"):
        start, end = attempts(point)
        spans.setdefault(start["gpu"], []).append((start["start"], end["end"]))
    assert set(spans) == {"4", "6"}
    for on_one_gpu in spans.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(on_one_gpu)))
    everything = sorted(span for on_one in spans.values() for span in on_one)
    assert any(a[1] > b[0] for a, b in pairwise(everything)), "never two at once"


@pytest.mark.usefixtures("stub")
def test_ctrl_c_stops_the_points_and_says_how_to_resume(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    runs = [tmp_path / "out" / f"run_name=wait,learning_rate={rate}" for rate in (1, 2)]

    def stop() -> None:
        wait_for(*(point / "attempts.jsonl" for point in runs))
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
[ -e {log}/refuse ] && echo "sbatch: error: invalid partition" >&2 && exit 1
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
    arguments = [*SLURM, "--set", "learning_rate=1,2", "--set", "run_name=good,once"]
    arguments += ["--slurm", "partition=gpu", "--slurm", "no-requeue", "--jobs", "3"]
    file = tmp_path / "out" / "sweep.sbatch"
    assert sweep(recipe, *arguments, "--dry-run") == 0
    assert f"written and not submitted: sbatch {file}" in capsys.readouterr().out
    assert not (cluster / "submitted").exists()
    assert sweep(recipe, *arguments) == 0
    assert "submitted as job 4711" in capsys.readouterr().err
    lines = file.read_text().splitlines()
    assert {"#SBATCH --array=0-3%3", "#SBATCH --partition=gpu", "#SBATCH --no-requeue"} <= set(lines)
    # The second time only those that failed are in the array; a third time there is nothing to submit.
    assert sweep(recipe, *arguments) == 0
    assert "#SBATCH --array=0-1%3\n" in file.read_text()
    capsys.readouterr()
    assert sweep(recipe, *arguments) == 0
    assert len((cluster / "submitted").read_text().splitlines()) == 2
    assert capsys.readouterr().out.count(": finished\n") == 4

    # A task whose time is up goes back into the queue.
    assert sweep(recipe, *SLURM, "--set", "run_name=wait", "--dry-run") == 0
    variables = {**os.environ, "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0"}
    with subprocess.Popen(["bash", str(file)], env=variables, start_new_session=True) as process:
        wait_for(tmp_path / "out" / "run_name=wait" / "attempts.jsonl")
        assert not (cluster / "requeued").exists()
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 75, "the run has ended by itself"
    assert (cluster / "requeued").read_text() == "requeue 4711_0\n"


@pytest.mark.usefixtures("stub")
def test_a_study_is_submitted_stage_by_stage(tmp_path: Path, cluster: Path, capsys: Any) -> None:
    """First the search, then the seed that is left and what starts from it, where jobs fail; errors are read from the
    logs."""
    bad = {"method": "ebft", "after": "sft", "settings": {"run_name": "fail"}}
    methods = {"sft": {"search": {"learning_rate": [0.5, 0.25]}}, "bad": bad}
    three_stages = (write_study(tmp_path, methods, evaluation=False), *SLURM, "--slurm", "partition=gpu")
    # A chain ends where tasks never start.
    (cluster / "never").touch()
    assert run(*three_stages) == 0
    jobs = json.loads((tmp_path / "out" / "study.json").read_text())["jobs"]
    assert {job["state"] for job in jobs.values()} == {"to do"}
    before = (cluster / "submitted").read_text()
    run(*three_stages, "--next-stage")
    assert (cluster / "submitted").read_text() == before
    (cluster / "never").unlink()
    assert run(*three_stages) == 0
    script, later = tmp_path / "out" / "study.sbatch", cluster / "later"
    assert "#SBATCH --array=0-1\n" in script.read_text(), "two candidates"
    assert "job 4712 waits for it" in capsys.readouterr().err
    (cluster / "queue").write_text("4700\n4712\n")
    assert run(*three_stages) == 2
    assert "job 4711 4712 of this study is still in the queue" in capsys.readouterr().err
    # As Slurm would: the job that waited runs the command, which submits a stage and the next job, until there is none.
    for stage in (["sft,learning_rate=0.25,seed=1", "bad,seed=0"], ["bad,seed=1"]):
        asked = dict(line.lstrip("-").partition("=")[::2] for line in later.read_text().splitlines())
        later.unlink()
        expected = {"dependency": "afterany:4711", "partition": "gpu", "job-name": "ebft-study-next"}
        assert asked.items() >= expected.items()
        assert "gpus-per-task" not in asked
        words = shlex.split(asked["wrap"])
        assert words[-1] == "--next-stage"
        assert cli.main(words[words.index("study") :]) == 0
        assert all(f"{name}.yaml" in script.read_text() for name in stage)
        assert f"0-{len(stage) - 1}" in script.read_text()
    assert not later.exists(), "the chain has ended, though a job has failed"
    jobs = json.loads((tmp_path / "out" / "study.json").read_text())["jobs"]
    assert jobs["sft,learning_rate=0.25,seed=1"]["state"] == "finished"
    assert jobs["bad,seed=0"]["state"] == "failed: this point fails"
    # By hand, what failed is tried again, and nothing waits for it.
    (cluster / "queue").unlink()
    assert run(*three_stages) == 0
    assert "bad,seed=0" in script.read_text()
    assert not later.exists()
    (cluster / "refuse").touch()
    assert run(*three_stages) == 2
    assert "sbatch: error: invalid partition" in capsys.readouterr().err
