"""Documents on disk, which of them a dataset holds, and sequences against a plain concatenation."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate.data_loader import SeedableRandomSampler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from ebft.data import packing
from ebft.data.packing import (
    NOTHING,
    PADDING,
    DocumentIndex,
    SequenceDataset,
    Share,
    TokenStore,
    mix,
    tokenize_rows,
    tokenize_source,
)
from ebft.data.row_format import Document, RowFormat, encode
from ebft.errors import DataError
from ebft.runtime import processes
from tests.baselines.runs import write_rows
from tests.tiny_tokenizer import PAD, byte_tokenizer

PAD_TOKEN = 999
documents_strategy = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=12), min_size=1, max_size=10
)


def index_of(documents: list[Document]) -> DocumentIndex:
    return DocumentIndex.of(TokenStore.from_documents(documents))


def numbered(count: int, first: int = 0, length: int = 1) -> DocumentIndex:
    """Documents whose tokens are their own number."""
    return index_of([Document([first + n] * length, [True] * length) for n in range(count)])


def numbers(index: DocumentIndex) -> list[int]:
    """The first token of every document: what it is, for `numbered` ones, whatever store it lies in."""
    return [
        int(index.stores[store].tokens[index.stores[store].offsets[n]])
        for store, n in zip(index.store, index.number, strict=True)
    ]


Row = tuple[list[int], list[int], list[bool]]


def brute_force(documents: list[Document], T: int, packing: bool) -> list[Row]:
    """Every row as (tokens, document ids counted from the first in the row, answers), padded to T."""
    columns = [
        [(token, number, answer) for token, answer in zip(document.tokens, document.answers, strict=True)]
        for number, document in enumerate(documents)
    ]
    cut = [column[:T] for column in columns]
    if packing:
        flat = [token for column in columns for token in column]
        cut = [flat[begin : begin + T] for begin in range(0, len(flat), T)]
        if len(flat) % T == 1:
            cut = cut[:-1]  # one token has nothing to predict
    rows = []
    for row in cut:
        first, padding = row[0][1], [(PAD_TOKEN, None, False)] * (T - len(row))
        tokens, numbers, answers = (list(column) for column in zip(*row, *padding, strict=True))
        rows.append((tokens, [PADDING if n is None else n - first for n in numbers], answers))
    return rows


def rows_of(dataset: SequenceDataset) -> list[Row]:
    rows = [dataset[number] for number in range(len(dataset))]
    assert [int(row["sequence_id"]) for row in rows] == list(range(len(dataset)))
    return [(r["input_ids"].tolist(), r["document_ids"].tolist(), r["answer_mask"].tolist()) for r in rows]


@given(documents_strategy, st.integers(1, 17), st.booleans(), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_sequences_are_concatenated(drawn: list[list[tuple[int, bool]]], T: int, packing: bool, first: int) -> None:
    """All of them, and the first few, which hold no more documents than they need; and the row that is not there."""
    documents = [Document([token for token, _ in document], [answer for _, answer in document]) for document in drawn]
    dataset = SequenceDataset(index_of(documents), T, packing, PAD_TOKEN)
    expected = brute_force(documents, T, packing)
    assert rows_of(dataset) == expected
    part = dataset.first(first)
    assert rows_of(part) == expected[:first]
    assert len(part.index) <= len(dataset.index)
    for row in (-2, len(dataset)):
        with pytest.raises(IndexError):
            dataset[row]
    nothing = dataset[NOTHING]
    assert nothing["document_ids"].tolist() == [PADDING] * T
    assert not nothing["answer_mask"].any()


@given(st.integers(2, 60), st.floats(0.01, 0.99) | st.integers(1, 59), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_split_is_disjoint_covers_everything_and_depends_on_the_seed(count: int, held_out: float, seed: int) -> None:
    expected = int(held_out) if held_out >= 1 else max(1, round(held_out * count))
    if expected >= count:
        with pytest.raises(DataError, match="leaves no training documents"):
            numbered(count).split(held_out, seed)
        return
    training, validation = numbered(count).split(held_out, seed)
    assert len(validation) == expected
    assert sorted(numbers(training) + numbers(validation)) == list(range(count))
    assert numbers(numbered(count).split(held_out, seed)[1]) == numbers(validation)
    assert [numbers(part) for part in numbered(count).split(0, seed)] == [list(range(count)), []]


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 10)), min_size=1, max_size=4), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_mixture_keeps_proportions_and_has_no_document_twice(sources: list[tuple[int, float]], seed: int) -> None:
    indices = [numbered(count, 1000 * place) for place, (count, _) in enumerate(sources)]
    weights = [weight for _, weight in sources]
    mixed = numbers(mix(indices, weights, seed))
    assert len(set(mixed)) == len(mixed)
    total = min(count * sum(weights) / weight for count, weight in sources)
    counts = Counter(number // 1000 for number in mixed)
    for place, (count, weight) in enumerate(sources):
        exact = total * weight / sum(weights)
        assert counts[place] <= count
        assert exact - 1 < counts[place] <= max(1, exact + 1e-6)
    assert numbers(mix(indices, weights, seed)) == mixed


@pytest.mark.parametrize(("full", "drop_last"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 12, 21])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_an_epoch_has_every_row_once_on_all_processes_together(
    rows: int, count: int, full: bool, drop_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "count", lambda: count)
    order = SeedableRandomSampler(range(rows), data_seed=3)
    parts = []
    for process in range(count):
        monkeypatch.setattr(processes, "rank", lambda process=process: process)
        share = Share(order, 2, drop_last, full)
        share.set_epoch(5)  # a sampler moves on by an epoch each time it is gone through
        parts.append(list(BatchSampler(share, 2, drop_last)))
        assert sum(map(len, parts[-1])) == len(share)
    order.set_epoch(5)
    expected = list(BatchSampler(order, 2 * count, drop_last))
    found = []
    for together in zip(*parts, strict=True):
        sizes = {len(part) for part in together}
        assert len(sizes) == 1, "passes of the same size"
        assert not (full or drop_last) or sizes == {2}
        assert max(part.count(NOTHING) for part in together) - min(part.count(NOTHING) for part in together) <= 1
        found.append({row for part in together for row in part if row != NOTHING})
    assert found == [set(rows) for rows in expected]


# ---- documents on disk ---------------------------------------------------------------------------------------

ROWS = [{"text": text, "body": text.upper()} for text in ("one", "two", "three", "four", "five")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, so that nobody's home is touched."""
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", ROWS)


def texts(store: TokenStore) -> list[str]:
    ends = zip(store.offsets[:-1], store.offsets[1:], strict=True)
    return [byte_tokenizer().decode(store.tokens[begin : end - 1].tolist()) for begin, end in ends]


def stores(cache: Path) -> list[Path]:
    return sorted((cache / "tokens").iterdir()) if (cache / "tokens").exists() else []


def test_a_store_holds_what_encode_gives_for_every_row(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    rows = [{"prompt": "a" * n, "completion": "b" * (7 - n)} for n in range(1, 7)]
    documents = [encode(row, tokenizer) for row in rows]
    source = str(write_rows(tmp_path / "qa.jsonl", rows))
    for store in (tokenize_source(source, tokenizer), tokenize_rows(rows, tokenizer)):
        assert store.lengths.tolist() == [len(d.tokens) for d in documents]
        assert store.tokens.tolist() == [token for d in documents for token in d.tokens]
        assert store.answers.astype(bool).tolist() == [answer for d in documents for answer in d.answers]
        assert store.answer_counts.tolist() == [sum(d.answers) for d in documents]
        assert isinstance(store.tokens, np.memmap)


def test_the_key_changes_with_everything_the_tokens_depend_on(file: Path, cache: Path) -> None:
    tokenizers: list[dict[str, Any]] = [{}, {"extra_tokens": 1}, {"end": PAD}, {"chat_template": "{{ messages }}"}]
    ways: list[tuple[Any, dict[str, Any]]] = [(byte_tokenizer(**changes), {}) for changes in tokenizers]
    ways += [(byte_tokenizer(), {"limit": 2}), (byte_tokenizer(), {"row_format": RowFormat(text="body")})]
    for number, (chosen, options) in enumerate(ways, 1):
        tokenize_source(str(file), chosen, **options)
        assert len(stores(cache)) == number
    made = [path.stat().st_ctime_ns for path in stores(cache)]
    for chosen, options in [*ways, (byte_tokenizer(pad=PAD), {})]:  # padding does not matter
        tokenize_source(str(file), chosen, **options)
    assert [path.stat().st_ctime_ns for path in stores(cache)] == made, "nothing is tokenised again"
    write_rows(file, [{"text": "eno"}, *ROWS[1:]])  # of the same size
    assert texts(tokenize_source(str(file), byte_tokenizer()))[0] == "eno"


def test_what_a_kill_left_is_not_taken_for_whole(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: str, split: str) -> Iterator[dict[str, Any]]:
        yield from [*ROWS[:3], {"body": "b"}]

    for tidies_up in (True, False):  # an exception does, a kill does not
        with monkeypatch.context() as patch:
            patch.setattr(packing, "read_rows", broken)
            if not tidies_up:
                patch.setattr(packing.shutil, "rmtree", lambda *args, **kwargs: None)
            with pytest.raises(DataError, match=r"rows\.jsonl: row 4: a row needs 'text'.*it has 'body'"):
                tokenize_source(str(file), byte_tokenizer())
        assert len(stores(cache)) == (not tidies_up)
    assert texts(tokenize_source(str(file), byte_tokenizer())) == [row["text"] for row in ROWS]


def test_a_second_process_that_was_first_is_accepted(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(source: str, split: str) -> Iterator[dict[str, Any]]:
        patch.undo()
        tokenize_source(str(file), byte_tokenizer())
        yield from ROWS

    with monkeypatch.context() as patch:
        patch.setattr(packing, "read_rows", slow)
        store = tokenize_source(str(file), byte_tokenizer())
    assert texts(store) == [row["text"] for row in ROWS]
    assert len(stores(cache)) == 1
