"""`short_truths`: strided anchors from which a document ends sooner than a rollout, against plain lists of tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebft.config.method import MethodConfig
from ebft.data.packing import DocumentIndex, SequenceDataset, TokenStore, collate, end_token_ids
from ebft.data.row_format import Document
from ebft.errors import ConfigError, DataError
from ebft.iteration import check_sequences, make_layout, pack_to_score, roll_out, score
from ebft.method.layout import PackedLayout
from ebft.method.sampling import sequence_seeds
from ebft.model.features import FeatureNetwork
from tests.model.batches import phi
from tests.models import tiny_model
from tests.plain import untouched

T, G, STRIDE, END = 24, 6, 4, 7
TOKENIZER = SimpleNamespace(eos_token_id=END, pad_token_id=END)
LENGTHS = [9, 5, 2, 13, 30, 7, 3, 11, 24, 6]


def dataset_of(lengths: list[int], packing: bool = True) -> SequenceDataset:
    """Documents of these lengths, each of which ends with an end token; some have others inside, as turns of a chat."""
    generator = torch.Generator().manual_seed(5)
    words = [torch.randint(END, END + 12, (n - 1,), generator=generator).tolist() for n in lengths]
    documents = [Document([*tokens, END], [True] * (len(tokens) + 1)) for tokens in words]
    return SequenceDataset(DocumentIndex.of(TokenStore.from_documents(documents)), T, packing, END)


def batch_of(lengths: list[int], packing: bool = True) -> dict[str, Any]:
    dataset = dataset_of(lengths, packing)
    return collate([dataset[row] for row in range(len(dataset))])


def method(**changes: Any) -> MethodConfig:
    given = {"context_length": T, "horizon": G, "stride": STRIDE, "samples": 2, "temperature": 1.0}
    return MethodConfig(**{**given, "whitening": "none", "document_masks": True, "short_truths": True, **changes})


def layout_of(batch: dict[str, Any], config: MethodConfig) -> PackedLayout:
    ends = end_token_ids(TOKENIZER, config.completions_end)
    return make_layout(batch["on_host"], config, 2, ends)


def by_hand(batch: dict[str, Any], short: bool) -> list[tuple[int, int, int, list[int]]]:
    """Row, beginning of the document, anchor and truth, by walking through every row."""
    found = []
    for row, (ids, documents) in enumerate(zip(batch["input_ids"], batch["document_ids"], strict=True)):
        for anchor in range(STRIDE, T - G + 1, STRIDE):
            document = int(documents[anchor])
            if document < 0 or int(documents[anchor - 1]) != document:
                continue  # padding, or no context
            inside = (documents == document).nonzero().flatten().tolist()
            truth = [int(ids[place]) for place in inside if anchor <= place < anchor + G]
            if short and END in truth:  # as a rollout, it ends there
                truth = truth[: truth.index(END) + 1]
            if len(truth) == G or (short and truth[-1] == END):
                found.append((row, inside[0], anchor, truth))
    return found


@given(st.lists(st.integers(2, 40), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_anchors_and_truths(lengths: list[int], packing: bool, short: bool) -> None:
    batch = batch_of(lengths, packing)
    layout = layout_of(batch, method(short_truths=short, packing=packing))
    mask, truths = layout.anchor_mask.expand(len(batch["input_ids"]), -1), layout.truth_lengths
    found = []
    for row, place in mask.nonzero().tolist():
        anchor, length = int(layout.anchors[place]), int(truths.expand_as(mask)[row, place])
        found.append((row, anchor, batch["input_ids"][row, anchor : anchor + length].tolist()))
    assert found == [(row, anchor, truth) for row, _, anchor, truth in by_hand(batch, short)]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("trees", [True, False])
def test_both_sides_are_pooled_at_their_own_end(pooling: Any, trees: bool) -> None:
    model = tiny_model()
    plain = untouched(model)
    batch, config = batch_of(LENGTHS), method(trees=trees)
    ends = end_token_ids(TOKENIZER, config.completions_end)
    layout = layout_of(batch, config)
    rollouts, _ = roll_out(model, batch["input_ids"], layout, sequence_seeds(0, 0, batch["sequence_id"]), config, ends)
    packed = pack_to_score(layout, batch["input_ids"], rollouts, config)
    features = FeatureNetwork(model, pooling=pooling)
    found = score(features, batch["input_ids"], packed, rollouts, config)
    short = 0
    for row, begin, anchor, truth in by_hand(batch, short=True):
        place = (anchor - STRIDE) // STRIDE
        sides = []
        for own in [*rollouts.completions[row, place].tolist(), truth]:
            own = own[: own.index(END) + 1] if END in own else own
            sequence = torch.tensor([*batch["input_ids"][row, begin:anchor].tolist(), *own])
            sides.append(phi(plain, sequence, len(own), (1, 2, 3), features))
        first, second, real = sides
        alignment = torch.stack([2 * first @ real, 2 * second @ real])
        assert (found.alignment[row, place] - alignment).abs().max() < 1e-4
        short += len(truth) < G
    assert short > 3, "some truths must be short, or this shows nothing"


def test_needs_documents_that_end() -> None:
    for changes in ({"document_masks": False}, {"anchors": "answer_start"}):
        with pytest.raises(ConfigError, match="short_truths=true needs document_masks=true and anchors=strided"):
            method(**changes)


def test_texts_shorter_than_a_rollout_are_enough() -> None:
    """Without the setting there is no anchor in them, and the error names it."""
    dataset, ends = dataset_of([G, 3, 5, G]), torch.tensor([END])
    check_sequences(dataset, method(), ends)
    with pytest.raises(DataError, match=r"the longest answer has 6 tokens.*or short_truths=true"):
        check_sequences(dataset, method(short_truths=False), ends)
