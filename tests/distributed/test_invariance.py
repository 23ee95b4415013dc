"""1, 2 and 4 processes do the same training with the same number of sequences per step (gloo, CPU, float32), whether
each holds the whole model or a shard of it (FSDP2)."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ebft import EBFTTrainer
from ebft.data.packing import SequenceDataset
from ebft.runtime import processes, sharding
from tests.distributed import group
from tests.train.small_runs import VOCABULARY, counting_text
from tests.train.small_runs import config as settings

PER_STEP = 8

# Settings that must not depend on the number of processes. 13 training sequences leave 5 for the second step of an
# epoch: 4 processes then have 2, 2, 1 and none.
SETTINGS: dict[str, dict[str, Any]] = {
    "feature_matching": {"whitening": "both"},
    # Its third step is of the second epoch.
    "documents": {"gamma": 0.1, "kl_weight": 0.05, "document_masks": True, "short_truths": True, "max_steps": 3},
    # Adam's first steps are signs of gradients, which rounding flips where they are near zero: a large epsilon.
    "answers": {"gamma": 0.1, "answer_only": True, "feature_source": "average", "feature_decay": 0.5}
    | {"optim": "adamw_torch", "learning_rate": 1e-2, "adam_epsilon": 1e-2},
    # One step: rounding in bf16 depends on the shapes of the batch, and from the second on other tokens are drawn.
    "bf16": {"gamma": 0.1, "bf16": True, "max_steps": 1},
    # With tied embeddings.
    "answer_starts": {"gamma": 0.1, "anchors": "answer_start", "horizon": 5, "packing": False}
    | {"gradient_checkpointing": True, "rollout_batch_size": 3},
    "lora": {"gamma": 0.1, "kl_weight": 0.05},
}
SHARDED = "full_shard"  # over the processes; elsewhere each has the whole model
# By the number of processes: settings and micro-batches per step, the same sequences in more and smaller pieces.
RUNS: dict[int, list[tuple[str | None, str, int]]] = {
    1: [(None, name, 1) for name in SETTINGS],
    2: [(None, "feature_matching", 4), (None, "answers", 1), (None, "bf16", 1)],
    4: [(None, "documents", 1), (None, "answer_starts", 1), (SHARDED, "documents", 2)],
}
RUNS[2] += [(SHARDED, name, 1) for name in ("answers", "answer_starts", "bf16", "lora")]


def model(tied: bool, sharded: bool) -> PreTrainedModel:
    rank = processes.rank()
    torch.manual_seed(rank)  # the first process's weights must reach the others
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2)
    # Large weights: the model is sure of some tokens, so that rollouts, rewards and gradients depend on it.
    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.25, tie_word_embeddings=tied, **sizes
    )
    with torch.device("meta" if sharded and rank % 2 else "cpu"):  # a sharded model needs no weights of its own there
        return LlamaForCausalLM(config)


def sequences(count: int, seed: int, packing: bool) -> SequenceDataset:
    """So many, of documents of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (20 + torch.randint(9, (2 * count,), generator=generator)).tolist()
    made = (counting_text(n, seed, lengths[:n], packing) for n in range(count, 2 * count))
    return next(dataset for dataset in made if len(dataset) >= count)


LORA = dict(r=2, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)


def train(folder: Path, setting: str, accumulation: int, world: int, fsdp: str | None = None) -> dict[str, Any]:
    sizes = {"per_device_train_batch_size": PER_STEP // accumulation // world, "per_device_eval_batch_size": 3}
    given = {"samples": 3, "gradient_accumulation_steps": accumulation, "max_grad_norm": 0.5, "fsdp": fsdp, **sizes}
    config = settings(folder, **{**given, "max_steps": 2, "optim": "sgd", "learning_rate": 0.1, **SETTINGS[setting]})
    train_set, held_out = (sequences(n, seed, config.packing) for n, seed in ((13, 0), (5, 1)))
    lora = LoraConfig(**LORA) if setting == "lora" else None
    trainer = EBFTTrainer(
        model(setting == "answer_starts", fsdp is not None), config, train_set, held_out, peft_config=lora
    )
    before = trainer.evaluate()
    before_training = whole_weights(trainer.model)
    trainer.train()
    after = trainer.evaluate()
    weights = whole_weights(trainer.model)
    saved = str(folder / f"final-{setting}-{accumulation}")
    if fsdp is not None:
        trainer.save_model(saved)
    total = torch.cat([p.flatten() for p in weights.values()]).double().sum()
    sums = processes.join_rows({"": total[None].cpu()}, config.device)[""].tolist()  # of each process
    return {
        "weights": weights,
        "before": before_training,
        "log": [entry for entry in trainer.state.log_history if "reward" in entry],
        "evaluations": [before, after],
        "same_on_all": len(set(sums)) == 1,
        "processes": len(sums),
        "saved": saved,
    }


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: sharding.whole(p.detach()).clone() for name, p in model.named_parameters() if p.requires_grad}


def main(folder: Path) -> None:
    world = int(os.environ.get("WORLD_SIZE", 1))
    for fsdp, setting, accumulation in RUNS[world]:
        found = train(folder / "run", setting, accumulation, world, fsdp)
        if processes.rank() == 0:
            torch.save(found, folder / f"{fsdp}-{setting}-{accumulation}.pt")
    processes.leave()


Results = dict[tuple[str | None, str, int, int], dict[str, Any]]  # by fsdp, setting, accumulation, processes


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    found: Results = {}
    for world in RUNS:
        folder = tmp_path_factory.mktemp(f"{world}-processes")
        ended = group.run(world, main, folder, folder=folder)
        assert ended.codes == [0] * world, ended.said
        for run in RUNS[world]:
            found[*run, world] = torch.load(folder / f"{'-'.join(map(str, run))}.pt")
    return found


LOGGED = ("loss", "grad_norm", "reward", "reward_std", "entropy", "ebft/policy_loss", "ebft/cross_entropy", "kl")
LOGGED += ("ebft/alignment", "ebft/diversity", "ebft/distinct", "ebft/cfm", "ebft/anchors", "ebft/packed_tokens")
LOGGED += ("num_tokens", "learning_rate")


@pytest.mark.parametrize(
    ("world", "fsdp", "setting", "accumulation"), [(world, *run) for world in (2, 4) for run in RUNS[world]]
)
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


@pytest.mark.parametrize("setting", ["answers", "answer_starts", "lora"])
def test_a_sharded_model_is_saved_as_an_ordinary_one(results: Results, setting: str) -> None:
    found = results[SHARDED, setting, 1, 2]
    saved: Any
    if setting == "lora":
        saved = PeftModel.from_pretrained(model(tied=False, sharded=False), found["saved"], is_trainable=True)
    else:
        saved = AutoModelForCausalLM.from_pretrained(found["saved"])
        assert (saved.lm_head.weight is saved.model.embed_tokens.weight) == (setting == "answer_starts")
    weights = whole_weights(saved)
    assert weights.keys() == found["weights"].keys()
    for name, value in weights.items():
        assert torch.equal(value, found["weights"][name]), name
