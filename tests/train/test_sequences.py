"""Training and validation sequences as a recipe asks for them, and what is often not meant about them."""

from pathlib import Path
from typing import Any

import pytest

from ebft.config.recipe import load_recipe
from ebft.data.packing import SequenceDataset
from ebft.errors import DataError
from ebft.train.sequences import load_data, look_at_lengths
from tests.baselines.runs import write_rows
from tests.models import tiny_model
from tests.test_iteration import dataset
from tests.tiny_tokenizer import PAD, byte_tokenizer

pytestmark = pytest.mark.usefixtures("offline")

TOKENIZER = byte_tokenizer(pad=PAD)
LETTERS = [chr(97 + i) * 3 for i in range(10)]
GIVEN = {"model": "m", "output_dir": "o", "use_cpu": True, "context_length": 8, "horizon": 2, "stride": 2}


def load(folder: Path, *sources: list[Any], held_out: list[str] | None = None, **settings: Any) -> Any:
    """Sources of rows, or of texts; a document a row."""
    given: dict[str, Any] = {**GIVEN, "packing": False, "dataset": []}
    for number, rows in enumerate([*sources, *([held_out] if held_out else [])]):
        whole = [row if isinstance(row, dict) else {"text": row} for row in rows]
        given["dataset"].append(str(write_rows(folder / f"{number}.jsonl", whole)))
    if held_out:
        given["validation_dataset"] = given["dataset"].pop()
    return load_data(load_recipe(None, {**given, **settings}), TOKENIZER)


def texts(dataset: SequenceDataset) -> list[str]:
    found = []
    for row in range(len(dataset)):
        ids, documents = dataset[row]["input_ids"], dataset[row]["document_ids"]
        found.append(TOKENIZER.decode(ids[documents >= 0].tolist()).removesuffix("<end>"))
    return found


def test_a_split_holds_out_some_documents_and_trains_on_the_others(tmp_path: Path) -> None:
    found = load(tmp_path, LETTERS, validation_split=0.3)
    train, validation = map(texts, found)
    assert (len(train), len(validation)) == (7, 3)
    assert sorted(train + validation) == LETTERS
    assert texts(load(tmp_path, LETTERS, validation_split=0.3, split_seed=1)[1]) != validation
    assert found[0].pad_token_id == TOKENIZER.pad_token_id
    train, none = load(tmp_path, LETTERS, validation_split=0)
    assert (texts(train), none) == (LETTERS, None)


def test_mixtures_and_validation_data_of_its_own(tmp_path: Path) -> None:
    sources = ["aaa"] * 6, ["bbb"] * 6
    train, validation = load(tmp_path, *sources, held_out=["xyz", "uvw", "rst"], validation_sequences=2)
    assert sorted(texts(train)) == ["aaa"] * 6 + ["bbb"] * 6, "everything, by default"
    assert texts(validation) == ["xyz", "uvw"], "no more than validation_sequences"
    train, _ = load(tmp_path, *sources, dataset_weights=[2, 1], validation_split=0)
    assert sorted(texts(train)) == ["aaa"] * 6 + ["bbb"] * 3


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one document cannot be split"):
        load(tmp_path, ["aaa"], validation_split=0.5)
    turns = [{"role": role, "content": "some words"} for role in ("user", "narrator")]
    for row in {"messages": turns}, {"prompt": turns, "completion": turns}:
        with pytest.raises(DataError, match="no row has an assistant turn; give answers the role 'assistant'"):
            load(tmp_path, [row] * 4)


TEXTS = {"validation_split": 0, "horizon": 1, "stride": 1, "packing": True}
USER = {"role": "user", "content": "hi"}
ROWS = [
    *[{"messages": [USER, {"role": "assistant", "content": "hello"}]}] * 2,
    *({"messages": [USER]}, {"prompt": "2+2=\n", "completion": ""}, {"text": "plain"}),
    *({"prompt": "1+1=\n", "completion": " \n"}, {"messages": [USER, {"role": "assistant", "content": ""}]}),
    {"prompt": "3+3=", "completion": " 6"},
]


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        (LETTERS, {"validation_split": 3}, "validation sequences: 3; standard errors will be large"),
        (LETTERS * 4, {"held_out": [LETTERS[4], *["new"] * 19]}, "1 of 20 validation rows are also in the training"),
        (ROWS, TEXTS, "0.jsonl: 4 of 8 rows have no answer, or an empty one (first: row 3)"),
        ([{"prompt": "a", "completion": "b"}] * 8, TEXTS, "the model sees 'ab'"),
        (["a"] * 8, {**TEXTS, "document_masks": True}, "teaches the model not to end"),
        # Nothing is odd about these.
        ([chr(97 + i % 26) * (1 + i // 26) for i in range(40)], {"validation_split": 20, "horizon": 1}, ""),
        ([{"prompt": "a", "completion": "b"}] * 8, {**TEXTS, "prompt_separator": ""}, ""),
        (["a"] * 8, {**TEXTS, "document_masks": True, "short_truths": False}, ""),
    ],
)
def test_what_is_often_not_meant(
    rows: list[Any], settings: dict[str, Any], said: str, tmp_path: Path, caplog: Any
) -> None:
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        load(tmp_path, rows, **settings)
        assert said in caplog.text
        assert len(caplog.messages) == bool(said)


@pytest.mark.parametrize(
    ("length", "packing", "apart", "said"),
    [
        (30, True, False, "longer than the model was made for; use context_length<=256"),
        (30, True, True, ""),
        (514, False, True, "context_length=257 cuts 1 documents, 50.0% of all tokens"),
    ],
)
def test_documents_that_are_cut_or_longer_than_the_model_was_made_for(
    length: int, packing: bool, apart: bool, said: str, caplog: Any
) -> None:
    look_at_lengths(
        tiny_model("llama"), SequenceDataset(dataset([length]).index, 257, packing), "context_length", apart
    )
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)
