"""Captured rollouts: replayed with another batch's tensors they are that batch's rollouts."""

from __future__ import annotations

import pytest
import torch

from ebft.method.layout import PackedLayout
from ebft.model import layout_graph
from ebft.model.backbone import prepare_model
from ebft.model.rollout import rollout
from tests.model import compiled_models as gpu
from tests.models import VOCABULARY, tiny_model

T, SEEDS = 20, torch.tensor([11])


def test_a_layout_with_another_batchs_tensors_is_that_batchs_layout() -> None:
    """What a captured rollout is replayed with: anchors further on must see all of their context."""
    model, ids = tiny_model("llama"), torch.randint(VOCABULARY, (1, T), generator=torch.Generator().manual_seed(0))
    early, late = (PackedLayout(T, 3, 2, torch.tensor([[5, last]])) for last in (7, 16))
    names, tensors = layout_graph.layout_tensors(late)
    expected = rollout(model, ids, late, temperature=0, seeds=SEEDS)
    assert not torch.equal(expected, rollout(model, ids, early, temperature=0, seeds=SEEDS))
    found = rollout(model, ids, layout_graph.layout_with(early, names, tensors), temperature=0, seeds=SEEDS)
    assert torch.equal(found, expected)


@pytest.mark.cuda
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("share", [False, True], ids=["alone", "share"])
def test_a_replayed_rollout_is_the_rollout(family: str, share: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpu.compiled_model(family)
    seeds = torch.tensor([3, 4])
    captured = [
        rollout(model, gpu.some_ids(i).cuda(), gpu.layout(i), seeds=seeds, backend="flex", share=share)
        for i in range(3 + share)  # computed (with sizes unknown, once more), captured, replayed
    ]
    assert len(layout_graph.GRAPHS[prepare_model(model)]) == 1
    monkeypatch.setattr(layout_graph, "LAUNCH_BOUND", 0)
    for i, found in enumerate(captured):
        expected = rollout(model, gpu.some_ids(i).cuda(), gpu.layout(i), seeds=seeds, backend="flex", share=False)
        valid = gpu.layout(i).anchor_mask[..., None].expand(-1, -1, 3)
        assert torch.equal(found[valid], expected[valid])
