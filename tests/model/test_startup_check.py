"""What the check of a model finds out before it is used: windows, positions that depend on the length, caches."""

from __future__ import annotations

import pytest
import torch
from transformers import DiffLlamaConfig, LlamaConfig, Phi3Config, PhimoeConfig, PreTrainedConfig, PreTrainedModel

from ebft.method.layout import PackedLayout, StridedLayout
from ebft.model import attention, backbone
from ebft.model.backbone import check_training_pass, in_float32, packed_hidden_states, prepare_model
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from tests.models import SIZES, model_of, tiny_model
from tests.plain import off, places, plain_hidden_states, random_batch, untouched

SWITCH = 14


def phimoe(**changes: float) -> PreTrainedConfig:
    return PhimoeConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, **changes)


def dynamic() -> PreTrainedConfig:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    return LlamaConfig(**SIZES | dict(max_position_embeddings=SWITCH, rope_parameters=rope))


def longrope() -> PreTrainedConfig:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    lengths = dict(max_position_embeddings=4 * SWITCH, original_max_position_embeddings=SWITCH)
    return Phi3Config(**SIZES | lengths | dict(pad_token_id=0, rope_parameters=rope))


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
        prepare_model(model_of(DiffLlamaConfig(**SIZES)))


def test_experts_that_are_drawn_at_random_in_training() -> None:
    with pytest.raises(ValueError, match=r"in training than in evaluation \(router_jitter_noise=0.01.*; set it to 0"):
        check_training_pass(model_of(phimoe()))
    check_training_pass(model_of(phimoe(router_jitter_noise=0.0)))
    check_training_pass(tiny_model("qwen2_moe"))


class TestNarrowWeights:
    """Rounding to bf16 grows through a deep model; the check is about what the model computes, not about that."""

    def rugged(self) -> PreTrainedModel:
        model = model_of(LlamaConfig(**SIZES | dict(num_hidden_layers=24, tie_word_embeddings=True)))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(4.0)
        return model.to(torch.bfloat16)

    @pytest.mark.parametrize("supported", [True, False])
    def test_are_the_same_tensors_after_the_check(self, supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        model = self.rugged()
        model.model.layers[3].input_layernorm.float()  # some models keep a few weights wide
        before = {name: (tensor.dtype, tensor.data_ptr()) for name, tensor in model.state_dict().items()}
        if supported:
            prepare_model(model)
        else:
            monkeypatch.setattr(backbone, "_cached_rows", _failing)
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


def _failing(*_: object) -> torch.Tensor:
    raise RuntimeError("no such attention")
