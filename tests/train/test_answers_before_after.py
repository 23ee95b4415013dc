"""Prompts answered before and after training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebft.data.formats import encode
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.store import TokenStore
from ebft.train.answers_before_after import ANSWER_TOKENS, PROMPT_TOKENS, HeldOutPrompts, lines
from tests.baselines.runs import run, write_recipe
from tests.tiny_tokenizer import byte_tokenizer

pytestmark = pytest.mark.usefixtures("offline")


def held_out(rows: list[dict[str, str]], count: int) -> HeldOutPrompts:
    tokenizer = byte_tokenizer()
    store = TokenStore.from_documents([encode(row, tokenizer) for row in rows])
    return HeldOutPrompts(SequenceDataset(DocumentIndex.of(store), 16), tokenizer, count, 0.6)


def test_prompts_end_where_answers_begin() -> None:
    found = held_out([{"prompt": f"{n}+0=", "completion": f"{n}"} for n in range(8)], 2)
    assert (found.prompts, found.truths) == (["0+0=", "4+0="], ["0", "4"])


def test_long_prompts_keep_their_end_and_texts_are_cut_in_the_middle() -> None:
    found = held_out([{"prompt": "x" * 100 + "=", "completion": "y" * 100}, {"text": "abcdef"}], 2)
    assert found.prompts == ["x" * (PROMPT_TOKENS - 1) + "=", "abc"]
    assert found.truths == ["y" * ANSWER_TOKENS, "def"]


def test_fewer_documents_than_asked_for() -> None:
    assert held_out([{"prompt": "a", "completion": "b"}], 3).prompts == ["a"]


def test_lines() -> None:
    found = {"prompts": ["a\n"], "text": ["b"], "before": ["c"], "after": ["d" * 200]}
    assert lines(found) == ["...a\\n", "    text    b", "    before  c", f"    after   {'d' * 100}"]


def test_a_run_shows_them_and_a_resumed_run_keeps_those_before(
    tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=2, eval_strategy="no", learning_rate=0.03, show_prompts=2)
    assert run("train", recipe, tmp_path / "out", "--save_steps", 1) == 0
    results = tmp_path / "out" / "results.json"
    answers = json.loads(results.read_text())["answers"]
    assert answers["before"] != answers["after"]
    printed = capsys.readouterr().out
    card = (tmp_path / "out" / "final" / "README.md").read_text(encoding="utf-8")
    for line in lines(answers):
        assert line in card
    assert "what the model wrote before and after training" in printed
    assert run("train", recipe, tmp_path / "out", "--resume", "--max_steps", 3) == 0
    again = json.loads(results.read_text())["answers"]
    assert again["before"] == answers["before"]
