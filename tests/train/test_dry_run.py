"""Parts of what `--dry-run` prints; tests/command_line has the whole."""

from __future__ import annotations

from ebft.data.formats import encode
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.store import TokenStore
from ebft.train.dry_run import (
    anchors_per_sequence,
    columns,
    first_document,
    flops_per_step,
    short_texts,
)
from tests.test_iteration import dataset, method
from tests.tiny_tokenizer import END, byte_tokenizer


def test_columns_stand_below_each_other() -> None:
    assert columns({"a": "1", "longer": "2"}) == ["a       1", "longer  2"]


def test_anchors_are_counted_and_averaged() -> None:
    # 24 tokens have anchors at 4, 8, ..., 20; 10 tokens have those at 4 only, with a truth of 3 tokens up to 7.
    config = method(packing=False)
    assert anchors_per_sequence(dataset([24, 24], packing=False), config, None) == 5
    assert anchors_per_sequence(dataset([24, 10], packing=False), config, None) == 3
    every_second = anchors_per_sequence(dataset([24, 10] * 4, packing=False), config, None, looked_at=4)
    assert every_second == 5


def test_short_texts_are_said_to_have_no_anchors() -> None:
    # The second half of a document is its answer; horizon is 3.
    data = dataset([4, 4, 20])
    assert short_texts(data, method(answer_only=True)) == (
        "most anchors are dropped: 2 of 3 answers have fewer than 3 tokens, and no rollout of horizon=3 tokens begins "
        "in them; use a smaller horizon"
    )
    assert short_texts(data, method()) is None, "one document after the other"
    assert short_texts(data, method(document_masks=True)) is None
    assert "2 of 3 documents have fewer than 4 tokens" in str(
        short_texts(dataset([3, 3, 20]), method(document_masks=True))
    )
    assert short_texts(dataset([4, 20, 20]), method(answer_only=True)) is None, "not what most of it comes from"
    assert short_texts(data, method(answer_only=True, anchors="answer_start")) is None


def test_flops_of_a_step_by_hand() -> None:
    # A forward pass is 2 per parameter and token: one to roll out, 3/4 of one for features, three for the update.
    assert flops_per_step(parameters=10, sequences=2, packed_tokens=100) == 2 * 10 * 200 * 4.75


def test_the_first_document_with_prompt_and_answer_apart() -> None:
    tokenizer = byte_tokenizer()
    store = TokenStore.from_documents([encode({"prompt": "2+2=", "completion": "4"}, tokenizer)])
    rows = SequenceDataset(DocumentIndex.of(store), 8)
    assert first_document(rows, tokenizer)[1:] == ["  prompt  '2+2='", f"  answer  '4{END}'"]
    assert len(first_document(long_document := rows_of("x" * 1000), tokenizer)[1]) < 400
    assert len(long_document) > 1


def rows_of(text: str) -> SequenceDataset:
    store = TokenStore.from_documents([encode({"text": text}, byte_tokenizer())])
    return SequenceDataset(DocumentIndex.of(store), 8)
