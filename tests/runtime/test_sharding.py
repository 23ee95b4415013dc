"""A model that is sharded over a group of one: all of the machinery, and nothing to wait for. Several processes are in
tests/distributed/."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from ebft import EBFTTrainer
from ebft.method.layout import StridedLayout
from ebft.model import rollout
from ebft.model.backbone import decoder_layers, decoder_of, output_head, packed_hidden_states, prepare_model
from ebft.runtime import processes, sharding
from tests.models import FAMILIES, VOCABULARY, tiny_model
from tests.train.small_runs import config, counting_text, small_model

CPU = torch.device("cpu")
LAYOUT = StridedLayout(context_length=16, horizon=3, stride=4, samples=2)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    processes.join_alone(CPU)
    yield
    processes.leave()


def sharded(model: Any, dtype: torch.dtype | None = None) -> Any:
    prepare_model(model)
    model = copy.deepcopy(model)
    decoder = decoder_of(model)
    sharding.shard_model(model, decoder, decoder_layers(decoder)[1], CPU, dtype)
    return model


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_rollouts_hidden_states_gradients_and_generation_stay_the_same(family: str) -> None:
    plain = tiny_model(family).eval()
    model = sharded(plain)
    packed, context, seeds = ids(2, LAYOUT.packed_length), ids(2, LAYOUT.context_length), torch.arange(2)
    states = []
    for each in (plain, model):
        hidden = packed_hidden_states(each, packed, LAYOUT)
        states.append(hidden)
        output_head(each).logits(hidden.flatten(0, 1)).square().mean().backward()
    assert torch.equal(states[0], states[1])
    for name, parameter in plain.named_parameters():
        found = model.get_parameter(name)
        assert isinstance(found, DTensor), "the backward pass leaves shards behind"
        torch.testing.assert_close(sharding.whole(found.grad), parameter.grad, msg=name)
    drawn = [rollout.rollout(each, context, LAYOUT, seeds=seeds) for each in (plain, model)]
    assert torch.equal(drawn[0], drawn[1])
    said = [each.generate(context[:1], max_new_tokens=4, do_sample=False) for each in (plain, model)]
    assert torch.equal(said[0], said[1])


def test_what_is_gathered_and_when() -> None:
    model = sharded(tiny_model("llama"))
    layer = decoder_of(model).layers[0].mlp.up_proj
    assert isinstance(layer.weight, DTensor)
    with torch.no_grad():
        packed_hidden_states(model, ids(1, LAYOUT.packed_length), LAYOUT)
    assert isinstance(layer.weight, DTensor), "a layer is freed after its pass"
    assert not isinstance(model.lm_head.weight, DTensor), "the head is wanted after the pass"
    sharding.release(model, None)
    assert all(isinstance(p, DTensor) for p in model.parameters())


def test_every_process_holds_its_part_only(tmp_path: Path) -> None:
    """Of the model, of the optimiser's moments, of the frozen network and of the reference."""
    args = config(tmp_path, fsdp="full_shard", max_steps=1, kl_weight=0.1, optim="adamw_torch")
    trainer = EBFTTrainer(small_model(), args, counting_text())
    trainer.train()
    sharding.release(trainer.model, trainer.features.network, trainer.networks.reference)
    moments = [t for state in trainer.optimizer.state.values() for t in state.values() if t.dim()]
    held = (*trainer.model.parameters(), *trainer.features.parameters(), *trainer.networks.reference.parameters())
    assert len(moments) == 2 * len([*trainer.model.parameters()])
    assert all(isinstance(tensor, DTensor) for tensor in (*moments, *held))
