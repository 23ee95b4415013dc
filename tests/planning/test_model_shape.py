"""Sizes counted on the meta device are those of real models."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import MambaConfig

from ebft.method.cross_entropy import rows_per_chunk
from ebft.model.backbone import output_head
from ebft.planning.model_shape import FeedForward, ModelShape, meta_model
from tests.models import FAMILIES, MIXTURES, tiny_model

LAYERS = [0.25, 0.5, 0.75]


def test_a_model_that_is_not_supported_is_refused_with_the_reason() -> None:
    config = MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1)
    with pytest.raises(ValueError, match="recurrent state"):
        ModelShape.of(meta_model(config), LAYERS)


@pytest.mark.parametrize("family", [*FAMILIES, *MIXTURES])
def test_the_meta_device_gives_the_same_shape(family: str) -> None:
    model = tiny_model(family)
    assert ModelShape.of(meta_model(model.config), LAYERS) == ModelShape.of(model, LAYERS)


@pytest.mark.parametrize("family", [*FAMILIES, *MIXTURES])
def test_sizes_are_those_of_the_modules(family: str) -> None:
    model = tiny_model(family)
    shape = ModelShape.of(model, LAYERS)
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    assert shape.parameters == model.num_parameters()
    assert (shape.vocabulary, shape.width) == head.weight.shape
    assert shape.tied == (head.weight.data_ptr() == embeddings.weight.data_ptr())
    in_layers = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name or ".h." in name)
    assert shape.outside_layers == shape.parameters - in_layers
    linear = [m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)]
    assert shape.in_linear == sum(linear) - head.weight.numel()


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("llama", [(48, 0)] * 4),
        ("mixtral", [(2 * 48, 2)] * 4),
        ("olmoe", [(2 * 48, 2)] * 4),
        ("qwen2_moe_dense_first", [(48, 0)] + [(2 * 32 + 40, 2)] * 3),
        ("qwen3_moe_every_second", [(48, 0), (2 * 32, 2)] * 2),
        ("deepseek_v3", [(48, 0)] + [(2 * 32 + 2 * 32, 2)] * 3),
    ],
)
def test_a_token_meets_its_experts_and_the_shared_ones(family: str, layers: list[tuple[int, int]]) -> None:
    model = tiny_model(family)
    shape = ModelShape.of(model, LAYERS)
    assert shape.feed_forward == tuple(FeedForward(*layer) for layer in layers)
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    met = {"qwen3_moe_every_second": 2 / 8}.get(family, 2 / 4)
    assert shape.active == shape.parameters - experts * (1 - met)


def test_logits_are_made_in_the_chunks_of_the_loss() -> None:
    model = tiny_model("llama")
    device = model.device
    assert ModelShape.of(model, LAYERS).rows_of_logits(device.type) == rows_per_chunk(output_head(model), device)


def test_a_quantised_checkpoint_is_counted_in_whole_numbers() -> None:
    config = tiny_model("llama").config
    plain = ModelShape.of(meta_model(config), LAYERS)
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    assert ModelShape.of(meta_model(config), LAYERS) == plain
    assert config.quantization_config, "the configuration is left as it was"
