"""`ebft sweep` through the command: with real runs once, and with a stand-in where only the sweep matters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ebft.runtime.files import locked
from ebft.studies.points import points
from tests.baselines.runs import write_recipe
from tests.imports import imports_torch
from tests.studies.commands import attempts, sweep

pytestmark = pytest.mark.usefixtures("offline")


def test_real_runs_side_by_side(tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=2, output_dir=str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    arguments = ("--set", f"model={tiny},{tmp_path}/empty", "--set", "learning_rate=1e-3,1e-2", "--jobs", 2)
    assert sweep(recipe, *arguments) == 1
    printed = capsys.readouterr()
    assert "2 of 4 points failed" in printed.err
    assert "model=empty,learning_rate=0.001: failed (exit code 2): " in printed.err
    rows = [[cell.strip() for cell in line.split("  ")] for line in printed.out.splitlines()]
    after = []
    for rate in ("0.001", "0.01"):
        run = tmp_path / "out" / f"model={tiny.name},learning_rate={rate}"
        results = json.loads((run / "results.json").read_text())
        after.append(results["after"])
        shown = f"{results['after']['eval_cfm']:.4f} ± {results['after']['eval_cfm_se']:.4f}"
        assert any(rate in row and shown in row for row in rows)
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
def test_a_finished_point_whose_recipe_has_changed_is_resumed(recipe: Path, tmp_path: Path) -> None:
    assert sweep(recipe, "--set", "learning_rate=1") == 0
    assert sweep(recipe, "--set", "learning_rate=1", "--max_steps", 7) == 0
    assert len([a for a in attempts(tmp_path / "out" / "learning_rate=1") if "start" in a]) == 2


@pytest.mark.usefixtures("stub")
def test_the_command_of_a_baseline_is_passed_on(recipe: Path, tmp_path: Path) -> None:
    assert sweep(recipe, "--command", "sft", "--set", "max_length=64") == 0
    assert attempts(tmp_path / "out" / "max_length=64")[0]["command"] == "sft"


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


@pytest.mark.usefixtures("stub")
def test_dry_run_shows_the_points_and_writes_nothing(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(recipe, "--set", "gamma=0,0.1", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == ["gamma=0: to do", "gamma=0.1: to do"]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("stub")
def test_only_a_dry_run_on_this_machine_needs_no_folder(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--output_dir", "", "--set", "gamma=0", "--dry-run"]
    assert sweep(recipe, *arguments) == 0
    assert capsys.readouterr().out.splitlines() == ["gamma=0: to do"]
    assert sweep(recipe, *arguments, "--launcher", "slurm") == 2  # which writes a job file
    assert "no output folder" in capsys.readouterr().err


def test_errors_of_the_command_line_are_quick(recipe: Path) -> None:
    assert not imports_torch("sweep", "--config", str(recipe), "--set", "gamma=0", "--launcher", "slrum")


@pytest.mark.usefixtures("stub")
def test_one_process_for_one_sweep(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path / "out" / "sweep.lock"):
        assert sweep(recipe, "--set", "gamma=0,0.1") == 2
        assert [file.name for file in (tmp_path / "out").iterdir()] == ["sweep.lock"]
    assert f"out is in use by process {os.getpid()} on " in capsys.readouterr().err
