"""`ebft sweep` through the command: with real runs once, and with a stand-in where only the sweep matters."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft import cli
from ebft.studies import local_launcher, slurm_launcher
from ebft.studies.points import points
from tests.baselines.runs import write_recipe

STUB = Path(__file__).with_name("stub.py")

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_launcher, "ENTRY", (str(STUB),))
    monkeypatch.setattr(slurm_launcher, "ENTRY", (str(STUB),))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    values = {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True, "output_dir": str(tmp_path / "out")}
    file.write_text(yaml.safe_dump(values))
    return file


def sweep(recipe: Path, *arguments: object) -> int:
    return cli.main(["sweep", "--config", str(recipe), *map(str, arguments)])


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]


def test_real_runs_side_by_side(tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=2, output_dir=str(tmp_path / "out"))
    arguments = ("--set", f"model={tiny},./nowhere", "--set", "learning_rate=1e-3,1e-2", "--jobs", 2)
    assert sweep(recipe, *arguments) == 1
    printed = capsys.readouterr()
    assert "2 of 4 points failed" in printed.err
    assert "model=nowhere,learning_rate=0.001: failed (exit code 2): model='./nowhere'" in printed.err
    rows = [line.split("  ") for line in printed.out.splitlines()]
    after = []
    for rate in ("0.001", "0.01"):
        run = tmp_path / "out" / f"model={tiny.name},learning_rate={rate}"
        results = json.loads((run / "results.json").read_text())
        after.append(results["after"])
        shown = f"{results['after']['eval_cfm']:.4f} ± {results['after']['eval_cfm_se']:.4f}"
        assert any(rate in row and shown in [cell.strip() for cell in row] for row in rows)
        assert (run / "final" / "config.json").exists()
    assert after[0] != after[1]
    again = points(recipe, {}, [f"model={tiny}", "learning_rate=1e-3,1e-2"])
    assert all(point.finished for point in again)
    assert (tmp_path / "out" / "compare" / "compare.html").exists()
    assert (tmp_path / "out" / "compare" / "compare.png").exists()


@pytest.mark.usefixtures("stub")
def test_finished_points_are_skipped_and_others_tried_again(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--set", "learning_rate=1,2", "--set", "run_name=good,once,fail")
    assert sweep(recipe, *arguments, "--jobs", 3) == 1
    assert "4 of 6 points failed; the same command tries them again" in capsys.readouterr().err
    assert sweep(recipe, *arguments, "--jobs", 3) == 1
    printed = capsys.readouterr()
    assert "points: 6, 2 of them finished" in printed.err
    assert "learning_rate=1,run_name=fail: failed (exit code 2): this point fails" in printed.err
    assert [line.split()[2] for line in printed.out.splitlines() if line.startswith(("1.0", "2.0"))] == [
        "finished",
        "finished",
        "failed",
    ] * 2
    out = tmp_path / "out"
    counts = {name: len([a for a in attempts(out / f"learning_rate=1,run_name={name}") if "start" in a]) for name in
              ("good", "once", "fail")}  # fmt: skip
    assert counts == {"good": 1, "once": 2, "fail": 2}


@pytest.mark.usefixtures("stub")
def test_a_finished_point_whose_recipe_has_changed_goes_on(recipe: Path, tmp_path: Path) -> None:
    assert sweep(recipe, "--set", "learning_rate=1") == 0
    assert sweep(recipe, "--set", "learning_rate=1", "--max_steps", 7) == 0
    assert len([a for a in attempts(tmp_path / "out" / "learning_rate=1") if "start" in a]) == 2


@pytest.mark.usefixtures("stub")
def test_one_point_at_a_time_on_each_gpu(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(local_launcher.torch.cuda, "device_count", lambda: 2)
    assert sweep(recipe, "--set", "learning_rate=1,2,3,4,5", "--use_cpu", "false") == 0
    spans: dict[str, list[tuple[float, float]]] = {}
    for run in (tmp_path / "out").glob("learning_rate=*"):
        start, end = attempts(run)
        spans.setdefault(start["CUDA_VISIBLE_DEVICES"], []).append((start["start"], end["end"]))
    assert set(spans) == {"4", "6"}
    for on_one_gpu in spans.values():
        ordered = sorted(on_one_gpu)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    everything = sorted(span for on_one in spans.values() for span in on_one)
    assert any(a[1] > b[0] for a, b in pairwise(everything)), "never two at once"


@pytest.mark.usefixtures("stub")
def test_the_command_of_a_baseline_is_passed_on(recipe: Path, tmp_path: Path) -> None:
    assert sweep(recipe, "--command", "sft", "--set", "max_length=64") == 0
    assert attempts(tmp_path / "out" / "max_length=64")[0]["command"] == "sft"


def test_ctrl_c_stops_the_points_and_says_how_to_go_on(recipe: Path, tmp_path: Path) -> None:
    code = f"from ebft import cli; from ebft.experiments import local; local_launcher.ENTRY = ({str(STUB)!r},); "
    code += "import sys; sys.exit(cli.main(sys.argv[1:]))"
    arguments = [
        "sweep",
        "--config",
        str(recipe),
        "--set",
        "run_name=wait",
        "--set",
        "learning_rate=1,2",
        "--jobs",
        "2",
    ]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    runs = [tmp_path / "out" / f"run_name=wait,learning_rate={rate}" for rate in (1, 2)]
    deadline = time.monotonic() + 60
    while not all((run / "attempts.jsonl").exists() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "stopped; the same command goes on from here" in error
    assert all((run / "interrupted").exists() for run in runs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "learning_rat=1"], "did you mean 'learning_rate'"),
        (["--set", "gamma=0", "--launcher", "slrum"], "is not one of local, slurm; did you mean 'slurm'"),
        (["--set", "gamma=0", "--command", "sfft"], "did you mean 'sft'"),
        (["--set", "gamma=0", "--jobs", "0"], "--jobs 0 must be at least 1"),
        (["--set", "gamma=0", "--slurm", "time=1"], "--slurm is for --launcher slurm"),
        (["--set", "gamma=0", "--gama", "1"], "did you mean 'gamma'"),
        (["--set", "gamma=0", "--launch", "2"], "--launch is not for sweeps"),
        (["--set", "gamma=0", "--launcher", "slurm", "--slurm", "array=3"], "array is decided by ebft sweep"),
        (["--set", "gamma=0", "--launcher", "slurm", "--slurm", "a b"], "write --slurm name=value"),
    ],
)
def test_errors_come_before_anything_starts(
    arguments: list[str], words: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(recipe, *arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert words in lines[-1]
    assert not list((tmp_path / "out").glob("gamma*"))


def test_dry_run_shows_the_points_and_writes_nothing(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(recipe, "--set", "gamma=0,0.1", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == ["gamma=0: to do", "gamma=0.1: to do"]
    assert not (tmp_path / "out").exists()


# ---- Slurm: a fake sbatch and squeue on PATH ---------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch runs every task of the array at once; squeue says what is in the file `queue`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "cluster"
    log.mkdir()
    (folder / "sbatch").write_text(
        f"""#!/bin/bash
echo "$@" >> {log}/submitted
[ -e {log}/refuse ] && echo "sbatch: error: invalid partition" >&2 && exit 1
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
        process.send_signal(signal.SIGUSR1)
        process.wait(30)
        os.killpg(process.pid, signal.SIGTERM)  # as Slurm ends what it takes back
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
