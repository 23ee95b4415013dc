"""Runs of `ebft` that are killed or interrupted at a chosen moment, for the tests of resuming.

As a program, and as `main` in a process that a test forks, it is `ebft` with one difference: at the moment that KILL_AT
names, something happens to the process with rank KILL_RANK (to the only one, if that is not set).

    step:3                   killed, as `kill -9` does, in the middle of step 3, after the rollouts
    save:4, shards:4         killed while the checkpoint of step 4 is written; shards: those of the model are there
    write:checkpoint-4/x.pt  killed half-way through a file
    mark:checkpoint-4        killed when everything of a checkpoint is written but its mark
    interrupt:3              Ctrl-C in step 3
    notice:3                 a scheduler's notice (SIGTERM) in step 3
    full:checkpoint-4/x.pt   no room left for this file
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebft.cli import main as ebft
from ebft.runtime import launch

# ---- in the process that is killed ---------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    launch.ENTRY = (__file__,)  # what `--launch` starts is killed in the same way
    kind, _, where = os.environ.get("KILL_AT", "").partition(":")
    if kind and os.environ.get("KILL_RANK") == os.environ.get("RANK"):
        _arm(kind, where)
    return ebft(arguments)


def _arm(kind: str, where: str) -> None:
    import torch

    from ebft.train import run_folder
    from ebft.train.trainer import EBFTTrainer

    if kind in ("write", "full"):
        return _before_or_after(torch, "save", lambda _, file, *__: str(file).endswith(where), kind)
    if kind == "mark":
        return _before_or_after(run_folder, "mark_complete", lambda checkpoint: checkpoint.name == where, kind)
    step = int(where)
    method = {"save": "_save_rng_state", "shards": "_save_optimizer_and_scheduler"}.get(kind, "training_step")
    _before_or_after(EBFTTrainer, method, lambda trainer, *_: trainer.state.global_step == step, kind)


def _before_or_after(owner: Any, name: str, is_now: Callable[..., bool], kind: str) -> None:
    """Make something happen in the function `owner.name` when it is called with arguments for which `is_now`."""
    original = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        if not is_now(*args):
            return original(*args, **kwargs)
        if kind in ("interrupt", "notice"):
            setattr(owner, name, original)  # once, and not at every micro-batch of the step
            os.kill(os.getpid(), signal.SIGINT if kind == "interrupt" else signal.SIGTERM)
            return original(*args, **kwargs)
        if kind == "full":
            raise OSError(28, "No space left on device", str(args[1]))
        if kind == "write":
            original(*args, **kwargs)
            os.truncate(args[1], os.path.getsize(args[1]) // 2)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, replaced)


# ---- in the tests --------------------------------------------------------------------------------------------------


def arguments(recipe: Path, output: Path, *flags: object) -> list[str]:
    return ["train", "--config", str(recipe), "--output_dir", str(output), *map(str, flags)]


def variables(recipe: Path, kill_at: str = "", kill_rank: int | None = None) -> dict[str, str]:
    """What the environment of a run holds; the cache is beside the recipe."""
    rank = {} if kill_rank is None else {"KILL_RANK": str(kill_rank)}
    return {"EBFT_CACHE": str(recipe.parent / "cache"), "OMP_NUM_THREADS": "1", "KILL_AT": kill_at, **rank}


def final_weights(output: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(output / "final" / "model.safetensors")


def metrics(output: Path) -> list[dict[str, Any]]:
    """What was logged, without what depends on the clock."""
    entries = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in entry.items() if "second" not in name and "time" not in name}
        for entry in entries
        if "train_loss" not in entry
    ]


def assert_the_same(output: Path, uninterrupted: Path) -> None:
    """Bit for bit."""
    expected, found = final_weights(uninterrupted), final_weights(output)
    assert expected.keys() == found.keys()
    assert [name for name, value in expected.items() if not found[name].equal(value)] == []
    assert metrics(output) == metrics(uninterrupted)


def steps(output: Path) -> list[int]:
    return [entry["step"] for entry in metrics(output) if "reward" in entry]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
