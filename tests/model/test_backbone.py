"""Models that are not supported are refused, and layers are compiled once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    GptOssConfig,
    MambaConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from ebft.method.layout import StridedLayout
from ebft.model import backbone
from ebft.model.backbone import compile_layers, decoder_of, idle_parameters, packed_hidden_states, prepare_model
from ebft.model.backbone import output_head as head_of
from ebft.model.rollout import _generate
from tests.model.batches import LAYOUT, some_loss, some_packed
from tests.models import MIXTURES, SIZES, tiny_model

SINKS = {**SIZES, "num_hidden_layers": 2, "head_dim": 16, "num_local_experts": 4, "sliding_window": 64}
from_config = AutoModelForCausalLM.from_config


class TestUnsupportedModels:
    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: from_config(MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1)), "linear_attention"),
            (lambda: from_config(BloomConfig(vocab_size=20, hidden_size=8, n_layer=1, n_head=2)), "does not pass"),
            (lambda: T5ForConditionalGeneration(T5Config(vocab_size=20, d_model=8, num_layers=1)), "decoder-only"),
            (lambda: from_config(GptOssConfig(**SINKS)), "gives attention 's_aux'"),
            (lambda: tiny_model("gpt2").train(), "gives attention 'dropout'"),
            (lambda: tiny_model().model, "AutoModelForCausalLM"),
        ],
        ids=["recurrent", "alibi", "encoder-decoder", "attention sinks", "dropout", "no head"],
    )
    def test_are_refused(self, make: Callable[[], torch.nn.Module], why: str) -> None:
        with pytest.raises(ValueError, match=why):
            packed_hidden_states(make(), some_packed(), LAYOUT)

    def test_whose_packed_pass_differs_from_plain_sequences(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A model that does something ebft does not know of is found out before it is trained."""
        model = tiny_model()
        forward = model.model.forward

        def with_absolute_positions(*args, **kwargs):  # type: ignore[no-untyped-def]
            kwargs["position_ids"] = torch.arange(kwargs["input_ids"].shape[1])[None]
            return forward(*args, **kwargs)

        monkeypatch.setattr(model.model, "forward", with_absolute_positions)
        with pytest.raises(ValueError, match="other logits for a packed sequence"):
            prepare_model(model)
        assert model.config._attn_implementation == "sdpa"


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_all_layers_share_what_is_compiled_and_nothing_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything torch.compile does except generating code: what is traced, shared and recompiled."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(backbone, "_compiled_class", cache(backbone._compiled_class.__wrapped__))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = tiny_model()
    plain = copy.deepcopy(model)
    prepare_model(model)
    for _ in range(2):  # twice is once
        compile_layers(decoder_of(model))
    found, expected = (some_loss(m, some_packed()) for m in (model, plain))
    torch.testing.assert_close(found, expected)
    compiled = graphs()
    assert 0 < compiled <= 5  # parts of a layer between attention and the rest, not of each of 4 layers
    some_loss(model, some_packed(1))
    documents = torch.tensor([[0] * 7 + [1] * 9, [0] * 12 + [-1] * 4])
    with_documents = StridedLayout(16, 3, 4, 2, document_ids=documents, fixed_shape=True)
    packed_hidden_states(model, some_packed(2), with_documents)
    assert graphs() == compiled
    rolled_out = []
    for sizes in (10, 20), (12, 22):  # the numbers of samples that are computed
        with torch.no_grad():
            given = (StridedLayout(16, 3, 2, 3), some_packed()[:, :16], torch.tensor([1, 2]), sizes)
            _generate(model, "sdpa", (0.5, None, None), *given)
        rolled_out.append(graphs())
    assert compiled < rolled_out[0] == rolled_out[1]
    copied = copy.deepcopy(model)  # which computes with its own weights
    with torch.no_grad():
        for p in copied.parameters():
            p.mul_(0.5)
    assert some_loss(model, some_packed()).item() == found.item() != some_loss(copied, some_packed()).item()


@pytest.mark.parametrize("family", ["llama", *MIXTURES])
def test_idle_parameters_are_those_of_the_other_experts(family: str) -> None:
    model = tiny_model(family)
    held = [part for part in model.modules() if hasattr(part, "num_experts")]
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    number = max((part.num_experts for part in held), default=2)
    assert bool(experts) == (family in MIXTURES)
    assert idle_parameters(model, model.config) == experts * (number - 2) / number


@pytest.mark.parametrize(
    ("family", "setting", "value"),
    [("granite", "logits_scaling", 3.0), ("cohere", "logit_scale", 0.5), ("gemma2", "final_logit_softcapping", 0.1)],
)
def test_the_head_scales_and_caps_as_the_model_does(family: str, setting: str, value: float) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 24, "pad_token_id": 0}
    model = from_config(AutoConfig.for_model(family, **sizes, **{setting: value})).eval()
    ids, head = torch.arange(1, 9)[None], head_of(model)
    logits = decoder_of(model)(ids).last_hidden_state @ head.weight.T * head.scale
    logits = logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
    torch.testing.assert_close(logits, model(ids).logits)
