"""Which anchors are used and what is compared, against documents as plain lists of tokens: `anchors: answer_start`, and
strided anchors from which a document ends sooner than a rollout (`short_truths`)."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebft.config.method import MethodConfig
from ebft.data.packing import PADDING, DocumentIndex, SequenceDataset, TokenStore, collate, end_token_ids
from ebft.data.row_format import Document
from ebft.iteration import make_layout, pack_to_score, roll_out, score
from ebft.method.layout import PackedLayout
from ebft.method.sampling import sequence_seeds
from ebft.model.features import FeatureNetwork
from tests.models import VOCABULARY, tiny_model
from tests.plain import phi, untouched

T, G, STRIDE, END = 24, 6, 4, 7
TOKENIZER = SimpleNamespace(eos_token_id=END, pad_token_id=END)  # padding is not told by its token


@dataclass
class Turn:
    answer: bool
    tokens: list[int]


def conversations(count: int, seed: int = 18) -> list[list[Turn]]:
    """Documents of prompts and answers. An answer has an end token, one and a token behind it as some chat templates
    write, or none; a document ends with an end token. Some documents are one text, and some end with a prompt."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    def words(low: int, high: int) -> list[int]:
        return [END + draw(1, VOCABULARY - END - 1) for _ in range(draw(low, high))]

    made: list[list[Turn]] = []
    for number in range(count):
        if number % 6 == 5:
            made.append([Turn(True, [*words(2, 9), END])])
            continue
        document: list[Turn] = []
        for _ in range(draw(1, 3)):
            ending = ([END], [END, END - 1], [])[draw(0, 2)]
            document += [Turn(False, words(1, 5)), Turn(True, [*words(1, 9), *ending])]
        if number % 6 == 4:
            document.append(Turn(False, [*words(1, 3), END]))
        elif document[-1].tokens[-1] != END:
            document[-1].tokens.append(END)
        made.append(document)
    return made


def dataset_of(documents: list[list[Turn]], packing: bool) -> SequenceDataset:
    made = [
        Document([t for turn in d for t in turn.tokens], [turn.answer for turn in d for _ in turn.tokens])
        for d in documents
    ]
    return SequenceDataset(DocumentIndex.of(TokenStore.from_documents(made)), T, packing, END)


def texts(lengths: list[int]) -> list[list[Turn]]:
    """Documents of these lengths, each of which ends with an end token."""
    generator = torch.Generator().manual_seed(5)
    words = [torch.randint(END + 1, END + 12, (n - 1,), generator=generator).tolist() for n in lengths]
    return [[Turn(True, [*tokens, END])] for tokens in words]


def batch_of(dataset: SequenceDataset) -> dict[str, Any]:
    return collate([dataset[row] for row in range(len(dataset))])


def method(**changes: Any) -> MethodConfig:
    given = {"context_length": T, "horizon": G, "samples": 2, "temperature": 1.0, "whitening": "none"}
    return MethodConfig(**{**given, "anchors": "answer_start", "answer_only": False, **changes})


def short_truths(**changes: Any) -> MethodConfig:
    given = {"anchors": "strided", "stride": STRIDE, "document_masks": True, "short_truths": True}
    return method(**{**given, **changes})


def layout_of(batch: dict[str, Any], config: MethodConfig, round_up: bool = False) -> PackedLayout:
    return make_layout(batch["on_host"], config, 2, end_token_ids(TOKENIZER, config.completions_end), round_up)


@dataclass
class Place:
    row: int
    anchor: int
    document_begin: int  # in its row
    truth: list[int]


def usable_answers(documents: list[list[Turn]], packing: bool) -> tuple[list[Place], list[str]]:
    """What the settings promise, from the documents themselves; and why each answer is used or not."""
    found, why, begin = [], [], 0  # `begin` counts tokens of all rows
    for number, document in enumerate(documents):
        if not packing:
            begin = number * T
        place = begin
        for turn in document:
            row, anchor = divmod(place, T)
            truth = turn.tokens[: turn.tokens.index(END) + 1] if END in turn.tokens else turn.tokens
            truth, room = truth[:G], T - anchor
            place += len(turn.tokens)
            if not turn.answer or (not packing and row != number):
                continue
            if turn is document[0] or anchor == 0:
                why.append("no context")
            elif len(truth) > room:
                why.append("cut")
            elif len(truth) == room and len(truth) < G and truth[-1] != END:
                why.append("not known to be whole")  # the row ends where the answer ends, and nothing says so
            else:
                why.append("long" if len(truth) == G else "whole" if len(truth) < room else "whole at the row's end")
                found.append(Place(row, anchor, max(begin - row * T, 0), truth))
        begin = place
    return found, why


def usable_places(batch: dict[str, Any], short: bool) -> list[Place]:
    """Of strided anchors with document masks, by walking through every row."""
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
                found.append(Place(row, anchor, inside[0], truth))
    return found


def check_anchors(batch: dict[str, Any], layout: PackedLayout, expected: list[Place]) -> None:
    mask = layout.anchor_mask.expand(len(batch["input_ids"]), -1)
    anchors, lengths = layout.anchors.expand_as(mask), layout.truth_lengths.expand_as(mask)
    found = []
    for row, place in mask.nonzero().tolist():
        a, length = int(anchors[row, place]), int(lengths[row, place])
        found.append((row, a, batch["input_ids"][row, a : a + length].tolist()))
    assert found == [(place.row, place.anchor, place.truth) for place in expected]


def check_sides(batch: dict[str, Any], config: MethodConfig, expected: list[Place], pooling: Any) -> None:
    """Completions and truths are pooled at their own end."""
    model, ids = tiny_model(), batch["input_ids"]
    plain, layout, ends = untouched(model), layout_of(batch, config), end_token_ids(TOKENIZER, config.completions_end)
    rollouts, _ = roll_out(model, ids, layout, sequence_seeds(0, 0, batch["sequence_id"]), config, ends)
    features = FeatureNetwork(model, pooling=pooling)
    found = score(features, ids, pack_to_score(layout, ids, rollouts, config), rollouts, config)
    assert rollouts.lengths is not None
    ended = 0
    places = layout.anchor_mask.expand(len(ids), -1).nonzero().tolist()
    for (row, number), place in zip(places, expected, strict=True):
        begin = place.document_begin if config.document_masks else 0
        sides = []
        for own in [*rollouts.completions[row, number].tolist(), place.truth]:
            own = own[: own.index(END) + 1] if END in own else own
            sequence = torch.tensor([*ids[row, begin : place.anchor].tolist(), *own])
            sides.append((len(own), phi(plain, sequence, len(own), (1, 2, 3), features)))
        (one, first), (two, second), (_, truth) = sides
        assert rollouts.lengths[row, number].tolist() == [one, two]
        ended += min(one, two, len(place.truth)) < G
        alignment = torch.stack([2 * first @ truth, 2 * second @ truth])
        assert (found.alignment[row, number] - alignment).abs().max() < 1e-4
        assert (found.diversity[row, number] - 2 * first @ second).abs().max() < 1e-4
    assert ended > 3, "some must end early, or this shows nothing"


@settings(deadline=None)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_strided_anchors_and_truths(lengths: list[int], packing: bool, short: bool) -> None:
    batch = batch_of(dataset_of(texts(lengths), packing))
    check_anchors(batch, layout_of(batch, short_truths(short_truths=short)), usable_places(batch, short))


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("trees", [True, False])
def test_both_sides_of_strided_anchors_are_pooled_at_their_own_end(pooling: Any, trees: bool) -> None:
    batch = batch_of(dataset_of(texts([9, 5, 2, 13, 30, 7, 3, 11, 24, 6]), True))
    check_sides(batch, short_truths(trees=trees), usable_places(batch, True), pooling)


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "rows"])
@pytest.mark.parametrize("document_masks", [False, True], ids=["no-masks", "masks"])
class TestAnswers:
    documents = conversations(30)

    def test_anchors_and_truths(self, document_masks: bool, packing: bool) -> None:
        expected, why = usable_answers(self.documents, packing)
        seen = {"no context", "cut", "whole", "long"}
        if packing:
            seen |= {"not known to be whole", "whole at the row's end"}
        assert seen <= set(why), "or this shows nothing"
        config, batch = method(document_masks=document_masks), batch_of(dataset_of(self.documents, packing))
        for round_up in (False, True):
            check_anchors(batch, layout_of(batch, config, round_up), expected)
        documents = batch["document_ids"]
        has_context = torch.arange(T).expand_as(documents) > 0
        if document_masks:
            has_context = has_context & (documents == documents.roll(1, 1))
        for answer_only, targets in (True, batch["answer_mask"]), (False, documents != PADDING):
            layout = layout_of(batch, method(document_masks=document_masks, answer_only=answer_only))
            assert torch.equal(layout.truth_mask.expand_as(documents), has_context & targets)

    @pytest.mark.parametrize("pooling", ["last", "mean"])
    def test_both_sides_are_pooled_at_their_own_end(self, document_masks: bool, packing: bool, pooling: Any) -> None:
        documents = self.documents[:15]
        batch, (expected, _) = batch_of(dataset_of(documents, packing)), usable_answers(documents, packing)
        check_sides(batch, method(document_masks=document_masks), expected, pooling)
