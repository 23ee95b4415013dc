"""Training with the trainer, its networks, and both on a GPU."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import OPTConfig, OPTForCausalLM, PreTrainedModel, TrainerCallback

from ebft import EBFTTrainer
from ebft.data import packing
from ebft.errors import TrainingDiverged
from ebft.method.layout import StridedLayout
from ebft.model.backbone import packed_hidden_states
from ebft.train import measured
from ebft.train.networks import Networks
from tests.baselines.runs import ROWS, make_model, results_of, write_recipe, write_rows
from tests.models import tiny_model
from tests.plain import places, plain_logits
from tests.train.small_runs import VOCABULARY, config, counting_text, small_model, weights


def test_a_model_learns(tmp_path: Path) -> None:
    """Feature-matching loss falls; so does cross-entropy, without a term of its own."""
    model, data = small_model(), counting_text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(45):  # it has seen some of the text, so that its rollouts and features mean something
        ids = torch.stack([data[(step * 8 + i) % len(data)]["input_ids"] for i in range(8)])
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    changes = dict(max_steps=25, whitening="none", learning_rate=5e-4, temperature=1.0)
    trainer = EBFTTrainer(model, config(tmp_path, **changes), data, counting_text(seed=1))
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_cfm"] < before["eval_cfm"] - before["eval_cfm_se"]
    assert after["eval_cross_entropy"] < before["eval_cross_entropy"]


def test_accumulated_micro_batches_and_gradient_checkpointing_change_nothing(tmp_path: Path) -> None:
    results = []
    for batch, accumulation, at_once, checkpointing in (8, 1, None, False), (2, 4, None, True), (4, 2, 3, False):
        sizes = dict(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation)
        sizes |= dict(rollout_batch_size=at_once, gradient_checkpointing=checkpointing)
        # Adam's first steps are signs of gradients, which rounding flips where they are near zero.
        changes = dict(gamma=0.1, document_masks=True, optim="sgd", learning_rate=0.1)
        args = config(tmp_path / f"{batch}-{at_once}-{checkpointing}", **sizes, **changes)
        trainer = EBFTTrainer(small_model(), args, counting_text())
        trainer.train()
        log = [entry for entry in trainer.state.log_history if "reward" in entry]
        results.append((weights(trainer.model), log))
    first_weights, first_log = results[0]
    for other_weights, other_log in results[1:]:
        torch.testing.assert_close(other_weights, first_weights, rtol=1e-4, atol=1e-6)
        for mine, other in zip(first_log, other_log, strict=True):
            for name in ("loss", "reward", "grad_norm", "ebft/cross_entropy", "entropy", "ebft/cfm", "ebft/distinct"):
                assert mine[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


def test_filled_up_batches_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a short last batch is filled up with rows of nothing."""
    found = []
    for fill in (False, True):
        monkeypatch.setattr(packing, "compiles_for_sizes", lambda _, fill=fill: fill)
        sizes = dict(per_device_train_batch_size=4, per_device_eval_batch_size=4, gradient_accumulation_steps=2)
        args = config(tmp_path / str(fill), num_train_epochs=2, max_steps=-1, gamma=0.1, **sizes)
        trainer = EBFTTrainer(small_model(), args, counting_text(documents=11), counting_text(documents=5, seed=1))
        made = {len(batch["input_ids"]) for batch in trainer.get_train_dataloader()}
        assert (made == {4}) == fill, "otherwise the last one is short"
        trainer.train()
        trainer.evaluate()
        logged = [{k: v for k, v in entry.items() if k in ("loss", "reward")} for entry in trainer.state.log_history]
        found.append((weights(trainer.model), [*trainer.records["after"], *logged]))
    (plain, numbers), (filled, same_numbers) = found
    assert numbers == [pytest.approx(each, rel=1e-4) for each in same_numbers]
    torch.testing.assert_close(filled, plain, rtol=1e-4, atol=1e-5)


def test_evaluation_repeats_and_does_not_disturb_training(tmp_path: Path) -> None:
    held_out = counting_text(documents=8, seed=1)
    quiet = EBFTTrainer(small_model(), config(tmp_path / "quiet"), counting_text(), held_out)
    quiet.train()
    watched_args = config(tmp_path / "watched", eval_strategy="steps", eval_steps=1, logging_steps=3)
    watched = EBFTTrainer(small_model(), watched_args, counting_text(), held_out)
    first, again = ({k: v for k, v in watched.evaluate().items() if "runtime" not in k} for _ in range(2))
    assert first == again
    watched.train()
    for name, value in weights(quiet.model).items():
        assert torch.equal(weights(watched.model)[name], value), name
    logged = [entry["step"] for entry in watched.state.log_history if "reward" in entry]
    assert logged == [3, 4], "the last step in any case"


@pytest.mark.parametrize(
    "changes",
    [
        {"anchors": "answer_start", "horizon": 12, "document_masks": True, "whitening": "both", "alpha": 0.5}
        | {"feature_source": "random", "feature_pooling": "mean", "feature_normalize": "joint"},
        {"feature_source": "average", "feature_layers": [0, 0.5, 4], "samples": 1, "eval_samples": 2, "kl_weight": 0.1}
        | {"save_log_spaced": True, "save_strategy": "steps", "save_steps": 3},
    ],
)
def test_every_option_trains(tmp_path: Path, changes: dict[str, Any]) -> None:
    start = weights(small_model())
    args = config(tmp_path, max_steps=2, **changes)
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    trainer.train()
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert any(not torch.equal(start[name], value) for name, value in weights(trainer.model).items())
    assert trainer.evaluate()["eval_cfm"] > 0
    saved = {"checkpoint-1", "checkpoint-2"} if "save_log_spaced" in changes else set()
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == saved


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_divergence_stops_the_run_before_its_step_with_what_to_try(tmp_path: Path, max_grad_norm: float) -> None:
    trainer = EBFTTrainer(small_model(), config(tmp_path, max_grad_norm=max_grad_norm), counting_text())
    before = weights(trainer.model)
    # The loss is a number at this step, so only the gradient tells.
    hook = trainer.model.lm_head.weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(TrainingDiverged, match="the gradient's norm is nan at step 1; try a lower learning_rate"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer.model).items())
    hook.remove()
    with torch.no_grad():
        trainer.model.lm_head.weight[0].fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match=r"at step 1.*try a lower learning_rate"):
        trainer.train()
    with pytest.raises(TrainingDiverged, match="at step 1, beyond max_reward=1e-06"):
        EBFTTrainer(small_model(), config(tmp_path, max_reward=1e-6), counting_text()).train()


def test_torch_that_was_imported_first_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Its threads then wait as they like."""
    for was_first in (False, True):
        monkeypatch.setattr(measured, "TORCH_WAS_FIRST", was_first)
        EBFTTrainer(small_model(), config(tmp_path), counting_text(8))
        assert ("import ebft first" in caplog.text) == was_first


# ---- on a GPU ----------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_float32_on_a_gpu_gives_what_a_cpu_gives(tmp_path: Path) -> None:
    logs = []
    for device in ("cpu", "cuda"):
        args = config(tmp_path / device, use_cpu=device == "cpu", gamma=0.1, document_masks=True, max_steps=3)
        trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "reward" in entry])
    for on_cpu, on_gpu in zip(*logs, strict=True):
        for name in ("loss", "reward", "grad_norm", "entropy", "ebft/cfm", "ebft/cross_entropy", "ebft/distinct"):
            assert on_gpu[name] == pytest.approx(on_cpu[name], rel=5e-3, abs=1e-4), name


@pytest.mark.cuda
@pytest.mark.parametrize("changes", [{}, {"document_masks": True}, {"packing": False}], ids=str)
def test_later_steps_compile_nothing_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    graphs: list[int] = []

    class Count(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    args = config(tmp_path, use_cpu=False, bf16=True, gamma=0.1, gradient_accumulation_steps=2, max_steps=8, **changes)
    EBFTTrainer(small_model(), args, counting_text(), callbacks=[Count()]).train()
    assert graphs[3] == graphs[-1]


def on_the_gpu(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """The results of `ebft train` in a process of its own, so that process groups end with it."""
    base, rows = folder / "base", folder / "rows.jsonl"
    if not base.exists():
        make_model(base, intermediate_size=128)
        write_rows(rows, ROWS)
    recipe = write_recipe(folder, base, rows, use_cpu=False)
    command = [sys.executable, "-m", "ebft.cli", "train", "--config", str(recipe), "--output_dir", str(folder / name)]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return results_of(folder / name)


@pytest.mark.cuda
def test_shards_over_nccl_train_as_a_whole_model_does(tmp_path: Path) -> None:
    whole = on_the_gpu(tmp_path, "whole")
    sharded = on_the_gpu(tmp_path, "sharded", "--fsdp", "full_shard")
    for name in ("eval_cross_entropy", "eval_cfm"):
        assert sharded["after"][name] == pytest.approx(whole["after"][name], rel=1e-3), name
        assert sharded["after"][name] != sharded["before"][name], "it has trained"


@pytest.mark.cuda
def test_four_bits_train_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    results = on_the_gpu(tmp_path, "out", "--lora", "--load_in_4bit", "--bf16", "--learning_rate", "0.01")
    assert results["after"]["eval_cross_entropy"] < results["before"]["eval_cross_entropy"]


def test_bf16_and_float32_take_nearly_the_same_step(tmp_path: Path) -> None:
    """The same data from the same weights: the gradient's direction agrees up to rounding and other samples. bf16
    computes on a copy, and a step far below its resolution is not lost to the float32 weights."""
    moved = []
    for bf16 in (False, True):
        settings: dict[str, Any] = dict(optim="sgd", learning_rate=1e-4, max_grad_norm=0.0, gamma=1.0, max_steps=1)
        args = config(tmp_path / str(bf16), bf16=bf16, whitening="none", **settings)
        trainer = EBFTTrainer(small_model(), args, counting_text())
        start = weights(trainer.model)
        trainer.train()
        moved.append(torch.cat([(p - start[name]).flatten() for name, p in weights(trainer.model).items()]))
    assert trainer.networks.working is not None
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    for p, copied in zip(trainer.model.parameters(), trainer.networks.compute_model().parameters(), strict=True):
        assert copied.dtype == torch.bfloat16
        assert torch.equal(p.bfloat16(), copied)
    assert float(torch.nn.functional.cosine_similarity(*moved, dim=0)) > 0.98
    assert float(moved[1].norm() / moved[0].norm()) == pytest.approx(1, abs=0.1)


def test_weights_in_bf16_are_said(tmp_path: Path, caplog: Any) -> None:
    EBFTTrainer(small_model().bfloat16(), config(tmp_path), counting_text())
    assert "load them with dtype=torch.float32" in caplog.text


def test_kl_is_from_the_base_models_head_where_the_adapter_trains_one(tmp_path: Path) -> None:
    """The divergence of the loss, against plain sequences run one by one through the model at the start and now."""
    start, now, tau = small_model(), small_model(), 0.7
    adapter = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    args = config(tmp_path, kl_weight=0.1, temperature=tau)
    trainer = EBFTTrainer(small_model(), args, counting_text(), peft_config=adapter)
    trainer.state.max_steps = 1
    with torch.no_grad():  # the adapter itself begins as nothing: only the head has moved
        moved = now.lm_head.weight
        moved += 0.5 * torch.randn(moved.shape, generator=torch.Generator().manual_seed(0))
        trainer.model.base_model.model.lm_head.modules_to_save["default"].weight.copy_(moved)
    batches, _ = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, torch.device("cpu"))
    _, terms = trainer.compute_loss(trainer.model, batches[0], return_outputs=True)
    packed, layout = batches[0]["input_ids"], batches[0]["layout"]
    expected = []
    for place in places(packed[:, : layout.context_length], layout.completions(packed), layout):
        rows = slice(-layout.horizon - 1, -1)
        log_p, log_q = (
            (plain_logits(model.eval(), place.sequence)[rows] / tau).log_softmax(-1) for model in (now, start)
        )
        expected.append((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    assert trainer.features.source == "adapter_off"
    assert trainer.networks.reference is None
    assert float(terms.kl) > 0.01
    torch.testing.assert_close(terms.kl, torch.stack(expected).mean())


def opt_with_dropout() -> PreTrainedModel:
    """Its dropouts are calls of functions, with rates that its modules keep."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, ffn_dim=48, num_hidden_layers=4, num_attention_heads=2, word_embed_proj_dim=32)
    rates = dict(dropout=0.1, attention_dropout=0.1, layerdrop=0.3)
    return OPTForCausalLM(OPTConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes, **rates))


@pytest.mark.parametrize("make", [opt_with_dropout, lambda: tiny_model("gpt2", vocab_size=VOCABULARY)])
def test_dropout_is_turned_off_in_modules_and_functions(tmp_path: Path, make: Any) -> None:
    model = make()
    EBFTTrainer(model, config(tmp_path), counting_text())
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    layout = StridedLayout(16, 3, 4, 2)
    packed = torch.randint(VOCABULARY, (2, layout.packed_length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = (packed_hidden_states(model.train(), packed, layout) for _ in range(2))
        evaluated = packed_hidden_states(model.eval(), packed, layout)
    assert torch.equal(first, second)
    assert torch.equal(first, evaluated)


def test_randomness_that_cannot_be_turned_off_is_refused(tmp_path: Path) -> None:
    model, state = small_model(), torch.get_rng_state()
    mlp = model.model.layers[1].mlp
    plain = mlp.forward
    mlp.forward = lambda x: torch.nn.functional.dropout(plain(x), 0.1, mlp.training)
    with pytest.raises(ValueError, match=r"computes something else in training than in evaluation .* set it to 0"):
        Networks(model, config(tmp_path), None)
    assert torch.equal(torch.get_rng_state(), state)
    Networks(model, config(tmp_path, disable_dropout=False), None)  # what the user asks for
