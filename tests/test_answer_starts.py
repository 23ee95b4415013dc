"""`anchors: answer_start`: which answers are used and what is compared, against the documents as plain lists."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ebft.config.method import MethodConfig
from ebft.data.packing import PADDING, DocumentIndex, SequenceDataset, TokenStore, collate, end_token_ids
from ebft.data.row_format import Document, encode
from ebft.iteration import check_sequences, make_layout, pack_to_score, roll_out, score
from ebft.method.losses import LossTerms, ebft_loss
from ebft.method.sampling import sequence_seeds
from ebft.model.backbone import output_head, packed_hidden_states
from ebft.model.features import FeatureNetwork
from tests.model.batches import phi
from tests.models import VOCABULARY, tiny_model
from tests.plain import plain_logits, untouched
from tests.tiny_tokenizer import byte_tokenizer

T, G, END = 24, 6, 7
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


@dataclass
class Answer:
    row: int
    anchor: int
    document_begin: int  # in its row
    truth: list[int]


def usable_answers(documents: list[list[Turn]], packing: bool) -> tuple[list[Answer], list[str]]:
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
                found.append(Answer(row, anchor, max(begin - row * T, 0), truth))
        begin = place
    return found, why


def method(**changes: Any) -> MethodConfig:
    given = {"context_length": T, "horizon": G, "samples": 2, "temperature": 1.0, "whitening": "none"}
    return MethodConfig(**{**given, "anchors": "answer_start", "answer_only": False, **changes})


def batch_of(dataset: SequenceDataset) -> dict[str, Any]:
    return collate([dataset[row] for row in range(len(dataset))])


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
            ends = end_token_ids(TOKENIZER, config.completions_end)
            layout = make_layout(batch["on_host"], config, 2, ends, round_up)
            found = []
            for row, place in layout.anchor_mask.nonzero().tolist():
                a, length = int(layout.anchors[row, place]), int(layout.truth_lengths[row, place])
                found.append((row, a, batch["input_ids"][row, a : a + length].tolist()))
            assert found == [(answer.row, answer.anchor, answer.truth) for answer in expected]

    @pytest.mark.parametrize("pooling", ["last", "mean"])
    def test_both_sides_are_pooled_at_their_own_end(self, document_masks: bool, packing: bool, pooling: Any) -> None:
        model = tiny_model()
        plain = untouched(model)
        config = method(document_masks=document_masks)
        batch = batch_of(dataset_of(self.documents, packing))
        ends = end_token_ids(TOKENIZER, config.completions_end)
        layout = make_layout(batch["on_host"], config, 2, ends)
        seeds = sequence_seeds(0, 0, batch["sequence_id"])
        rollouts, _ = roll_out(model, batch["input_ids"], layout, seeds, config, ends)
        packed = pack_to_score(layout, batch["input_ids"], rollouts, config)
        features = FeatureNetwork(model, pooling=pooling)
        found = score(features, batch["input_ids"], packed, rollouts, config)
        places = layout.anchor_mask.nonzero().tolist()
        expected, _ = usable_answers(self.documents, packing)
        assert rollouts.lengths is not None
        short = 0
        for (row, place), answer in zip(places, expected, strict=True):
            begin = answer.document_begin if document_masks else 0
            context = batch["input_ids"][row, begin : answer.anchor].tolist()
            sides = []
            for number, own in enumerate([*rollouts.completions[row, place].tolist(), answer.truth]):
                own = own[: own.index(END) + 1] if END in own else own
                if number < 2:
                    assert int(rollouts.lengths[row, place, number]) == len(own)
                    short += len(own) < G
                sequence = torch.tensor([*context, *own])
                sides.append(phi(plain, sequence, len(own), (1, 2, 3), features))
            first, second, truth = sides
            alignment = torch.stack([2 * first @ truth, 2 * second @ truth])
            assert (found.alignment[row, place] - alignment).abs().max() < 1e-4
            assert (found.diversity[row, place] - 2 * first @ second).abs().max() < 1e-4
        assert short > 5, "some completions must end early, or this shows nothing"

    @pytest.mark.parametrize("answer_only", [False, True], ids=["all", "answers"])
    def test_cross_entropy_is_that_of_plain_sequences(
        self, document_masks: bool, packing: bool, answer_only: bool
    ) -> None:
        model = tiny_model()
        plain = untouched(model)
        config = method(document_masks=document_masks, answer_only=answer_only)
        batch = batch_of(dataset_of(self.documents[:12], packing))
        losses: list[Tensor] = []
        for ids, documents, answers in zip(
            batch["input_ids"], batch["document_ids"], batch["answer_mask"], strict=True
        ):
            numbers = [n for n in documents.unique().tolist() if n != PADDING]
            parts = [documents == n for n in numbers] if document_masks else [documents != PADDING]
            for part in parts:
                logits = plain_logits(plain, ids[part])
                each = F.cross_entropy(logits[:-1], ids[part][1:], reduction="none")
                losses.append(each[answers[part][1:]] if answer_only else each)
        terms = loss_of(model, batch, config, round_up=False)
        assert int(terms.truth_tokens) == len(torch.cat(losses))
        assert float(terms.cross_entropy) == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)

    def test_answer_only_means_what_it_means_with_strided_anchors(self, document_masks: bool, packing: bool) -> None:
        batch = batch_of(dataset_of(self.documents, packing))
        for answer_only in (False, True):
            masks = []
            for anchors in ("strided", "answer_start"):
                config = method(document_masks=document_masks, answer_only=answer_only, anchors=anchors)
                layout = make_layout(batch["on_host"], config, 2, end_token_ids(TOKENIZER, config.completions_end))
                masks.append(layout.truth_mask.expand(len(batch["input_ids"]), -1))
            assert torch.equal(*(mask[:, 1:] for mask in masks))

    def test_few_shapes_give_the_same_numbers(self, document_masks: bool, packing: bool) -> None:
        """Places for anchors are rounded up on a GPU; the empty ones must not count."""
        batch, config = batch_of(dataset_of(self.documents[:20], packing)), method(document_masks=document_masks)
        found = [loss_of(tiny_model(), batch, config, round_up) for round_up in (False, True)]
        if packing:
            assert found[0].log_probs.shape != found[1].log_probs.shape, "or this shows nothing"
        for name in ("loss", "policy", "cross_entropy", "entropy", "generated_tokens", "truth_tokens"):
            torch.testing.assert_close(*(getattr(terms, name) for terms in found), msg=name)


def loss_of(model: Any, batch: dict[str, Any], config: MethodConfig, round_up: bool) -> LossTerms:
    ends = end_token_ids(TOKENIZER, config.completions_end)
    layout = make_layout(batch["on_host"], config, config.samples, ends, round_up)
    seeds = sequence_seeds(0, 0, batch["sequence_id"])
    rollouts, _ = roll_out(model, batch["input_ids"], layout, seeds, config, ends)
    packed = pack_to_score(layout, batch["input_ids"], rollouts, config)
    found = score(FeatureNetwork(model), batch["input_ids"], packed, rollouts, config)
    ids = layout.pack(batch["input_ids"], rollouts.completions)
    hidden = packed_hidden_states(model, ids, layout)
    advantages = found.alignment - found.alignment.mean(-1, keepdim=True)
    return ebft_loss(
        hidden,
        output_head(model),
        ids,
        layout,
        advantages,
        config.temperature,
        gamma=1.0,
        completion_lengths=rollouts.lengths,
    )


def test_every_turn_of_a_conversation_ends_at_its_end_token() -> None:
    """A template's end of a turn is part of the answer's text; where an end token comes before it, a completion ends
    there, and so must the truth."""
    tokenizer = byte_tokenizer(
        chat_template="{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    turns = [("user", "one?"), ("assistant", "1"), ("user", "two?"), ("assistant", "2, and more")]
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    document = encode(row, tokenizer)
    dataset = SequenceDataset(DocumentIndex.of(TokenStore.from_documents([document] * 2)), 160, True)
    batch, config = batch_of(dataset), method(context_length=160, horizon=8)
    layout = make_layout(batch["on_host"], config, 2, end_token_ids(tokenizer, config.completions_end))
    found = [
        tokenizer.decode(batch["input_ids"][row, a : a + length].tolist())
        for row, place in layout.anchor_mask.nonzero().tolist()
        for a, length in [(int(layout.anchors[row, place]), int(layout.truth_lengths[row, place]))]
    ]
    assert found == ["1<end>", "2, and m"] * 2


def test_completions_end_with_answer_starts_or_document_masks() -> None:
    for anchors, document_masks in itertools.product(("strided", "answer_start"), (False, True)):
        config = method(anchors=anchors, document_masks=document_masks)
        ends = end_token_ids(TOKENIZER, config.completions_end)
        assert (ends is not None) == (anchors == "answer_start" or document_masks)


def test_rows_without_whole_answers_are_refused_as_data_but_not_as_a_batch() -> None:
    config = method()
    ends = end_token_ids(TOKENIZER, config.completions_end)
    words = list(range(END + 1, END + 1 + T))
    for document in (
        [Turn(False, words)],
        [Turn(True, words)],
        [Turn(False, words[: T - 2]), Turn(True, [*words[:2], END])],
    ):
        dataset = dataset_of([document], packing=False)
        batch = batch_of(dataset)
        layout = make_layout(batch["on_host"], config, 2, ends)
        assert not layout.anchor_mask.any()
        with pytest.raises(Exception, match="or rows with answers after a prompt"):
            check_sequences(dataset, config, ends)
        terms = loss_of(tiny_model(), batch, config, round_up=True)
        assert int(terms.generated_tokens) == 0
        assert torch.isfinite(terms.loss)
    whole = dataset_of([[Turn(False, words[: T - 2]), Turn(True, [words[0], END])]], packing=False)
    check_sequences(whole, config, ends)
