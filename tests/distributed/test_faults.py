"""`--launch`, checkpoints and resume on several processes, and a process that dies; with whole and sharded models."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ebft import cli
from ebft.loading import Checkpoint
from ebft.runtime import launch
from ebft.train.run_folder import damage
from tests import killed_runs
from tests.baselines.runs import write_recipe
from tests.distributed import group
from tests.killed_runs import assert_the_same, final_weights, steps
from tests.tiny_tokenizer import END, byte_tokenizer

STEPS = 6


@pytest.fixture(scope="module")
def recipe(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("user")
    settings: dict[str, Any] = dict(gamma=0.1, feature_source="average", feature_decay=0.9, validation_split=6)
    settings |= dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-4)
    settings |= dict(adam_epsilon=1e-4, max_steps=STEPS, eval_strategy="no")
    return write_recipe(home, tiny, sums, **settings)


def run(processes: int, recipe: Path, output: Path, *flags: object, kill_at: str = "") -> group.Ended:
    """`ebft train` on so many processes, without a launcher that stands by; what kills, kills the second."""
    arguments = killed_runs.arguments(recipe, output, *flags)
    variables = killed_runs.variables(recipe, kill_at, kill_rank=1)
    return group.run(processes, killed_runs.main, arguments, folder=output.parent, variables=variables)


@pytest.fixture(scope="module", params=[[], ["--fsdp", "full_shard"]], ids=["whole", "sharded"])
def how(request: pytest.FixtureRequest) -> list[str]:
    return request.param


@pytest.fixture(scope="module")
def uninterrupted(recipe: Path, how: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes, from start to end."""
    output = tmp_path_factory.mktemp("runs") / "uninterrupted"
    ended = run(2, recipe, output, *how)
    assert ended.codes == [0, 0], ended.said
    assert ["on held-out sequences" in said for said in ended.said] == [True, False], "the first one prints the results"
    return output


@pytest.fixture(scope="module")
def killed(recipe: Path, how: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second of two processes is killed in the middle of step 3; checkpoint 2 is there."""
    output = tmp_path_factory.mktemp("runs") / "killed"
    ended = run(2, recipe, output, *how, kill_at="step:3")
    assert ended.codes == [1, -signal.SIGKILL], ended.said
    return output


def test_what_a_run_of_two_processes_leaves_behind(uninterrupted: Path, how: list[str]) -> None:
    assert steps(uninterrupted) == list(range(1, STEPS + 1))
    assert sorted(p.name for p in uninterrupted.glob("checkpoint-*")) == [f"checkpoint-{n}" for n in (2, 4, 6)]
    assert all((p / "COMPLETE").exists() for p in uninterrupted.glob("checkpoint-*"))
    # An ordinary model, whatever it was while it was trained.
    final = AutoModelForCausalLM.from_pretrained(uninterrupted / "final")
    assert final.config.architectures == [type(final).__name__]
    shards = list(uninterrupted.rglob("*_shards/*.distcp"))
    assert len(shards) == (3 * 3 * 2 if how else 0), "of model, optimiser and average of three checkpoints, two each"
    checkpoint = Checkpoint.find(str(uninterrupted / "checkpoint-6"))
    loaded = checkpoint.load(byte_tokenizer(pad=END), torch.float32, torch.device("cpu"))
    for name, value in final.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_killed_stopped_and_resumed_gives_the_same_weights(
    recipe: Path, how: list[str], uninterrupted: Path, killed: Path, tmp_path: Path
) -> None:
    """Killed again in the middle of a checkpoint, which must not be taken for whole; then one of two gets a notice."""
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    died = run(2, recipe, output, "--resume", *how, kill_at="shards:4" if how else "save:4")
    assert died.codes == [1, -signal.SIGKILL], died.said
    assert (output / "checkpoint-4").exists()
    assert not (output / "checkpoint-4" / "COMPLETE").exists()
    # No launcher stands by: the other one finds the connection closed.
    assert "ebft: lost another process" in died.said[0]
    assert f"the last good checkpoint is {output}/checkpoint-2" in died.said[0]
    stopped = run(2, recipe, output, "--resume", *how, kill_at="notice:4")
    assert stopped.codes == [75, 75], stopped.said
    assert "checkpoint-4 was cut off" in stopped.said[0]
    assert [said.count("resuming from") for said in stopped.said] == [1, 0]
    assert [said.count("ebft: stopped by") for said in stopped.said] == [1, 0]
    assert f"the last good checkpoint is {output}/checkpoint-5; continue" in stopped.said[0]
    assert not (output / "final").exists()
    done = run(2, recipe, output, "--resume", *how)
    assert done.codes == [0, 0], done.said
    assert_the_same(output, uninterrupted)


def test_resumed_on_another_number_of_processes(
    recipe: Path, how: list[str], uninterrupted: Path, killed: Path, tmp_path: Path
) -> None:
    """2 -> 1 -> 4, always 8 sequences per step."""
    output = tmp_path / "run"
    shutil.copytree(killed, output)
    if not how:
        refused = run(2, recipe, output, "--resume", "--gradient_accumulation_steps", 1)
        assert refused.codes == [2, 2]
        assert "processes)=8, not 4; resume" in refused.said[0]
        assert [said.count("\n") for said in refused.said] == [1, 0], "an error that all processes meet is said once"
    one = run(1, recipe, output, *how, "--resume", "--gradient_accumulation_steps", 4, "--max_steps", 4)
    assert one.codes == [0], one.said
    four = run(4, recipe, output, *how, "--resume", "--gradient_accumulation_steps", 1)
    assert four.codes == [0] * 4, four.said
    found = final_weights(output)
    for name, value in final_weights(uninterrupted).items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    assert steps(output) == list(range(1, STEPS + 1))


def test_what_the_launcher_says_of_a_killed_process(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """The processes are small programs: all of the words are the launcher's."""
    output = tmp_path / "run"
    (output / "checkpoint-2").mkdir(parents=True)
    (output / "checkpoint-2" / "COMPLETE").touch()
    (output / "recipe.yaml").touch()
    program = "import os, time; time.sleep(60) if os.environ['RANK'] == '0' else os.kill(os.getpid(), 9)"
    monkeypatch.setattr(launch, "ENTRY", ("-c", program))
    for name in (launch.LAUNCHED, "TORCHELASTIC_SIGNALS_TO_HANDLE"):
        monkeypatch.setenv(name, "")  # and undone afterwards
    with launch.on_notice(signal.SIG_DFL, (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)):  # torch leaves its handlers
        assert cli.main([*killed_runs.arguments(recipe, output), "--launch", "2"]) == 1
    errors = capfd.readouterr().err
    assert [line for line in errors.splitlines() if line.startswith("ebft:")] == [
        "ebft: process 1 of 2 was killed (SIGKILL); the machine may be out of memory; the others were stopped",
        f"ebft: the last good checkpoint is {output}/checkpoint-2; continue with the same command and --resume",
    ]
    assert "Traceback" not in errors


def test_what_the_launcher_is_told_stops_all(recipe: Path, tmp_path: Path) -> None:
    output, said, deadline = tmp_path / "run", tmp_path / "said.txt", time.monotonic() + 90
    endless = ["--launch", 2, "--max_steps", 100000, "--validation_split", 0]
    arguments = killed_runs.arguments(recipe, output, *endless)
    (launcher,) = group.start([said], killed_runs.main, arguments, variables=killed_runs.variables(recipe))
    try:
        while not (output / "checkpoint-2" / "COMPLETE").exists():
            assert launcher.is_alive(), said.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        workers = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        assert len(workers) >= 2
        os.kill(launcher.pid, signal.SIGUSR1)
        launcher.join(90)
    finally:
        launcher.kill()
    assert launcher.exitcode == 75, said.read_text()
    assert said.read_text().count("ebft: stopped by SIGUSR1\n") == 1
    assert "the last good checkpoint is" in said.read_text()
    assert "Traceback" not in said.read_text()
    assert all(damage(p) == [] for p in output.glob("checkpoint-*"))
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
