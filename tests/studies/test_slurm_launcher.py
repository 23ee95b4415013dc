"""Points as an array job of Slurm, with a fake sbatch and squeue on PATH."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from ebft import cli
from tests.studies.commands import sweep

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch runs every task of an array at once, and notes other jobs in `later`; squeue says what is in `queue`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "cluster"
    log.mkdir()
    (folder / "sbatch").write_text(
        f"""#!/bin/bash
echo "$@" >> {log}/submitted
[ -e {log}/refuse ] && echo "sbatch: error: invalid partition" >&2 && exit 1
grep -q -e --array= "$2" || {{ echo "$2" >> {log}/later; echo 4712; exit; }}
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
def test_an_array_job_runs_what_is_left(
    recipe: Path, tmp_path: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--launcher", "slurm", "--set", "learning_rate=1,2", "--set", "run_name=good,once")
    arguments += ("--slurm", "partition=gpu", "--slurm", "time=08:00:00", "--jobs", 3)
    assert sweep(recipe, *arguments) == 0
    assert "submitted as job 4711" in capsys.readouterr().err
    text = (tmp_path / "out" / "sweep.sbatch").read_text()
    assert "#SBATCH --array=0-3%3\n" in text
    assert "#SBATCH --partition=gpu\n" in text
    assert "#SBATCH --requeue\n" in text
    # The second time only those that failed are in the array; a third time there is nothing to submit but a table.
    assert sweep(recipe, *arguments) == 0
    assert "#SBATCH --array=0-1%3\n" in (tmp_path / "out" / "sweep.sbatch").read_text()
    capsys.readouterr()
    assert sweep(recipe, *arguments) == 0
    assert len((cluster / "submitted").read_text().splitlines()) == 2
    printed = capsys.readouterr()
    assert "points: 4, 4 of them finished" in printed.err
    assert sum("finished" in line for line in printed.out.splitlines()) == 4


@pytest.mark.usefixtures("stub")
def test_the_job_file_can_be_written_and_not_submitted(
    recipe: Path, tmp_path: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(recipe, "--launcher", "slurm", "--set", "learning_rate=1,2", "--dry-run") == 0
    file = tmp_path / "out" / "sweep.sbatch"
    assert f"`sbatch {file}` does" in capsys.readouterr().err
    assert not (cluster / "submitted").exists()
    checked = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert shlex.quote(str(tmp_path / "out" / "points" / "learning_rate=2.yaml")) in file.read_text()


@pytest.mark.usefixtures("stub")
def test_a_task_whose_time_is_up_goes_back_into_the_queue(recipe: Path, tmp_path: Path, cluster: Path) -> None:
    assert sweep(recipe, "--launcher", "slurm", "--set", "run_name=wait", "--dry-run") == 0
    variables = {**os.environ, "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0"}
    job = ["bash", str(tmp_path / "out" / "sweep.sbatch")]
    with subprocess.Popen(job, env=variables, start_new_session=True) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "out" / "run_name=wait" / "attempts.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not (cluster / "requeued").exists()
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 75, "the run has ended by itself"
    assert (cluster / "requeued").read_text() == "requeue 4711_0\n"


@pytest.mark.usefixtures("stub")
def test_nothing_is_submitted_twice(
    recipe: Path, tmp_path: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--launcher", "slurm", "--set", "run_name=fail", "--set", "learning_rate=1")
    assert sweep(recipe, *arguments) == 0
    (cluster / "queue").write_text("4711_0 gpu ebft-sweep R\n")
    assert sweep(recipe, *arguments) == 2
    assert "job 4711 of this sweep is still in the queue" in capsys.readouterr().err
    (cluster / "queue").unlink()
    assert sweep(recipe, *arguments) == 0
    assert len((cluster / "submitted").read_text().splitlines()) == 2


@pytest.mark.usefixtures("stub")
def test_what_sbatch_says_is_passed_on(recipe: Path, cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cluster / "refuse").touch()
    assert sweep(recipe, "--launcher", "slurm", "--set", "learning_rate=1") == 2
    assert "sbatch: error: invalid partition" in capsys.readouterr().err


def test_without_sbatch_the_file_is_there(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert sweep(recipe, "--launcher", "slurm", "--set", "learning_rate=1") == 2
    assert "there is no sbatch here" in capsys.readouterr().err
    assert (tmp_path / "out" / "sweep.sbatch").exists()


@pytest.fixture
def chained(tmp_path: Path) -> Path:
    """A study of three stages, of which the last has jobs that fail."""
    study = {
        "output_dir": str(tmp_path / "out"),
        "settings": {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True},
        "seeds": [0, 1],
        "methods": {
            "sft": {"search": {"learning_rate": [0.5, 0.25]}},
            "bad": {"method": "ebft", "after": "sft", "settings": {"run_name": "fail"}},
        },
        "evaluation": False,
    }
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    return file


@pytest.mark.usefixtures("stub")
def test_a_study_is_submitted_stage_by_stage(
    chained: Path, tmp_path: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First the search, then the seed that is left and what starts from it; errors are read from the logs."""
    command = ["study", "run", str(chained), "--launcher", "slurm", "--slurm", "partition=gpu"]
    assert cli.main(command) == 0
    text = (tmp_path / "out" / "study.sbatch").read_text()
    assert "#SBATCH --array=0-1\n" in text, "two candidates"
    assert "#SBATCH --job-name=ebft-study\n" in text
    assert "submitted as job 4712, which then submits what needs the results" in capsys.readouterr().err
    # As Slurm would: the job that waited runs the command, which submits a stage and the next job, until there is none.
    stages = [["sft,learning_rate=0.25,seed=1", "bad,seed=0"], ["bad,seed=1"], []]
    for stage in stages:
        (file,) = (cluster / "later").read_text().splitlines()
        (cluster / "later").unlink()
        text = Path(file).read_text()
        assert "#SBATCH --dependency=afterany:4711\n" in text
        assert "#SBATCH --partition=gpu\n" in text
        assert "gpus-per-task" not in text
        (line,) = [line for line in text.splitlines() if " study run " in line]
        words = shlex.split(line)
        assert words[1:3] == ["-m", "ebft.cli"]
        assert words[-1] == "--next-stage"
        (tmp_path / "out" / "study.sbatch").unlink()
        assert cli.main(words[3:]) == 0
        written = (tmp_path / "out" / "study.sbatch").read_text() if stage else ""
        assert [name for name in stage if f"{name}.yaml" not in written] == []
        assert f"0-{len(stage) - 1}" in written or not stage
        if not (cluster / "later").exists():
            break
    assert not (cluster / "later").exists(), "the chain has ended, though a job has failed"
    manifest = json.loads((tmp_path / "out" / "study.json").read_text())
    assert manifest["jobs"]["sft,learning_rate=0.25,seed=1"]["state"] == "finished"
    assert manifest["jobs"]["bad,seed=0"]["state"] == "failed: this point fails"
    # By hand, what failed is tried again, and nothing waits for it.
    capsys.readouterr()
    assert cli.main(command) == 0
    assert "bad,seed=0" in (tmp_path / "out" / "study.sbatch").read_text()
    assert not (cluster / "later").exists()


@pytest.mark.usefixtures("stub")
def test_a_job_of_the_chain_keeps_others_from_submitting(
    chained: Path, tmp_path: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "run", str(chained), "--launcher", "slurm"]
    assert cli.main(command) == 0
    (cluster / "queue").write_text("4712 gpu ebft-study-next PD\n")
    assert cli.main(command) == 2
    assert "job 4711 4712 of this study is still in the queue; wait for it, or `scancel 4711 4712`" in (
        capsys.readouterr().err
    )
    assert cli.main([*command, "--next-stage"]) == 0  # which is that job


@pytest.mark.usefixtures("stub")
def test_a_chain_ends_where_tasks_never_start(chained: Path, tmp_path: Path, cluster: Path) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    command = ["study", "run", str(chained), "--launcher", "slurm"]
    sbatch.write_text(f"#!/bin/bash\necho x >> {cluster}/submitted\necho 4711\n")
    assert cli.main(command) == 0
    manifest = json.loads((tmp_path / "out" / "study.json").read_text())
    assert {job["state"] for job in manifest["jobs"].values()} == {"waiting"}
    before = (cluster / "submitted").read_text()
    cli.main([*command, "--next-stage"])
    assert (cluster / "submitted").read_text() == before


@pytest.mark.parametrize(
    ("option", "words"), [(["--reuse-processes"], "--reuse-processes"), (["--per-gpu", "2"], "--per-gpu")]
)
def test_options_of_the_local_launcher_are_refused(
    option: list[str], words: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(recipe, "--launcher", "slurm", "--set", "learning_rate=1", *option) == 2
    assert f"{words} is for --launcher local; leave it out with slurm" in capsys.readouterr().err
