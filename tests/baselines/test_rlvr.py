"""`ebft rlvr`: rewards, what goes wrong with them, and a pass rate that rises."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("trl")

from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from ebft.baselines import rlvr
from ebft.baselines.rewards import make_rewards
from ebft.config.recipe import load_recipe
from ebft.errors import DataError
from ebft.loading import load_tokenizer
from ebft.train.sequences import load_data
from tests.baselines.runs import metrics_of, results_of, run, write_recipe, write_rows
from tests.sandbox.sandboxed import needs_sandbox

pytestmark = pytest.mark.usefixtures("offline")


TESTED = {"entry_point": "f", "test": "def check(candidate):\n    assert candidate() >= 5\n"}
DIGITS = [{"prompt": "def f():\n    return ", "completion": str(number % 10), **TESTED} for number in range(40)]


@needs_sandbox
def test_the_pass_rate_of_a_toy_task_rises(tiny: Path, tmp_path: Path) -> None:
    """SFT teaches to answer with any digit; RLVR, with real tests in the real sandbox, to answer with a large one."""
    rows = write_rows(tmp_path / "digits.jsonl", DIGITS)
    common = {"learning_rate": 3e-3, "eval_strategy": "no", "save_strategy": "no", "samples_every": 15}
    recipe = write_recipe(tmp_path, tiny, rows, max_steps=40, answer_only=True, **common)
    assert run("sft", recipe, tmp_path / "warm", "--per_device_train_batch_size", "16") == 0
    changes = {"rewards": "unit_tests", "tests_column": "test", "max_new_tokens": 2, "generations": 8}
    changes |= {**common, "max_steps": 15, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    output = tmp_path / "rlvr"
    assert run("rlvr", write_recipe(tmp_path, tmp_path / "warm", rows, **changes), output) == 0

    def pass_rate(folder: Path) -> float:
        """The probability of a digit from 5 on, as a first token after the prompt."""
        model, tokenizer = (kind.from_pretrained(folder / "final") for kind in (AutoModelForCausalLM, AutoTokenizer))
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer("def f():\n    return ")["input_ids"]])).logits[0, -1]
        return float(logits.softmax(-1)[tokenizer("56789")["input_ids"]].sum())

    before, after = pass_rate(tmp_path / "warm"), pass_rate(output)
    assert before < 0.75
    assert after > before + 0.15
    last = [e for e in metrics_of(output) if "loss" in e][-1]
    assert last["reward_counts/programs"] > 0
    assert last["reward_counts/programs"] + last["reward_counts/from_cache"] == 15 * 16
    assert results_of(output)["method"] == "rlvr"
    assert (output / "samples" / "step-000015.md").read_text().count("\n| `") == 8


def test_stopped_anywhere_a_resumed_run_ends_the_same(
    tiny: Path, sums: Path, tmp_path: Path, own_module: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """In the second epoch, whose order depends on the first; before the first checkpoint, with the results of before on
    disk: whether they are measured again must not change what is drawn. Rewards that raise are counted on."""

    def interrupt(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    changes = {"rewards": "own_reward:length,bleu", "max_new_tokens": 4, "generations": 4, "kl_coefficient": 0.1}
    # An epoch is two steps. Without the column `bonus` every answer raises.
    recipe = write_recipe(tmp_path, tiny, sums, gradient_accumulation_steps=12, eval_steps=9, save_steps=3, **changes)
    whole, stopped, early = (tmp_path / name for name in ("whole", "stopped", "early"))
    assert run("rlvr", recipe, whole) == 0
    assert "raised KeyError: 'bonus'" in capsys.readouterr().err
    shutil.copytree(whole, stopped)
    shutil.rmtree(stopped / "checkpoint-4")
    shutil.rmtree(stopped / "final")
    with monkeypatch.context() as killed:
        killed.setattr(TrainerCallback, "on_step_begin", interrupt)
        assert run("rlvr", recipe, early) == 130
    logged = [e for e in metrics_of(whole) if "loss" in e]
    assert [e["reward_counts/raised"] for e in logged] == [48, 96, 144, 192]
    assert "kl" in logged[-1]
    for output in stopped, early:
        assert run("rlvr", recipe, output, "--resume") == 0
        assert (whole / "final/model.safetensors").read_bytes() == (output / "final/model.safetensors").read_bytes()
        again = [e for e in metrics_of(output) if "loss" in e]
        for name in ("step", "spent/tokens", "spent/generated_tokens", "reward", "reward_counts/raised"):
            assert [e[name] for e in again] == [e[name] for e in logged], name


def test_a_dry_run_counts_steps_as_trl_does(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    """29 training documents, 2 a step: the last one fills no step. And an adapter trains, in bf16."""
    changes = {"rewards": "bleu", "generations": 4, "gradient_accumulation_steps": 2, "max_steps": -1}
    changes |= {"lora": True, "bf16": True, "gradient_checkpointing": True, "trl_options": {"scale_rewards": "none"}}
    recipe = write_recipe(tmp_path, tiny, sums, max_new_tokens=2, eval_strategy="no", save_strategy="no", **changes)
    assert run("rlvr", recipe, tmp_path / "out", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "14 (14 an epoch)" in printed
    assert "of 8 rows each" in printed
    assert not (tmp_path / "out").exists()
    assert run("rlvr", recipe, tmp_path / "out") == 0
    assert results_of(tmp_path / "out")["steps"] == 14


def test_prompts_are_the_training_documents_of_the_same_split(tiny: Path, sums: Path, tmp_path: Path) -> None:
    file = write_recipe(tmp_path, tiny, sums, rewards="bleu", max_prompt_tokens=4)
    recipe = load_recipe(file, {"output_dir": str(tmp_path / "out")}, "rlvr")
    tokenizer = load_tokenizer(recipe)
    train_set, validation_set = load_data(recipe, tokenizer)
    reward = make_rewards(recipe.training, recipe.data.columns, Counter())  # type: ignore[arg-type]
    found = rlvr.load_questions(recipe, train_set.index, reward, tokenizer)
    texts = tokenizer.decode(train_set[0]["input_ids"].tolist())
    assert texts.startswith(found[0].prompt + found[0].row["completion"])
    assert len(found) == len(train_set.index) == 29
    assert {each.tokens for each in found} == {4}
    assert validation_set is not None
    held_out = tokenizer.decode(validation_set[0]["input_ids"].tolist())[:4]
    assert held_out not in {each.prompt for each in found}
    recipe.training.max_prompt_tokens = 3  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="none of the 29 documents can be used: prompts longer than max_prompt_"):
        rlvr.load_questions(recipe, train_set.index, reward, tokenizer)
    recipe.data.prompt_column = "question"
    with pytest.raises(DataError, match="row 1 has no prompt in a column 'question' or 'messages', which rlvr needs"):
        rlvr.load_questions(recipe, train_set.index, reward, tokenizer)


def test_messages_become_conversations(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    """Rows that cannot be rewarded are left out, and told."""
    said = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "!"}]
    rows = write_rows(tmp_path / "rows.jsonl", [{"messages": said, "ref": "!" * (n % 3)} for n in range(24)])
    changes = {"rewards": "bleu", "reference_column": "ref", "generations": 2, "max_new_tokens": 2, "max_steps": 1}
    recipe = write_recipe(tmp_path, tiny, rows, gradient_accumulation_steps=1, eval_strategy="no", **changes)
    assert run("rlvr", recipe, tmp_path / "out") == 0
    assert results_of(tmp_path / "out")["spent"]["tokens"] > 0
    assert "documents are left out; the first: " in capsys.readouterr().err


def test_rewards_do_not_see_the_space_that_answers_begin_with() -> None:
    reward: Any = Mock(counts=Counter(), score=Mock(return_value=[0.0] * 3))
    reward.name = "spy"
    judge = rlvr.Judge([reward], [rlvr.Question({"prompt": "a:"}, "a:", 2)], answers_begin_with=" ")
    judge._count = Mock()  # type: ignore[method-assign]
    judge.functions()[0]([" def f():", "  b", "c"], [[1]] * 3, [0, 0, 0])
    assert reward.score.call_args.args[0] == ["def f():", " b", "c"]
