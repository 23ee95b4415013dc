"""Training and validation sequences as a recipe asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.config.recipe import load_recipe
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.store import tokenize_rows
from ebft.errors import DataError
from ebft.train.sequences import load_data, look_at_positions, trained_part
from tests.models import tiny_model
from tests.test_iteration import dataset
from tests.tiny_tokenizer import PAD, byte_tokenizer

pytestmark = pytest.mark.usefixtures("offline")

TOKENIZER = byte_tokenizer(pad=PAD)


def load(folder: Path, sources: dict[str, list[str]], needs_anchors: bool = True, **settings: Any) -> Any:
    for name, texts in sources.items():
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = {"model": "m", "output_dir": "o", "use_cpu": True, "context_length": 8, "horizon": 2, "stride": 2}
    datasets = [str(folder / name) for name in sources if name != "held_out.jsonl"]
    recipe = load_recipe(None, {**given, "dataset": datasets, **settings})
    return load_data(recipe, TOKENIZER, needs_anchors)


def texts(dataset: SequenceDataset) -> list[str]:
    """The documents of a dataset that has one in each row."""
    found = []
    for row in range(len(dataset)):
        ids, documents = dataset[row]["input_ids"], dataset[row]["document_ids"]
        found.append(TOKENIZER.decode(ids[documents >= 0].tolist()).removesuffix("<end>"))
    return found


LETTERS = [chr(97 + i) * 3 for i in range(10)]


def test_a_split_holds_out_some_documents_and_trains_on_the_others(tmp_path: Path) -> None:
    found = load(tmp_path, {"rows.jsonl": LETTERS}, packing=False, validation_split=0.3)
    train, validation = map(texts, found)
    assert (len(train), len(validation)) == (7, 3)
    assert sorted(train + validation) == LETTERS
    again = load(tmp_path, {"rows.jsonl": LETTERS}, packing=False, validation_split=0.3)
    assert list(map(texts, again)) == [train, validation], "chosen by the seed"
    other = load(tmp_path, {"rows.jsonl": LETTERS}, packing=False, validation_split=0.3, split_seed=1)
    assert texts(other[1]) != validation
    assert found[0].pad_token_id == TOKENIZER.pad_token_id


def test_without_a_split_there_is_no_validation(tmp_path: Path) -> None:
    train, validation = load(tmp_path, {"rows.jsonl": LETTERS}, packing=False, validation_split=0)
    assert texts(train) == LETTERS
    assert validation is None


def test_validation_data_of_its_own(tmp_path: Path) -> None:
    sources = {"rows.jsonl": LETTERS, "held_out.jsonl": ["xyz", "uvw", "rst"]}
    settings = {"packing": False, "validation_dataset": str(tmp_path / "held_out.jsonl"), "validation_sequences": 2}
    train, validation = load(tmp_path, sources, **settings)
    assert texts(train) == LETTERS
    assert texts(validation) == ["xyz", "uvw"], "no more than validation_sequences"


def test_validation_rows_that_are_also_trained_on_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"packing": False, "validation_split": 3}
    load(tmp_path, {"rows.jsonl": LETTERS}, **given)
    assert "also in the training data" not in caplog.text
    load(tmp_path, {"rows.jsonl": LETTERS[:2] * 5}, **given)
    assert "3 of 3 validation rows are also in the training data" in caplog.text
    sources = {"rows.jsonl": LETTERS, "held_out.jsonl": ["xyz", LETTERS[4], LETTERS[4], "aa", "aaaa"]}
    settings = {"packing": False, "validation_dataset": str(tmp_path / "held_out.jsonl")}
    load(tmp_path, sources, **settings)
    assert "2 of 5 validation rows are also in the training data" in caplog.text


def test_several_sources_are_mixed_in_their_proportions(tmp_path: Path) -> None:
    sources = {"a.jsonl": ["aaa"] * 6, "b.jsonl": ["bbb"] * 6}
    given = {"packing": False, "validation_split": 0}
    train, _ = load(tmp_path, sources, **given)
    assert sorted(texts(train)) == ["aaa"] * 6 + ["bbb"] * 6, "everything, by default"
    train, _ = load(tmp_path, sources, dataset_weights=[2, 1], **given)
    assert sorted(texts(train)) == ["aaa"] * 6 + ["bbb"] * 3


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one document cannot be split"):
        load(tmp_path, {"rows.jsonl": ["aaa"]}, validation_split=0.5)
    short = {"rows.jsonl": ["a"] * 4}
    given = {"packing": False, "horizon": 4, "validation_split": 0}
    with pytest.raises(DataError, match="no rollout can begin in the data"):
        load(tmp_path, short, **given)
    assert len(load(tmp_path, short, needs_anchors=False, **given)[0]) == 4, "baselines need no anchors"


def test_few_validation_sequences(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for split, few in (2, True), (20, False), (0, False):
        caplog.clear()
        load(tmp_path, {"rows.jsonl": ["a" * 40] * 30}, packing=False, validation_split=split)
        assert ("validation sequences: 2; standard errors will be large" in caplog.text) == few


def test_tokens_that_are_cut_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A token a character, and an end token: 41 - 8 of the tokens of the long one are cut.
    source, given = {"rows.jsonl": ["a" * 40, "abc", "abc"]}, {"validation_split": 0}
    load(tmp_path, source, **given)
    load(tmp_path, source, packing=False, needs_anchors=False, **given)
    assert "cuts" not in caplog.text, "packed, nothing is lost; baselines have a length of their own"
    load(tmp_path, source, packing=False, **given)
    assert f"context_length=8 cuts 1 documents, {33 / 49:.1%} of all tokens" in caplog.text


@pytest.mark.parametrize(
    ("lengths", "changes", "said"),
    [
        ([30], {"context_length": 257}, True),
        ([30], {"context_length": 256}, False),
        ([30], {"context_length": 257, "packing": False}, False),
        ([30], {"context_length": 257, "document_masks": True}, False),
        ([300], {"context_length": 257, "document_masks": True}, True),
    ],
)
def test_sequences_longer_than_the_model_was_made_for(
    lengths: list[int], changes: dict[str, Any], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    index = dataset(lengths).index
    data = SequenceDataset(index, changes["context_length"], changes.get("packing", True))
    look_at_positions(tiny_model("llama"), data, "context_length", changes.get("document_masks", False))
    assert ("context_length=257 is longer than the model was made for" in caplog.text) == said


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


class TestAnswers:
    def load(self, file: Path, rows: list[dict[str, Any]], **settings: Any) -> Any:
        given = {"model": "m", "output_dir": "o", "use_cpu": True, "context_length": 8, "horizon": 2, "stride": 2}
        return load_data(load_recipe(None, {**given, "dataset": [write(file, rows)], **settings}), TOKENIZER)

    @pytest.mark.parametrize("kind", ["messages", "pair"])
    def test_no_assistant_turn_at_all_is_refused(self, kind: str, tmp_path: Path) -> None:
        turns = [{"role": role, "content": "some words"} for role in ("user", "narrator")]
        row = {"messages": turns} if kind == "messages" else {"prompt": turns, "completion": turns}
        with pytest.raises(DataError, match="no row has an assistant turn; give answers the role 'assistant'"):
            self.load(tmp_path / "rows.jsonl", [row] * 4)

    def test_slips_in_some_rows_are_counted(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        user, assistant = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
        rows: list[dict[str, Any]] = [{"messages": [user, assistant]}] * 6
        rows[2:4] = [{"messages": [user]}, {"prompt": "2+2=", "completion": ""}]
        rows += [{"text": "plain"}, {"prompt": "1+1=", "completion": " \n"}]
        rows += [{"messages": [user, {"role": "assistant", "content": ""}]}, {"prompt": "3+3=", "completion": " 6"}]
        for _ in range(2):  # the second time from the cache
            caplog.clear()
            self.load(tmp_path / "rows.jsonl", rows)
            assert "rows.jsonl: 4 of 10 rows have no answer, or an empty one (first: row 3)" in caplog.text

    @pytest.mark.parametrize("row", [{"text": "some words"}, {"prompt": "a ", "completion": "some words"}])
    def test_good_rows_get_no_note(self, row: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.load(tmp_path / "rows.jsonl", [row] * 40)
        assert "(first: row" not in caplog.text


@pytest.mark.parametrize(
    ("rows", "settings", "command", "expected"),
    [
        ([{"prompt": "ab", "completion": "c"}] * 4, {}, "train", "the answers of 4 documents: 8 of their 16 tokens"),
        ([{"prompt": "ab", "completion": "c"}] * 4, {"answer_only": False}, "train", "all 16 tokens of 4 documents"),
        ([{"prompt": "ab", "completion": "c"}] * 4, {"loss_on_answers": False}, "sft", "all 16 tokens of 4 documents"),
        ([{"text": "abc"}] * 4, {}, "train", "all 16 tokens of 4 documents"),
    ],
)
def test_a_run_says_what_it_trains_on(
    rows: list[dict[str, str]], settings: dict[str, Any], command: str, expected: str
) -> None:
    """A token for each byte, and an end token."""
    recipe = load_recipe(
        None, {"model": "m", "output_dir": "o", "use_cpu": True, "dataset": ["d"], **settings}, command
    )
    assert trained_part(recipe, DocumentIndex.of(tokenize_rows(rows, TOKENIZER))) == expected


@pytest.mark.parametrize(
    ("row", "settings", "said"),
    [
        ({"prompt": "a", "completion": "b"}, {}, "the model sees 'ab'"),
        ({"prompt": "a", "completion": "b"}, {"prompt_separator": ""}, ""),
        ({"prompt": "a\n", "completion": "b"}, {}, ""),
        ({"q": "a", "completion": "b"}, {"prompt_template": "{q}:"}, "the model sees 'a:b'"),
        ({"text": "a"}, {"document_masks": True}, "teaches the model not to end"),
        ({"text": "a"}, {"document_masks": True, "short_truths": False}, ""),
        ({"text": "a"}, {"document_masks": True, "anchors": "answer_start"}, ""),
    ],
)
def test_what_is_often_not_meant(
    row: dict[str, Any], settings: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"model": "m", "output_dir": "o", "use_cpu": True, "context_length": 8, "horizon": 1, "stride": 1}
    source = write(tmp_path / "rows.jsonl", [row] * 8)
    recipe = load_recipe(None, {**given, "validation_split": 0, "dataset": [source], **settings})
    load_data(recipe, TOKENIZER, needs_anchors=False)
    assert said in caplog.text
    assert bool(caplog.messages) == bool(said)
