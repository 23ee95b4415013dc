"""The brute force that everything is compared with: each completion as a plain sequence, run on its own."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ebft.method.layout import PackedLayout, StridedLayout
from ebft.model.backbone import packed_hidden_states
from tests.models import VOCABULARY

T = 20
DOCUMENTS = torch.tensor([[0] * 9 + [1] * 11, [0] * 17 + [-1] * 3])
LAYOUT = StridedLayout(16, 3, 4, 2)


def random_batch(layout: PackedLayout, seed: int = 0, rows: int = 2) -> tuple[Tensor, Tensor]:
    """Contexts [b, T] and completions [b, B, n, G]."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (rows, layout.context_length), generator=generator)
    shape = (rows, layout.num_anchors, layout.samples, layout.horizon)
    return ids, torch.randint(VOCABULARY, shape, generator=generator)


def off(found: Tensor, expected: Tensor, smallest: float = 0.0) -> float:
    """The largest difference, as a share of the largest number."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max().clamp(min=smallest))


def untouched(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with transformers' own eager attention, out of ebft's reach."""
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    return plain.eval()


@dataclass
class Place:
    """One completion: where it is in the batch, and the plain sequence that it ends."""

    row: int
    sample: int
    anchor_index: int
    slots: Tensor  # [G] into the packed sequence
    sequence: Tensor  # context of its own document, then the completion
    truth_sequence: Tensor  # the same context, then the truth


def places(ids: Tensor, completions: Tensor, layout: PackedLayout, documents: Tensor | None = None) -> list[Place]:
    """All completions of all anchors that their row keeps."""
    b, B, n, _ = completions.shape
    anchors, valid = layout.anchors.expand(b, B), layout.anchor_mask.expand(b, B)
    lengths = layout.truth_lengths.expand(b, B)
    found = []
    for row in range(b):
        for index in range(B):
            if not valid[row, index]:
                continue
            anchor, start = int(anchors[row, index]), 0
            if documents is not None:
                own = documents.expand(b, -1)[row]
                start = next(t for t in range(anchor) if bool((own[t:anchor] == own[anchor - 1]).all()))
            context = ids[row, start:anchor]
            truth = ids[row, anchor : anchor + int(lengths[row, index])]
            for sample in range(n):
                slots, own = layout.completion_slots[index, sample], completions[row, index, sample]
                found.append(Place(row, sample, index, slots, torch.cat([context, own]), torch.cat([context, truth])))
    assert found
    return found


@torch.no_grad()
def plain_outputs(model: PreTrainedModel, sequence: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits [length, V], and `hidden_states` of transformers, each [length, D]; the last is after the final norm."""
    output = model(input_ids=sequence[None], use_cache=False, output_hidden_states=True)
    return output.logits[0], tuple(h[0] for h in output.hidden_states)


def plain_logits(model: PreTrainedModel, sequence: Tensor) -> Tensor:
    return plain_outputs(model, sequence)[0]


def plain_hidden_states(model: PreTrainedModel, sequence: Tensor) -> tuple[Tensor, ...]:
    return plain_outputs(model, sequence)[1]


def some_packed(seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (2, LAYOUT.packed_length), generator=torch.Generator().manual_seed(seed))


def some_loss(model: nn.Module, ids: Tensor) -> Tensor:
    hidden = packed_hidden_states(model, ids, LAYOUT).float()
    return (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(9))).mean()


def phi(plain: nn.Module, sequence: Tensor, length: int, taps: tuple[int, ...], network: Any) -> Tensor:
    """Of a plain sequence whose last `length` tokens are the completion."""
    states = plain_hidden_states(plain, sequence)
    pooled = [states[t][-1] if network.pooling == "last" else states[t][-length:].mean(0) for t in taps]
    if network.normalize == "per_layer":
        return torch.cat([x / x.norm() for x in pooled])
    return torch.cat(pooled) / torch.cat(pooled).norm()
