"""Live curves: what `report_to` names gets the metrics. Each needs its package: the extras `wandb` and so on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.baselines.runs import needs_trl, run, write_recipe
from tests.command_line.commands import ebft

pytestmark = pytest.mark.usefixtures("offline")


def tensorboard(folder: Path) -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = (folder / "out" / "runs").glob("events.*")
    return set(EventAccumulator(str(events)).Reload().Tags()["scalars"])


def trackio(folder: Path) -> set[str]:
    (database,) = (folder / "trackio").glob("*.db")
    logged = "".join(str(row) for row in sqlite3.connect(database).execute("select * from metrics"))
    return {name for name in ("train/reward", "eval/cfm") if f'"{name}"' in logged}


def wandb(folder: Path) -> set[str]:
    (log,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return {name for name in ("train/reward", "eval/cfm") if name.encode() in log.read_bytes()}


@pytest.mark.parametrize("read", [tensorboard, trackio, wandb], ids=lambda read: read.__name__)
def test_metrics_arrive(read: Callable[[Path], set[str]], tiny: Path, sums: Path, tmp_path: Path) -> None:
    """Through a process: they write the rest when it ends."""
    if find_spec(read.__name__) is None:
        pytest.skip(f"needs {read.__name__}")
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=2, save_strategy="no", report_to=read.__name__)
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    done = ebft("train", "--config", recipe, "--output_dir", tmp_path / "out", **places)
    assert done.returncode == 0, done.stderr
    assert {"train/reward", "eval/cfm"} <= read(tmp_path)


@needs_trl
def test_baselines_keep_their_log_in_the_output_folder(tiny: Path, sums: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=1, save_strategy="no", report_to="tensorboard")
    assert run("sft", recipe, tmp_path / "out") == 0
    assert "eval/cfm" in tensorboard(tmp_path)
