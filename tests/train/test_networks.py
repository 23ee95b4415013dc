"""The networks of a run: what computes, the frozen feature network, the reference of the KL term."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import OPTConfig, OPTForCausalLM, PreTrainedModel

from ebft import EBFTTrainer
from ebft.method.layout import StridedLayout
from ebft.model.backbone import packed_hidden_states
from ebft.train.networks import Networks
from tests.models import tiny_model
from tests.plain import places, plain_logits
from tests.train.small_runs import VOCABULARY, config, counting_text, small_model, weights


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
