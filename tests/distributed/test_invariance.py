"""1, 2 and 4 processes do the same training with the same number of sequences per step (gloo, CPU, float32), whether
each holds the whole model or a shard of it (FSDP2)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.distributed import group, worker
from tests.distributed.worker import RUNS, SHARDED, runs

Results = dict[tuple[str | None, str, int, int], dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """(fsdp, setting, accumulation, processes) -> what the worker found."""
    found: Results = {}
    for world in RUNS:
        folder = tmp_path_factory.mktemp(f"{world}-processes")
        ended = group.run(world, worker.main, folder, folder=folder)
        assert ended.codes == [0] * world, ended.said
        for run in runs(world):
            found[*run, world] = torch.load(folder / f"{'-'.join(map(str, run))}.pt")
    return found


LOGGED = ("loss", "grad_norm", "reward", "reward_std", "entropy", "ebft/policy_loss", "ebft/cross_entropy", "kl")
LOGGED += ("ebft/alignment", "ebft/diversity", "ebft/distinct", "ebft/cfm", "ebft/anchors", "ebft/packed_tokens")
LOGGED += ("num_tokens", "learning_rate")


CASES = [(world, *run) for world in (1, 2, 4) for run in runs(world) if run[0] or world > 1]


@pytest.mark.parametrize(("world", "fsdp", "setting", "accumulation"), CASES)
def test_the_number_of_processes_changes_nothing(
    results: Results, world: int, fsdp: str | None, setting: str, accumulation: int
) -> None:
    one, several = results[None, setting, 1, 1], results[fsdp, setting, accumulation, world]
    assert several["processes"] == world
    assert several["same_on_all"], "the processes' weights have come apart"
    # Beside the weights, how far they have moved: that is little in a few steps. bf16 rounds more.
    relative, absolute = (1e-4, 1e-6) if setting != "bf16" else (1e-3, 1e-4)
    for name, value in one["weights"].items():
        if setting != "bf16":
            torch.testing.assert_close(several["weights"][name], value, rtol=1e-5, atol=2e-6, msg=name)
        moved, difference = (value - one["before"][name]).norm(), (several["weights"][name] - value).norm()
        assert moved > 5e-4
        assert difference < (1e-3 if setting != "bf16" else 2e-2) * moved, name
    for mine, other in zip(one["log"], several["log"], strict=True):
        assert {k for k in LOGGED if k in mine} == {k for k in LOGGED if k in other}
        for name in LOGGED:
            if name in mine:
                assert other[name] == pytest.approx(mine[name], rel=10 * relative, abs=10 * absolute), name
    # After a step in bf16 the weights differ a little, and the evaluation draws other tokens here and there.
    compared = slice(0, 1) if setting == "bf16" else slice(None)
    for mine, other in zip(one["evaluations"][compared], several["evaluations"][compared], strict=True):
        assert mine.keys() == other.keys()
        for name in mine.keys() - {"eval_runtime", "epoch", "spent/seconds"}:
            assert other[name] == pytest.approx(mine[name], rel=10 * relative, abs=10 * absolute), name


@pytest.mark.parametrize("setting", ["documents", "tied", "lora"])
def test_a_sharded_model_is_saved_as_an_ordinary_one(results: Results, setting: str) -> None:
    found = results[SHARDED, setting, 2 if setting == "documents" else 1, 2]
    model: Any
    if setting == "lora":
        base = worker.model(tied=False, sharded=False)
        model = PeftModel.from_pretrained(base, found["saved"], is_trainable=True)
    else:
        model = AutoModelForCausalLM.from_pretrained(found["saved"])
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == (setting == "tied")
    weights = worker.whole_weights(model)
    assert weights.keys() == found["weights"].keys()
    for name, value in weights.items():
        assert torch.equal(value, found["weights"][name]), name


@pytest.mark.parametrize("world", [2, 4])
def test_every_process_holds_its_part_only(results: Results, world: int) -> None:
    """Of the model, of the optimiser's two moments and of the frozen network, on every process."""
    whole, parts = results[None, "answers", 1, 1]["held"], results[SHARDED, "answers", 1, world]["held"]
    assert all(whole[name][0] > 30000 for name in ("model", "optimizer", "features"))
    for name, elements in whole.items():
        assert sum(parts[name]) == elements[0], name
        assert max(parts[name]) <= elements[0] / world * 1.05, name
