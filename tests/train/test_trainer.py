from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from ebft import EBFTConfig, EBFTTrainer
from ebft.data.formats import Document
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.store import TokenStore
from ebft.errors import ConfigError
from ebft.method.layout import StridedLayout
from ebft.model.backbone import packed_hidden_states
from ebft.train.networks import Networks
from ebft.train.trainer import TrainingDiverged
from tests.models import tiny_model
from tests.plain import places, plain_logits

T, VOCABULARY = 32, 24


def small_model(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=4, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes))


def counting_text(documents: int = 64, seed: int = 0) -> SequenceDataset:
    """Documents that count up by a step of their own, modulo the vocabulary: easy to learn, not at once."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(documents):
        start, step = torch.randint(VOCABULARY, (2,), generator=generator).tolist()
        tokens = [(start + i * (1 + step % 3)) % VOCABULARY for i in range(40)]
        made.append(Document(tokens, [i >= 10 for i in range(40)]))
    return SequenceDataset(DocumentIndex.of(TokenStore.from_documents(made)), T)


def config(output: Path, **changes: Any) -> EBFTConfig:
    settings: dict[str, Any] = dict(
        output_dir=str(output),
        use_cpu=True,
        context_length=T,
        horizon=4,
        stride=4,
        samples=4,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        warmup_steps=0,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        samples_every=0,
    )
    return EBFTConfig(**{**settings, **changes})


def weights(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Models this small are faster on one thread, and bit-exact on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def half_trained() -> dict[str, Tensor]:
    """A model that has seen some of the text, so that its rollouts and features mean something."""
    model, data = small_model(), counting_text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(45):
        rows = [data[(step * 8 + i) % len(data)]["input_ids"] for i in range(8)]
        ids = torch.stack(rows)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize(("gamma", "whitening"), [(0.0, "none"), (0.0, "reference"), (0.1, "reference")])
def test_a_model_learns(tmp_path: Path, half_trained: dict[str, Tensor], gamma: float, whitening: str) -> None:
    """Feature-matching loss falls, with and without cross-entropy beside it; so does cross-entropy."""
    model = small_model()
    model.load_state_dict(half_trained)
    args = config(
        tmp_path, max_steps=150, gamma=gamma, whitening=whitening, learning_rate=3e-4, logging_steps=50, temperature=1.0
    )
    trainer = EBFTTrainer(model, args, counting_text(), counting_text(seed=1))
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_cfm"] < before["eval_cfm"] - before["eval_cfm_se"]
    assert after["eval_cross_entropy"] < before["eval_cross_entropy"]


def test_accumulated_micro_batches_equal_one_batch(tmp_path: Path) -> None:
    results = []
    for batch, accumulation, at_once in ((8, 1, None), (2, 4, None), (4, 2, 3)):
        args = config(
            tmp_path / f"{batch}-{at_once}",
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            rollout_batch_size=at_once,
            gamma=0.1,
            document_masks=True,
            optim="sgd",  # Adam's first steps are signs of gradients, which rounding flips where they are near zero
            learning_rate=0.1,
        )
        trainer = EBFTTrainer(small_model(), args, counting_text())
        trainer.train()
        log = [entry for entry in trainer.state.log_history if "reward" in entry]
        results.append((weights(trainer.model), log))
    first_weights, first_log = results[0]
    for other_weights, other_log in results[1:]:
        for name, value in first_weights.items():
            torch.testing.assert_close(other_weights[name], value, rtol=1e-4, atol=1e-6)
        for mine, other in zip(first_log, other_log, strict=True):
            for name in ("loss", "reward", "grad_norm", "ebft/cross_entropy", "entropy", "ebft/cfm", "ebft/distinct"):
                assert mine[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_checkpointing_changes_nothing(tmp_path: Path, checkpointing: bool) -> None:
    args = config(tmp_path / str(checkpointing), gradient_checkpointing=checkpointing, gamma=0.1, max_steps=2)
    trainer = EBFTTrainer(small_model(), args, counting_text())
    trainer.train()
    plain = EBFTTrainer(small_model(), config(tmp_path / "plain", gamma=0.1, max_steps=2), counting_text())
    plain.train()
    for name, value in weights(plain.model).items():
        torch.testing.assert_close(weights(trainer.model)[name], value, rtol=1e-4, atol=1e-6)


def test_evaluation_repeats_and_does_not_disturb_training(tmp_path: Path) -> None:
    quiet = EBFTTrainer(small_model(), config(tmp_path / "quiet"), counting_text(), counting_text(seed=1))
    quiet.train()
    watched_args = config(tmp_path / "watched", eval_strategy="steps", eval_steps=1)
    watched = EBFTTrainer(small_model(), watched_args, counting_text(), counting_text(seed=1))
    first, again = watched.evaluate(), watched.evaluate()
    assert {k: v for k, v in first.items() if "runtime" not in k} == {
        k: v for k, v in again.items() if "runtime" not in k
    }
    watched.train()
    for name, value in weights(quiet.model).items():
        assert torch.equal(weights(watched.model)[name], value), name


def test_evaluation_equals_plain_cross_entropy(tmp_path: Path) -> None:
    model, data = small_model(), counting_text(seed=1)
    trainer = EBFTTrainer(model, config(tmp_path), counting_text(), data)
    found = trainer.evaluate()
    total, count, answers, answer_count = 0.0, 0, 0.0, 0
    with torch.no_grad():
        for row in range(len(data)):
            real = int((data[row]["document_ids"] >= 0).sum())
            ids = data[row]["input_ids"][None, :real]
            losses = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
            flags = data[row]["answer_mask"][1:real]
            total, count = total + float(losses.sum()), count + real - 1
            answers, answer_count = answers + float(losses[flags].sum()), answer_count + int(flags.sum())
    assert found["eval_cross_entropy"] == pytest.approx(total / count, rel=1e-4)
    assert found["eval_answer_cross_entropy"] == pytest.approx(answers / answer_count, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"anchors": "answer_start", "horizon": 12},
        {"anchors": "answer_start", "horizon": 12, "document_masks": True},
        {"answer_only": True},
        {"document_masks": True, "answer_only": True, "gamma": 0.1},
        {"whitening": "both", "alpha": 0.5},
        {"kl_weight": 0.1},
        {"feature_source": "random", "feature_pooling": "mean", "feature_normalize": "joint"},
        {"feature_source": "average"},
        {"feature_layers": [0, 0.5, 4]},
        {"samples": 1, "eval_samples": 2},
        {"save_log_spaced": True, "save_strategy": "steps", "save_steps": 3},
    ],
    ids=str,
)
def test_every_option_trains(tmp_path: Path, changes: dict[str, Any]) -> None:
    start = weights(small_model())
    args = config(tmp_path, max_steps=2, **changes)
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    trainer.train()
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert any(not torch.equal(start[name], value) for name, value in weights(trainer.model).items())
    assert trainer.evaluate()["eval_cfm"] > 0
    if "save_log_spaced" in changes:
        assert {p.name for p in tmp_path.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}


def test_kl_keeps_the_model_near_its_start(tmp_path: Path) -> None:
    moved = []
    for weight in (0.0, 30.0):
        model = small_model()
        args = config(tmp_path / str(weight), kl_weight=weight, max_steps=20, learning_rate=1e-3)
        trainer = EBFTTrainer(model, args, counting_text(), counting_text(documents=8, seed=1))
        ids = counting_text()[0]["input_ids"][None]
        before = model(ids).logits.log_softmax(-1).detach()
        trainer.train()
        after = model(ids).logits.log_softmax(-1).detach()
        moved.append(float((before.exp() * (before - after)).sum(-1).mean()))
    assert moved[1] < moved[0] / 2


def test_lora_uses_the_base_model_as_frozen_network_and_saves_an_adapter(tmp_path: Path) -> None:
    model = small_model()
    start = weights(model)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    args = config(tmp_path, kl_weight=0.01, learning_rate=1e-2)
    trainer = EBFTTrainer(model, args, counting_text(), counting_text(documents=8, seed=1), peft_config=adapter)
    assert trainer.features.source == "adapter_off"
    assert trainer.networks.reference is None
    trainer.train()
    assert all(
        torch.equal(start[n.replace(".base_layer", "")], p) for n, p in model.named_parameters() if "lora" not in n
    )
    trainer.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


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
    assert float(terms.kl) > 0.01
    torch.testing.assert_close(terms.kl, torch.stack(expected).mean())


def test_what_is_logged(tmp_path: Path) -> None:
    args = config(tmp_path, gamma=0.1, eval_strategy="steps", eval_steps=2, samples_every=2)
    EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1)).train()
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    training = next(e for e in entries if "reward" in e)
    for name in [
        "loss",
        "reward",
        "reward_std",
        "entropy",
        "num_tokens",
        "step_time",
        "grad_norm",
        "learning_rate",
        "ebft/alignment",
        "ebft/diversity",
        "ebft/distinct",
        "ebft/cfm",
        "ebft/cross_entropy",
        "ebft/policy_loss",
        "ebft/seconds_rollout",
        "ebft/seconds_features",
        "ebft/seconds_rewards",
        "ebft/seconds_update",
        "ebft/tokens_per_second",
    ]:
        assert name in training, name
    assert training["reward"] == pytest.approx(training["ebft/alignment"] - training["ebft/diversity"], abs=1e-6)
    evaluation = next(e for e in entries if "eval_cfm" in e)
    for name in ("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy"):
        assert evaluation[f"eval_{name}_se"] > 0
    table = (tmp_path / "samples" / "step-000002.md").read_text()
    assert "| truth |" in table
    assert table.count("| sample ") == 4 * 4


def test_divergence_stops_with_what_to_try(tmp_path: Path) -> None:
    trainer = EBFTTrainer(small_model(), config(tmp_path), counting_text())
    with torch.no_grad():
        trainer.model.lm_head.weight[0].fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match=r"at step 1.*try a lower learning_rate"):
        trainer.train()
    with pytest.raises(TrainingDiverged, match="at step 1, beyond max_reward"):
        EBFTTrainer(small_model(), config(tmp_path, max_reward=1e-6), counting_text()).train()


def test_the_final_model_is_an_ordinary_one(tmp_path: Path) -> None:
    trainer = EBFTTrainer(small_model(), config(tmp_path), counting_text())
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert loaded.config._attn_implementation != "ebft"
    ids = counting_text()[0]["input_ids"][None, :8]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, trainer.model(ids).logits)
    assert loaded.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0).shape == (1, 12)


def test_dropout_is_turned_off(tmp_path: Path) -> None:
    model = tiny_model("gpt2", vocab_size=VOCABULARY)
    EBFTTrainer(model, config(tmp_path, max_steps=1), counting_text()).train()
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))


def opt_with_dropout() -> PreTrainedModel:
    """Its dropouts are calls of functions, with rates that its modules keep."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, ffn_dim=48, num_hidden_layers=4, num_attention_heads=2, word_embed_proj_dim=32)
    rates = dict(dropout=0.1, attention_dropout=0.1, layerdrop=0.3)
    return OPTForCausalLM(OPTConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes, **rates))


def test_functional_dropout_is_turned_off(tmp_path: Path) -> None:
    model = opt_with_dropout()
    trainer = EBFTTrainer(model, config(tmp_path, max_steps=1), counting_text())
    trainer.train()
    layout = StridedLayout(16, 3, 4, 2)
    packed = torch.randint(VOCABULARY, (2, layout.packed_length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = (packed_hidden_states(model.train(), packed, layout) for _ in range(2))
        evaluated = packed_hidden_states(model.eval(), packed, layout)
    assert torch.equal(first, second)
    assert torch.equal(first, evaluated)


class Noise(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module, self.rate = module, 0.1

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(self.module(x), self.rate, self.training)


def test_randomness_that_cannot_be_turned_off_is_refused(tmp_path: Path) -> None:
    model = small_model()
    model.model.layers[1].mlp = Noise(model.model.layers[1].mlp)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"computes something else in training than in evaluation .* set it to 0"):
        Networks(model, config(tmp_path), None)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training == small_model().training
    Networks(model, config(tmp_path, disable_dropout=False), None)  # what the user asks for


def test_rows_of_text_need_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="processing_class"):
        EBFTTrainer(small_model(), config(tmp_path), [{"text": "a"}])


@pytest.mark.parametrize("metric", ["cfm", "whitened_proxy"])
def test_the_best_checkpoint_is_the_best(tmp_path: Path, metric: str) -> None:
    """Smaller is better but for the proxy and the reward, and the best one survives the limit."""
    args = config(
        tmp_path,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=metric,
        learning_rate=3e-3,
    )
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    trainer.train()
    seen = {e["step"]: e[f"eval_{metric}"] for e in trainer.state.log_history if f"eval_{metric}" in e}
    best = (max if metric == "whitened_proxy" else min)(seen, key=lambda step: seen[step])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert (tmp_path / f"checkpoint-{best}" / "COMPLETE").exists()
    assert trainer.evaluate()[f"eval_{metric}"] == pytest.approx(seen[best], rel=1e-5)


def test_bf16_computes_on_a_copy_and_trains_float32_weights(tmp_path: Path) -> None:
    """Steps far below the resolution of bf16 are not lost, and what is saved is what is trained."""
    args = config(tmp_path, bf16=True, gamma=0.1, learning_rate=1e-6, max_steps=6, gradient_accumulation_steps=2)
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    assert trainer.networks.working is not None
    start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {p.dtype for p in trainer.networks.working.model.parameters()} == {torch.bfloat16}
    assert all(not torch.equal(start[name], p) for name, p in trainer.model.named_parameters())
    trainer.save_model(str(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    for name, p in trainer.model.named_parameters():
        assert torch.equal(saved.get_parameter(name), p), name


def test_bf16_and_float32_take_nearly_the_same_steps(tmp_path: Path) -> None:
    """The same data from the same weights: the gradient's direction agrees up to rounding and other samples."""
    gradients = []
    for bf16 in (False, True):
        args = config(tmp_path / str(bf16), bf16=bf16, gamma=1.0, whitening="none", max_steps=1, max_grad_norm=0.0)
        trainer = EBFTTrainer(small_model(), args, counting_text())
        trainer.create_optimizer_and_scheduler(1)
        trainer.state.max_steps = 1
        batch = next(iter(trainer.get_train_dataloader()))
        window, count = trainer.get_batch_samples(iter([batch]), 1, args.device)
        trainer.current_gradient_accumulation_steps = 1
        trainer.training_step(trainer.model, window[0], count)
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]))
    assert float(torch.nn.functional.cosine_similarity(*gradients, dim=0)) > 0.98
    assert float(gradients[1].norm() / gradients[0].norm()) == pytest.approx(1, abs=0.1)


def test_float16_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights are in float16, .*; load it in float32 or bfloat16"):
        EBFTTrainer(small_model().half(), config(tmp_path), counting_text())
