"""The prompts that answers are drawn to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ebft.baselines.prompts import Prompts, prompt_of
from ebft.config.baselines import RLVRSettings
from ebft.data.row_format import Row, RowFormat
from ebft.errors import DataError

pytest.importorskip("trl")
from ebft.baselines.rlvr import Judge
from ebft.baselines.verifiable_rewards import RewardFunction, make_rewards
from tests.baselines.runs import results_of, run, write_recipe, write_rows

pytestmark = pytest.mark.usefixtures("offline")


def test_prompts_are_the_training_documents_of_the_same_split(
    tiny: Path, sums: Path, tmp_path: Path, capsys: Any
) -> None:
    from ebft.baselines import rlvr
    from ebft.config.recipe import load_recipe
    from ebft.train.run import load_data, load_tokenizer

    file = write_recipe(tmp_path, tiny, sums, rewards="bleu", max_prompt_tokens=4)
    recipe = load_recipe(file, {"output_dir": str(tmp_path / "out")}, "rlvr")
    tokenizer = load_tokenizer(recipe)
    train_set, validation_set = load_data(recipe, tokenizer)
    reward = make_rewards(recipe.training, recipe.data.columns, Counter())  # type: ignore[arg-type]
    found = rlvr.load_prompts(recipe, train_set.index, reward, tokenizer)
    texts = tokenizer.decode(train_set[0]["input_ids"].tolist())
    assert texts.startswith(found.prompts[0] + found.rows[0]["completion"])
    assert len(found.rows) == len(train_set.index) == 29
    assert set(found.lengths) == {4}
    assert validation_set is not None
    held_out = {tokenizer.decode(validation_set[i]["input_ids"].tolist())[:4] for i in range(1)}
    assert not held_out & set(found.prompts)
    recipe.training.max_prompt_tokens = 3  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="all prompts are longer than max_prompt_tokens=3"):
        rlvr.load_prompts(recipe, train_set.index, reward, tokenizer)


def test_messages_become_conversations(tiny: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!"}], "ref": f"{n}!"}
        for n in range(12)
    ]
    changes = {"rewards": "bleu", "reference_column": "ref", "generations": 2, "max_new_tokens": 2}
    recipe = write_recipe(
        tmp_path, tiny, write_rows(tmp_path / "rows.jsonl", rows), max_steps=1, gradient_accumulation_steps=1, **changes
    )
    assert run("rlvr", recipe, tmp_path / "out") == 0
    assert results_of(tmp_path / "out")["spent"]["tokens"] > 0


def test_some_rows_that_cannot_be_rewarded_are_left_out_and_told(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    rows = [{"prompt": f"{n}?", "completion": f"{n}!", "ref": f"{n}!" if n % 2 else ""} for n in range(12)]
    recipe = write_recipe(
        tmp_path,
        tiny,
        write_rows(tmp_path / "rows.jsonl", rows),
        rewards="bleu",
        reference_column="ref",
        gradient_accumulation_steps=4,
    )
    assert run("rlvr", recipe, tmp_path / "out", "--dry-run") == 0
    assert "documents are left out; the first: " in capsys.readouterr().err


def test_a_row_without_a_prompt_is_refused() -> None:
    assert prompt_of({"prompt": "1+1="}, RowFormat()) == "1+1="
    with pytest.raises(
        DataError, match=r"rlvr needs a prompt in the column 'prompt' or 'messages'; the row has .*text"
    ):
        prompt_of({"text": "1+1=2"}, RowFormat())


def test_rewards_do_not_see_the_space_that_answers_begin_with() -> None:
    seen: list[str] = []

    class Spy(RewardFunction):
        name = "spy"

        def score(self, texts: Sequence[str], rows: Sequence[Row]) -> list[float]:
            seen.extend(texts)
            return [0.0] * len(texts)

    prompts = Prompts(answers_begin_with=" ")
    prompts.rows.append({"prompt": "a:"})
    judge = Judge([Spy(Counter())], prompts, RLVRSettings(rewards=["bleu"]))
    judge._count = lambda *_: None  # type: ignore[method-assign]
    judge.functions()[0]([" def f():", "  b", "c"], [[1], [1], [1]], [0, 0, 0])
    assert seen == ["def f():", " b", "c"]
