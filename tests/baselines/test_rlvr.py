"""`ebft rlvr`: rewards, what goes wrong with them, and a pass rate that rises."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl")

from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from ebft.baselines import rlvr
from ebft.baselines.rewards import RewardFunction, make_rewards
from ebft.config.recipe import load_recipe
from ebft.data.row_format import Row, RowFormat
from ebft.errors import DataError
from ebft.loading import load_tokenizer
from ebft.train.sequences import load_data
from tests.baselines.runs import contents, metrics_of, results_of, run, write_recipe, write_rows
from tests.sandbox.sandboxed import needs_sandbox

pytestmark = pytest.mark.usefixtures("offline")


DIGITS = [
    {
        "prompt": "def f():\n    return ",
        "completion": str(number % 10),
        "entry_point": "f",
        "test": "def check(candidate):\n    assert candidate() >= 5\n",
    }
    for number in range(40)
]


@needs_sandbox
def test_the_pass_rate_of_a_toy_task_rises(tiny: Path, tmp_path: Path) -> None:
    """SFT teaches to answer with any digit; RLVR, with real tests in the real sandbox, to answer with a large one."""
    rows = write_rows(tmp_path / "digits.jsonl", DIGITS)
    common = {"learning_rate": 3e-3, "eval_strategy": "no", "save_strategy": "no", "samples_every": 15}
    recipe = write_recipe(tmp_path, tiny, rows, max_steps=40, answer_only=True, **common)
    assert run("sft", recipe, tmp_path / "warm", "--per_device_train_batch_size", "16") == 0
    changes = {"rewards": "unit_tests", "tests_column": "test", "max_new_tokens": 2, "generations": 8}
    recipe = write_recipe(
        tmp_path,
        tmp_path / "warm",
        rows,
        max_steps=15,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
        **{**common, **changes},
    )
    output = tmp_path / "rlvr"
    assert run("rlvr", recipe, output) == 0

    def pass_rate(folder: Path) -> float:
        """The probability of a digit from 5 on, as a first token after the prompt."""
        model, tokenizer = (kind.from_pretrained(folder / "final") for kind in (AutoModelForCausalLM, AutoTokenizer))
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer("def f():\n    return ")["input_ids"]])).logits[0, -1]
        probabilities = logits.softmax(-1)
        return sum(float(probabilities[tokenizer(digit)["input_ids"][0]]) for digit in "56789")

    before, after = pass_rate(tmp_path / "warm"), pass_rate(output)
    assert before < 0.75
    assert after > before + 0.15
    logged = [e for e in metrics_of(output) if "reward" in e and "loss" in e]
    assert sum(e["reward"] for e in logged[-3:]) / 3 > sum(e["reward"] for e in logged[:3]) / 3
    assert logged[-1]["reward_counts/programs"] > 0
    assert logged[-1]["reward_counts/programs"] + logged[-1]["reward_counts/from_cache"] == 15 * 16
    results = results_of(output)
    assert results["method"] == "rlvr"
    assert results["spent"]["generated_tokens"] > 0
    table = (output / "samples" / "step-000015.md").read_text()
    assert table.count("\n| `") == 8


def test_resuming_continues_with_the_same_numbers(tiny: Path, sums: Path, tmp_path: Path) -> None:
    changes = {"rewards": "bleu", "max_new_tokens": 4, "generations": 4, "gradient_accumulation_steps": 2}
    recipe = write_recipe(tmp_path, tiny, sums, **changes)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run("rlvr", recipe, whole) == 0
    shutil.copytree(whole, stopped)
    shutil.rmtree(stopped / "checkpoint-4")
    shutil.rmtree(stopped / "final")
    assert run("rlvr", recipe, stopped, "--resume") == 0
    assert results_of(stopped)["steps"] == 4
    one, other = ([e["step"] for e in metrics_of(p) if "loss" in e] for p in (whole, stopped))
    assert one == other == [1, 2, 3, 4]
    for name in ("spent/tokens", "spent/generated_tokens", "reward"):
        one, other = ([e[name] for e in metrics_of(p) if "loss" in e] for p in (whole, stopped))
        assert one == pytest.approx(other), name
    assert (whole / "final/model.safetensors").read_bytes() == (stopped / "final/model.safetensors").read_bytes()


def test_dry_run(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, rewards="bleu", gradient_accumulation_steps=4)
    assert run("rlvr", recipe, tmp_path / "out", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "16: 8 to each of 2 prompts" in printed
    assert "29, 4.0 tokens on average" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--rewards", ""], "no reward: set `rewards`"),
        (["--rewards", "blue"], "did you mean 'bleu'?"),
        (["--generations", "1"], "generations=1 must be at least 2"),
        (["--generations", "7"], "are not a multiple of generations=7"),
        (["--generation_temperature", "0"], "must be above 0"),
        (["--reference_column", "ref"], "none of the 29 documents can be used"),
        (["--use_vllm", "true"], "use_vllm=true needs vllm"),
        (["--reward_weights", "1,2"], "reward weights (2) must match number of reward functions (1)"),
        (["--text_column", "prompt", "--prompt_column", "nothing"], "is in none of the datasets"),
    ],
)
def test_bad_input(
    arguments: list[str], what: str, tiny: Path, sums: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, rewards="bleu")
    output = tmp_path / "out"
    capfd.readouterr()
    assert run("rlvr", recipe, output, *arguments) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("ebft: ")
    assert what in line
    assert not contents(output) if output.exists() else True


@pytest.mark.parametrize(
    "changes",
    [
        {"kl_coefficient": 0.1},
        {"lora": True},
        {"bf16": True, "gradient_checkpointing": True},
        {"trl_options": {"loss_type": "grpo", "scale_rewards": "none"}},
        {"max_grad_norm": 0.5, "save_log_spaced": True},
    ],
    ids=str,
)
def test_every_option_trains(tiny: Path, sums: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    common = {
        "rewards": "bleu",
        "generations": 4,
        "max_new_tokens": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 2,
    }
    recipe = write_recipe(tmp_path, tiny, sums, **common, **changes)
    assert run("rlvr", recipe, tmp_path / "out") == 0
    logged = [entry for entry in metrics_of(tmp_path / "out") if "loss" in entry]
    assert len(logged) == 2
    assert all("reward" in entry for entry in logged)
    if "kl_coefficient" in changes:
        assert "kl" in logged[-1]


def test_counts_continue_after_a_resume(tiny: Path, sums: Path, tmp_path: Path, own_module: None) -> None:
    changes = {"rewards": "own_reward:length", "max_new_tokens": 4, "generations": 4, "gradient_accumulation_steps": 1}
    recipe = write_recipe(tmp_path, tiny, sums, **changes)  # without the column `bonus`: every answer raises
    output = tmp_path / "out"
    assert run("rlvr", recipe, output, "--max_steps", 2) == 0
    assert run("rlvr", recipe, output, "--max_steps", 4, "--resume") == 0
    raised = {e["step"]: e["reward_counts/raised"] for e in metrics_of(output) if "loss" in e}
    assert raised == {1: 4, 2: 8, 3: 12, 4: 16}


def test_too_few_prompts_for_a_step(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    """TRL would train for no step, without a word."""
    recipe = write_recipe(tmp_path, tiny, sums, rewards="bleu", generations=4, limit_documents=5)
    assert run("rlvr", recipe, tmp_path / "out") == 2
    assert "a step draws answers to 16 prompts, but there are 4" in capsys.readouterr().err


def test_a_dry_run_counts_steps_as_trl_does(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    """29 training documents, 2 a step: the last one fills no step."""
    changes = {"rewards": "bleu", "generations": 4, "gradient_accumulation_steps": 2, "max_steps": -1}
    recipe = write_recipe(tmp_path, tiny, sums, max_new_tokens=2, eval_strategy="no", save_strategy="no", **changes)
    assert run("rlvr", recipe, tmp_path / "out", "--dry-run") == 0
    assert "14 (14 an epoch)" in capsys.readouterr().out
    assert run("rlvr", recipe, tmp_path / "out") == 0
    assert results_of(tmp_path / "out")["steps"] == 14


def test_a_model_that_is_no_number(tiny: Path, sums: Path, tmp_path: Path, own_module: None, capsys: Any) -> None:
    (tmp_path / "own_sum.py").write_text("def of(completion, row):\n    return sum(map(ord, completion)) % 7\n")
    changes = {"rewards": "own_sum:of", "generations": 4, "gradient_accumulation_steps": 1, "max_new_tokens": 4}
    recipe = write_recipe(tmp_path, tiny, sums, learning_rate=1e30, max_grad_norm=1e30, eval_strategy="no", **changes)
    assert run("rlvr", recipe, tmp_path / "out") == 1
    assert "try a lower learning_rate" in capsys.readouterr().err


def test_killed_before_its_first_checkpoint_it_ends_the_same(
    tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of before are on disk by then: whether they are measured again must not change what is drawn."""

    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    recipe = write_recipe(tmp_path, tiny, sums, rewards="bleu", generations=4, max_new_tokens=3, max_steps=2)
    more = ["--gradient_accumulation_steps", 1]
    assert run("rlvr", recipe, tmp_path / "whole", *more) == 0
    with monkeypatch.context() as killed:
        killed.setattr(TrainerCallback, "on_step_begin", interrupt)
        assert run("rlvr", recipe, tmp_path / "out", *more) == 130
    assert run("rlvr", recipe, tmp_path / "out", *more, "--resume") == 0
    whole, resumed = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("whole", "out"))
    assert all(whole[name].equal(resumed[name]) for name in whole)


def test_resumed_after_an_epoch_it_ends_the_same(tiny: Path, sums: Path, tmp_path: Path) -> None:
    """An epoch is one step here; the order of the next one depends on those before."""
    changes = {"rewards": "bleu", "generations": 4, "max_new_tokens": 3, "max_steps": 2, "save_steps": 1}
    recipe = write_recipe(tmp_path, tiny, sums, **changes, gradient_accumulation_steps=16, eval_strategy="no")
    assert run("rlvr", recipe, tmp_path / "whole") == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    assert run("rlvr", recipe, tmp_path / "out", "--resume") == 0
    whole, resumed = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("whole", "out"))
    assert all(whole[name].equal(resumed[name]) for name in whole)


def test_prompts_are_the_training_documents_of_the_same_split(
    tiny: Path, sums: Path, tmp_path: Path, capsys: Any
) -> None:
    file = write_recipe(tmp_path, tiny, sums, rewards="bleu", max_prompt_tokens=4)
    recipe = load_recipe(file, {"output_dir": str(tmp_path / "out")}, "rlvr")
    tokenizer = load_tokenizer(recipe)
    train_set, validation_set = load_data(recipe, tokenizer)
    reward = make_rewards(recipe.training, recipe.data.columns, Counter())  # type: ignore[arg-type]
    found = rlvr.load_questions(recipe, train_set.index, reward, tokenizer)
    prompts = [each.prompt for each in found]
    texts = tokenizer.decode(train_set[0]["input_ids"].tolist())
    assert texts.startswith(found[0].prompt + found[0].row["completion"])
    assert len(found) == len(train_set.index) == 29
    assert {each.tokens for each in found} == {4}
    assert validation_set is not None
    held_out = {tokenizer.decode(validation_set[i]["input_ids"].tolist())[:4] for i in range(1)}
    assert not held_out & set(prompts)
    recipe.training.max_prompt_tokens = 3  # type: ignore[attr-defined]
    with pytest.raises(
        DataError, match="none of the 29 documents can be used: prompts longer than max_prompt_tokens=3"
    ):
        rlvr.load_questions(recipe, train_set.index, reward, tokenizer)


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
    assert rlvr.prompt_of({"prompt": "1+1="}, RowFormat()) == "1+1="
    with pytest.raises(
        DataError, match=r"rlvr needs a prompt in the column 'prompt' or 'messages'; the row has .*text"
    ):
        rlvr.prompt_of({"text": "1+1=2"}, RowFormat())


def test_rewards_do_not_see_the_space_that_answers_begin_with() -> None:
    seen: list[str] = []

    class Spy(RewardFunction):
        name = "spy"

        def score(self, texts: Sequence[str], rows: Sequence[Row]) -> list[float]:
            seen.extend(texts)
            return [0.0] * len(texts)

    judge = rlvr.Judge([Spy(Counter())], [rlvr.Question({"prompt": "a:"}, "a:", 2)], answers_begin_with=" ")
    judge._count = lambda *_: None  # type: ignore[method-assign]
    judge.functions()[0]([" def f():", "  b", "c"], [[1], [1], [1]], [0, 0, 0])
    assert seen == ["def f():", " b", "c"]
