"""Models that are supported, those that are refused before they are used, compiled layers, and copies in bf16."""

import copy
from collections.abc import Callable
from functools import cache, partial
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, T5ForConditionalGeneration

from ebft.method.layout import PackedLayout, StridedLayout
from ebft.model import attention, backbone
from ebft.model.backbone import (
    WorkingCopy,
    check_training_pass,
    compile_layers,
    copy_in_dtype,
    decoder_of,
    idle_parameters,
    in_float32,
    packed_hidden_states,
    prepare_model,
)
from ebft.model.backbone import output_head as head_of
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import _generate, rollout
from tests.models import MIXTURES, SIZES, config_of, model_of, tiny_model
from tests.plain import LAYOUT, off, places, plain_hidden_states, random_batch, some_loss, some_packed, untouched

SINKS = {**SIZES, "num_hidden_layers": 2, "head_dim": 16, "num_local_experts": 4, "sliding_window": 64}
FEW = dict(vocab_size=20, hidden_size=8)
from_config = AutoModelForCausalLM.from_config


class TestUnsupportedModels:
    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: from_config(config_of("mamba", **FEW, num_hidden_layers=1)), "linear_attention"),
            (lambda: from_config(config_of("bloom", **FEW, n_layer=1, n_head=2)), "does not pass"),
            (lambda: T5ForConditionalGeneration(config_of("t5", **FEW, num_layers=1)), "decoder-only"),
            (lambda: from_config(config_of("gpt_oss", **SINKS)), "gives attention 's_aux'"),
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
    model = from_config(config_of(family, **sizes, **{setting: value})).eval()
    ids, head = torch.arange(1, 9)[None], head_of(model)
    logits = decoder_of(model)(ids).last_hidden_state @ head.weight.T * head.scale
    logits = logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
    torch.testing.assert_close(logits, model(ids).logits)


# ---- what the check of a model finds out -------------------------------------------------------------------------

SWITCH = 14


def phimoe(**changes: float) -> PreTrainedConfig:
    return config_of("phimoe", **SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, **changes)


def dynamic() -> PreTrainedConfig:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    return config_of("llama", **SIZES | dict(max_position_embeddings=SWITCH, rope_parameters=rope))


def longrope() -> PreTrainedConfig:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    lengths = dict(max_position_embeddings=4 * SWITCH, original_max_position_embeddings=SWITCH)
    return config_of("phi3", **SIZES | lengths | dict(pad_token_id=0, rope_parameters=rope))


class TestWindows:
    def test_that_only_the_mask_has(self) -> None:
        """In all layers; the families of tests/equivalence have one with windows in some."""
        prepare_model(model_of(phimoe()))

    @pytest.mark.parametrize("window", [5, 4096])
    def test_that_ebft_does_not_know_are_found_however_long(self, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attention, "_window_of_mask", lambda module: None)
        model = tiny_model("qwen2_moe", sliding_window=window)
        with pytest.raises(ValueError, match="other logits for a packed sequence"):
            prepare_model(model)
        assert model.config.sliding_window == window
        assert model.config._attn_implementation == "sdpa"


class TestPositionsThatDependOnTheLength:
    @pytest.mark.parametrize("config", [dynamic, longrope])
    def test_are_exact_where_they_do_not(self, config) -> None:  # type: ignore[no-untyped-def]
        model, layout = model_of(config()), StridedLayout(SWITCH, 4, 3, 2)
        plain, (ids, completions) = untouched(model), random_batch(layout)
        with torch.no_grad():
            hidden = packed_hidden_states(model, layout.pack(ids, completions), layout)
        for place in places(ids, completions, layout):
            assert off(hidden[place.row, place.slots], plain_hidden_states(plain, place.sequence)[-1][-4:]) < 1e-5

    @pytest.mark.parametrize("config", [dynamic, longrope])
    def test_are_refused_beyond(self, config) -> None:  # type: ignore[no-untyped-def]
        """By every pass, where contexts are longer, and where completions end beyond."""
        model = model_of(config())
        features = FeatureNetwork(model)
        for layout in StridedLayout(SWITCH + 1, 4, 3, 2), PackedLayout(SWITCH, 4, 2, torch.tensor([3, SWITCH - 3])):
            ids, packed = (torch.zeros(1, n, dtype=torch.long) for n in (layout.context_length, layout.packed_length))
            for run, given in (rollout, (model, ids)), (packed_hidden_states, (model, packed)), (features, (packed,)):
                with pytest.raises(ValueError, match=f"RoPE, whose frequencies change .*use context_length<={SWITCH}"):
                    run(*given, layout)


def test_layers_whose_keys_a_rollout_cannot_keep_apart() -> None:
    """Two calls of attention in a layer: the packed pass is right, and the second call overwrites the first's keys."""
    with pytest.raises(ValueError, match="other logits in the cached passes of a rollout"):
        prepare_model(model_of(config_of("diffllama", **SIZES)))


def test_experts_that_are_drawn_at_random_in_training() -> None:
    with pytest.raises(ValueError, match=r"in training than in evaluation \(router_jitter_noise=0.01.*; set it to 0"):
        check_training_pass(model_of(phimoe()))
    check_training_pass(model_of(phimoe(router_jitter_noise=0.0)))
    check_training_pass(tiny_model("qwen2_moe"))


class TestNarrowWeights:
    """Rounding to bf16 grows through a deep model; the check is about what the model computes, not about that."""

    @pytest.mark.parametrize("supported", [True, False])
    def test_are_the_same_tensors_after_the_check(self, supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        model = model_of(config_of("llama", **SIZES | dict(num_hidden_layers=24, tie_word_embeddings=True)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
        model.to(torch.bfloat16)
        model.model.layers[3].input_layernorm.float()  # some models keep a few weights wide
        before = {name: (tensor.dtype, tensor.data_ptr()) for name, tensor in model.state_dict().items()}
        if supported:
            prepare_model(model)
        else:
            monkeypatch.setattr(backbone, "_cached_rows", Mock(side_effect=RuntimeError("no such attention")))
            with pytest.raises(ValueError, match="does not pass ebft's attention through"):
                prepare_model(model)
        assert {name: (tensor.dtype, tensor.data_ptr()) for name, tensor in model.state_dict().items()} == before
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    def test_hide_no_error_that_is_smaller_than_their_rounding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Logits that are off by a tenth: less than what bf16 may lose, and found nevertheless."""
        model = tiny_model().to(torch.bfloat16)
        right = backbone._cached_rows
        monkeypatch.setattr(backbone, "_cached_rows", lambda *args: 1.1 * right(*args))
        with pytest.raises(ValueError, match=r"other logits in the cached passes .*difference 0\.1\)"):
            prepare_model(model)

    def test_that_are_quantised_stay_as_they_are(self) -> None:
        model = tiny_model().to(torch.bfloat16)
        model.hf_quantizer = object()
        with in_float32(model):
            assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


# ---- copies in bf16: the one that computes, and frozen networks -----------------------------------------------------


def test_a_copy_keeps_buffers_in_float32_and_ties_tied() -> None:
    """Frequencies of rotary embeddings in bf16 would move far positions by whole turns."""
    model = tiny_model("qwen2")  # tied embeddings
    copied, pairs = copy_in_dtype(model, torch.bfloat16)
    assert {p.dtype for p in copied.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in copied.buffers()} == {b.dtype for b in model.buffers()} == {torch.float32}
    assert copied.get_input_embeddings().weight is copied.get_output_embeddings().weight
    assert len(pairs) == len(list(model.parameters()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    frequencies = [dict(decoder_of(model).named_buffers())["rotary_emb.inv_freq"]]
    frozen = (FeatureNetwork(model, source=source, dtype=torch.bfloat16) for source in ("copy", "random"))
    frequencies += [dict(network.network.named_buffers())["rotary_emb.inv_freq"] for network in frozen]
    torch.testing.assert_close(frequencies[1:], 2 * frequencies[:1])


def test_gradients_of_many_micro_batches_add_up_in_float32() -> None:
    model = tiny_model().train()
    prepare_model(model)
    working = WorkingCopy(model)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    apart, _ = copy_in_dtype(model, torch.bfloat16)
    for seed in range(5):
        some_loss(working.model, some_packed(seed)).backward()
        some_loss(apart, some_packed(seed)).backward()
        for total, p in zip(expected, apart.parameters(), strict=True):
            if p.grad is not None:  # the head takes no part in this loss
                total += p.grad.float()
                p.grad = None
    assert all(p.grad is None for p in working.model.parameters())
    for total, p in zip(expected, model.parameters(), strict=True):
        if p.grad is None:
            assert not total.any()
            continue
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad, total, rtol=1e-6, atol=1e-7)
