"""Killed, preempted or damaged at any moment and resumed, a run ends with the very same weights, bit for bit."""

import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ebft.errors import Preempted
from ebft.runtime import processes
from ebft.runtime.launch import on_notice, stop_at_once
from ebft.train import run_folder
from ebft.train.callbacks import Preemption
from tests import killed_runs
from tests.baselines.runs import write_recipe
from tests.distributed import group
from tests.killed_runs import assert_the_same


@pytest.fixture(scope="module")
def recipe(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: dict[str, Any] = dict(gamma=0.1, feature_source="average", feature_decay=0.9, max_steps=6, eval_steps=3)
    settings |= dict(gradient_accumulation_steps=2, save_total_limit=2, validation_split=8, samples_every=0)
    return write_recipe(tmp_path_factory.mktemp("user"), tiny, sums, **settings)


def run(recipe: Path, output: Path, *flags: object, kill_at: str = "") -> tuple[int, str]:
    """The code of `ebft train` and what it said, in a process forked from one that has imported everything."""
    arguments, variables = killed_runs.arguments(recipe, output, *flags), killed_runs.variables(recipe, kill_at)
    ended = group.run(1, killed_runs.main, arguments, folder=output.parent, variables=variables)
    return ended.codes[0], ended.said[0]


@pytest.fixture(scope="module")
def uninterrupted(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "uninterrupted"
    code, said = run(recipe, output)
    assert code == 0, said
    return output


def test_killed_and_resumed_gives_the_same_weights(recipe: Path, uninterrupted: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    # The first time before there is a checkpoint.
    for moment in ("step:1", "step:3", "write:checkpoint-4/optimizer.pt", "mark:checkpoint-6"):
        code, said = run(recipe, output, *([] if moment == "step:1" else ["--resume"]), kill_at=moment)
        assert code == -9, said
    code, said = run(recipe, output, "--resume")
    assert code == 0, said
    assert "checkpoint-6 was cut off" in said
    assert_the_same(output, uninterrupted)
    assert sorted(p.name for p in output.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]


def test_preempted_and_damaged_gives_the_same_weights(recipe: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """SIGTERM in the step after the fourth; then a bit of what was saved is lost: the checkpoint before can be used."""
    output = tmp_path / "run"
    code, said = run(recipe, output, kill_at="notice:4")
    assert code == 75, said
    assert "ebft: stopped by SIGTERM\n" in said
    assert f"the last good checkpoint is {output}/checkpoint-5; continue with the same command and --resume" in said
    assert not (output / "final").exists()
    assert not (output / "run.lock").exists()
    flip_a_bit(output / "checkpoint-5" / "optimizer.pt")
    code, said = run(recipe, output, "--resume")
    assert code == 2
    assert "checkpoint-5 is damaged (missing or changed: optimizer.pt); put a good copy in its place" in said
    shutil.rmtree(output / "checkpoint-5")
    code, said = run(recipe, output, "--resume")
    assert code == 0, said
    assert f"resuming from {output}/checkpoint-4" in said
    assert_the_same(output, uninterrupted)


def test_interrupted_and_full_disk_say_where_the_last_good_checkpoint_is(recipe: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    code, said = run(recipe, output, kill_at="interrupt:0")  # in the first step, before any checkpoint was due
    assert code == 130
    assert "saving a checkpoint after this step; Ctrl-C again stops at once" in said
    assert f"the last good checkpoint is {output}/checkpoint-1; continue with the same command and --resume" in said
    code, said = run(recipe, output, "--resume", kill_at="full:checkpoint-4/scheduler.pt")
    assert code == 1
    assert "the disk is full" in said
    assert f"the last good checkpoint is {output}/checkpoint-2" in said


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-4"
    (folder / "shards").mkdir(parents=True)
    (folder / "optimizer.pt").write_bytes(b"optimizer")
    (folder / "shards" / "0.distcp").write_bytes(b"weights")
    run_folder.mark_complete(folder)
    assert run_folder.damage(folder) == []
    (folder / "optimizer.pt").unlink()
    flip_a_bit(folder / "shards" / "0.distcp")
    assert run_folder.damage(folder) == ["optimizer.pt", "shards/0.distcp"]
    (folder / "optimizer.pt").touch()
    for mark in '{"files": [', '{"files": {"optimizer.pt": {}}}', "[]":
        (folder / "COMPLETE").write_text(mark)
        assert run_folder.damage(folder) == ["COMPLETE"]


@pytest.mark.parametrize("pressed", ["while loading", "twice", "with others"])
def test_what_ctrl_c_stops_at_once(pressed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # torch's launcher may have run in this process
    preemption = Preemption()
    preemption.at_once = pressed == "while loading"
    monkeypatch.setattr(processes, "count", lambda: 2 if pressed == "with others" else 1)
    with preemption.listen():
        if pressed == "twice":
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "at_once", "said", "expected"),
    [
        # Some libraries make another exception of the one that a handler raises, as matplotlib does.
        (signal.SIGTERM, True, "Invalid bounding box", Preempted),
        (signal.SIGINT, True, "Invalid bounding box", KeyboardInterrupt),
        (None, True, "Invalid bounding box", RuntimeError),
        # After a notice to all another process may leave first; without one, its loss is a failure.
        (signal.SIGTERM, False, "Connection closed by peer", Preempted),
        (None, False, "Connection closed by peer", RuntimeError),
    ],
)
def test_an_error_in_place_of_a_notice(
    number: int | None, at_once: bool, said: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "count", lambda: 2)
    preemption = Preemption()
    preemption.at_once = at_once
    with pytest.raises(expected), preemption.listen():  # noqa: PT012
        with suppress(BaseException):
            signal.raise_signal(number or 0)
        raise RuntimeError(said)


def test_a_notice_to_a_command_whose_work_is_on_disk() -> None:
    with pytest.raises(Preempted, match="SIGUSR1"), on_notice(stop_at_once):
        signal.raise_signal(signal.SIGUSR1)
