"""Training and validation sequences as a recipe asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ebft.config.recipe import load_recipe
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.store import tokenize_rows
from ebft.errors import ConfigError, DataError
from ebft.train.sequences import (
    ENDS_NOT_MEASURED,
    beyond_positions,
    check_answers,
    glued_rows,
    load_data,
    trained_part,
    warnings_about,
)
from tests.models import tiny_model
from tests.test_iteration import dataset, method
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
    assert "3 of 3 validation rows are also in the training data: " in caplog.text
    sources = {"rows.jsonl": LETTERS, "held_out.jsonl": ["xyz", LETTERS[4], LETTERS[4], "aa", "aaaa"]}
    settings = {"packing": False, "validation_dataset": str(tmp_path / "held_out.jsonl")}
    load(tmp_path, sources, **settings)
    assert "2 of 5 validation rows are also in the training data: " in caplog.text


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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"validation_split": 1},
            "validation has 1 sequence: its standard errors will be large; raise validation_split",
        ),
        (
            {"validation_split": 4, "validation_sequences": 2},
            "2 sequences: its standard errors will be large; raise valid",
        ),
        ({"validation_split": 20}, None),
        ({"validation_split": 0}, None),
    ],
    ids=str,
)
def test_few_validation_sequences(
    settings: dict[str, Any], words: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, {"rows.jsonl": ["a" * 40] * 30}, packing=False, **settings)
    assert (words or "") in caplog.text
    assert ("standard errors" in caplog.text) == (words is not None)


@pytest.mark.parametrize(("batch", "said"), [(30, False), (31, True)])
def test_a_step_larger_than_the_data(batch: int, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"packing": False, "validation_split": 0, "per_device_train_batch_size": batch}
    load(tmp_path, {"rows.jsonl": ["a" * 40] * 30}, **settings)
    assert ("a step takes 31 sequences and there are 30" in caplog.text) == said


def test_documents_that_are_cut_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # A token a character, and an end token: 41 - 8 of the tokens of the long one are cut.
    source, given = {"rows.jsonl": ["a" * 40, "abc", "abc"]}, {"validation_split": 0}
    load(tmp_path, source, **given)
    assert "cuts" not in caplog.text, "packed, nothing is lost"
    load(tmp_path, source, packing=False, needs_anchors=False, **given)
    assert "cuts" not in caplog.text, "baselines have a length of their own"
    load(tmp_path, source, packing=False, **given)
    words = (
        f"context_length=8 cuts 1 of 3 documents, and with them {33 / 49:.1%} of the tokens; raise it, or set packing"
    )
    assert words in caplog.text


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
def test_sequences_longer_than_the_model_was_made_for(lengths: list[int], changes: dict[str, Any], said: bool) -> None:
    words = beyond_positions(tiny_model("llama"), dataset(lengths), method(**changes))
    assert (
        "context_length=257 is longer than the model was made for (max_position_embeddings=256)" in str(words)
    ) == said


def test_learnt_positions_end() -> None:
    """Where a rotary model only computes something strange, a table of positions would be read beyond its end."""
    model = tiny_model("gpt2")
    known = model.config.max_position_embeddings
    assert beyond_positions(model, dataset([30]), method(context_length=known)) is None
    with pytest.raises(ConfigError, match=f"which has {known} positions; use context_length<={known}"):
        beyond_positions(model, dataset([30]), method(context_length=known + 1))


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


class TestAnswers:
    def load(self, file: Path, rows: list[dict[str, Any]], **settings: Any) -> Any:
        given = {"model": "m", "output_dir": "o", "use_cpu": True, "context_length": 8, "horizon": 2, "stride": 2}
        return load_data(load_recipe(None, {**given, "dataset": [write(file, rows)], **settings}), TOKENIZER)

    @pytest.mark.parametrize("roles", [["user", "narrator"], ["user"]])
    @pytest.mark.parametrize("kind", ["messages", "pair"])
    def test_no_assistant_turn_at_all_is_refused(self, roles: list[str], kind: str, tmp_path: Path) -> None:
        turns = [{"role": role, "content": "some words"} for role in roles]
        row = {"messages": turns} if kind == "messages" else {"prompt": turns, "completion": turns}
        found = (
            f"no row has an assistant turn; roles found: {', '.join(sorted(roles))}; give answers the role 'assistant'"
        )
        with pytest.raises(DataError, match=found):
            self.load(tmp_path / "rows.jsonl", [row] * 4)
        with pytest.raises(DataError, match=found):
            check_answers(tokenize_rows([row] * 4, TOKENIZER), TOKENIZER, "the dataset", [row] * 4)

    def test_slips_in_some_rows_are_counted(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        user, assistant = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
        rows: list[dict[str, Any]] = [{"messages": [user, assistant]}] * 6
        rows[2:4] = [{"messages": [user]}, {"prompt": "2+2=", "completion": ""}]
        rows += [{"text": "plain"}, {"prompt": "1+1=", "completion": " \n"}]
        rows += [{"messages": [user, {"role": "assistant", "content": ""}]}, {"prompt": "3+3=", "completion": " 6"}]
        for _ in range(2):  # the second time from the cache
            caplog.clear()
            self.load(tmp_path / "rows.jsonl", rows)
            assert "rows.jsonl: rows without an assistant turn: 1 of 10 (first: row 3); nothing in them" in caplog.text
            assert "rows.jsonl: rows with an empty answer: 3 of 10 (first: row 4); they teach" in caplog.text
            assert "rows.jsonl: rows without a prompt: 1 of 10 (first: row 7); all of their text is" in caplog.text

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


class TestWarnings:
    GLUED, SPACE = "nothing stands between prompts and answers", "1 of the first 1 prompts end with a space"

    @pytest.mark.parametrize(
        ("row", "settings", "expected"),
        [
            ({"prompt": "a", "completion": "b"}, {}, [GLUED]),
            ({"prompt": "a", "completion": "b"}, {"prompt_separator": ""}, []),
            ({"prompt": "a", "completion": "b"}, {"prompt_separator": " "}, []),
            ({"prompt": "a ", "completion": "b"}, {}, [SPACE]),
            ({"prompt": "a ", "completion": "b"}, {"prompt_separator": " "}, [SPACE]),
            ({"prompt": "a\n", "completion": "b"}, {}, []),
            ({"instruction": "a", "output": "b"}, {}, []),
            ({"q": "a", "completion": "b"}, {"prompt_template": "{q}:"}, [GLUED]),
            ({"messages": [{"role": "user", "content": "a"}]}, {}, []),
            ({"text": "a"}, {}, []),
            ({"text": "a"}, {"prompt_separator": "\n"}, ["prompt_separator has no effect"]),
            ({"text": "a"}, {"prompt_separator": ""}, []),
            ({"text": "a"}, {"document_masks": True}, ["teaches the model not to end"]),
            ({"text": "a"}, {"document_masks": True, "short_truths": True}, []),
            ({"text": "a"}, {"document_masks": True, "short_truths": False}, []),
            ({"text": "a"}, {"document_masks": True, "anchors": "answer_start"}, []),
            ({"text": "a"}, {"samples": 2}, ["samples=2 leaves the diversity term without a baseline"]),
            ({"text": "a"}, {"samples": 2, "alpha": 0.0}, []),
            ({"text": "a"}, {"samples": 1, "eval_samples": 2}, ["samples=1 leaves rewards without a baseline"]),
        ],
    )
    def test_what_is_often_not_meant(self, row: dict[str, Any], settings: dict[str, Any], expected: list[str]) -> None:
        given = {"model": "m", "output_dir": "o", "use_cpu": True, "dataset": ["d"], **settings}
        found = warnings_about(load_recipe(None, given), [row])
        assert [words in line for line, words in zip(found, expected, strict=True)] == [True] * len(expected)

    def test_prompts_of_rlvr_that_end_with_a_space(self) -> None:
        """Where a model would learn to answer after a token that it will not be shown."""
        given = {"model": "m", "output_dir": "o", "use_cpu": True, "dataset": ["d"], "rewards": ["bleu"]}
        for prompt, expected in ("a: ", True), ("a:", False):
            found = warnings_about(load_recipe(None, given, "rlvr"), [{"prompt": prompt, "completion": "b"}])
            assert any(self.SPACE in line for line in found) == expected

    def test_ends_that_a_baseline_is_not_measured_with(self) -> None:
        given = {"model": "m", "output_dir": "o", "use_cpu": True, "dataset": ["d"], "document_masks": True}
        assert warnings_about(load_recipe(None, given, "sft"), [{"text": "a"}]) == [ENDS_NOT_MEASURED]
        assert warnings_about(load_recipe(None, {**given, "short_truths": True}, "sft"), [{"text": "a"}]) == []

    def test_rows_that_are_given_in_python(self) -> None:
        rows = [{"prompt": "a ", "completion": "b"}, {"prompt": "2+2=", "completion": "4"}]
        assert glued_rows(rows) == f"{self.GLUED}: the model sees '2+2=4'"
        assert glued_rows(rows[:1]) is None
        assert glued_rows(iter(rows)) is None, "what can be read once only is not looked at"
        assert glued_rows(None) is None
