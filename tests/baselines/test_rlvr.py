"""`ebft rlvr`: rewards, what goes wrong with them, and a pass rate that rises."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft.baselines.verifiable_rewards import as_tests, make_rewards
from ebft.config.baseline_settings import RLVRSettings
from ebft.errors import ConfigError, DataError
from tests.baselines.runs import contents, metrics_of, results_of, run, write_recipe, write_rows
from tests.sandbox.sandboxed import needs_sandbox

pytestmark = pytest.mark.usefixtures("offline")

COLUMNS = {name: name for name in ("text", "prompt", "completion", "messages")}
MBPP = {
    "prompt": "Write a function that doubles a number.",
    "completion": "def double(x):\n    return 2 * x\n",
    "test_list": ["assert double(2) == 4", "assert double(-1) == -2"],
}
GOOD, WRONG = "def double(x):\n    return x + x\n", "def double(x):\n    return x * x\n"


def settings(tmp_path: Path, *rewards: str, **changes: Any) -> RLVRSettings:
    return RLVRSettings(output_dir=str(tmp_path), use_cpu=True, rewards=list(rewards), **changes)


def made(tmp_path: Path, *rewards: str, **changes: Any) -> Any:
    return make_rewards(settings(tmp_path, *rewards, **changes), COLUMNS, Counter())


@needs_sandbox
class TestUnitTests:
    def test_all_tests_of_a_problem_must_pass_and_nothing_runs_twice(self, tmp_path: Path) -> None:
        (reward,) = made(tmp_path, "unit_tests")
        answers = [GOOD, WRONG, "not a program", GOOD, f"Here it is:\n```python\n{GOOD}```"]
        assert reward.score(answers, [MBPP] * 5) == [1.0, 0.0, 0.0, 1.0, 1.0]
        assert (reward.counts["programs"], reward.counts["from_cache"]) == (4, 1)
        assert reward.score([WRONG, GOOD], [dict(MBPP)] * 2) == [0.0, 1.0]
        assert (reward.counts["programs"], reward.counts["from_cache"]) == (4, 3)
        assert reward.counts["raised"] == 0

    def test_the_same_answer_to_another_problem_is_another_matter(self, tmp_path: Path) -> None:
        (reward,) = made(tmp_path, "unit_tests")
        square = {**MBPP, "test_list": ["assert double(3) == 9"]}
        assert reward.score([GOOD, GOOD, WRONG], [MBPP, square, square]) == [1.0, 0.0, 1.0]

    def test_an_answer_that_hangs_costs_itself_a_zero(self, tmp_path: Path) -> None:
        (reward,) = made(tmp_path, "unit_tests", reward_timeout=1.0)
        hanging = "def double(x):\n    while True:\n        pass\n"
        begin = time.monotonic()
        assert reward.score([hanging, GOOD, hanging], [MBPP] * 3) == [0.0, 1.0, 0.0]
        assert time.monotonic() - begin < 20
        assert (reward.counts["timeouts"], reward.counts["programs"]) == (1, 2)

    def test_answers_may_continue_the_prompt(self, tmp_path: Path) -> None:
        (reward,) = made(tmp_path, "unit_tests", tests_column="test")
        row = {"prompt": "def f():\n    return ", "entry_point": "f", "test": "def check(c):\n    assert c() > 4\n"}
        assert reward.score(["3", "7"], [row] * 2) == [0.0, 1.0]

    def test_rows_without_tests_are_told_before_training(self, tmp_path: Path) -> None:
        (reward,) = made(tmp_path, "unit_tests")
        assert reward.unusable(MBPP, "row 1") is None
        assert "Name yours with tests_column" in reward.unusable({"prompt": "x"}, "row 2")
        assert "without tests everything would pass" in reward.unusable({**MBPP, "test_list": []}, "row 3")
        assert "not valid Python" in reward.unusable({**MBPP, "test_list": ["assert ("]}, "row 4")
        assert reward.score([GOOD, GOOD], [{"prompt": "x"}, MBPP]) == [0.0, 1.0]
        assert reward.counts["raised"] == 1


def test_without_a_sandbox_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"bubblewrap.*unsafe_exec=true"):
        made(tmp_path, "unit_tests")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["assert a", " "], ["assert a"]),
        ('["assert a", "assert b"]', ["assert a", "assert b"]),
        ("['assert a']", ["assert a"]),
        ("assert a\nassert b", ["assert a\nassert b"]),
    ],
)
def test_ways_to_write_unit_tests(value: Any, expected: list[str]) -> None:
    assert as_tests(value) == expected


def test_bleu_is_sacrebleus_sentence_score(tmp_path: Path) -> None:
    from sacrebleu import sentence_bleu

    (reward,) = made(tmp_path, "bleu")
    row = {"completion": "the dog sleeps in the house today"}
    texts = ["the dog sleeps in the house today", "a dog sleeps in the house", "nothing\nof it", ""]
    found = reward.score(texts, [row] * 4)
    expected = [sentence_bleu(t.replace("\n", " "), [row["completion"]]).score / 100 for t in texts]
    assert found == pytest.approx(expected)
    assert found[0] == pytest.approx(1.0)
    assert 0 < found[1] < 1
    assert "set reference_column" in reward.unusable({"completion": " "}, "row 1")
    (other,) = made(tmp_path, "bleu", reference_column="ref")
    assert other.score(["a b c d"], [{"ref": "a b c d"}]) == [pytest.approx(1.0)]


OWN = """
def length(completion, row):
    if "a" in completion:
        raise RuntimeError("no a, please")
    return len(completion) + row["bonus"]

def nonsense(completion, row):
    return {"x": float("nan"), "y": None, "z": 2}[completion]

number = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_reward.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("own_reward", None)


@pytest.mark.usefixtures("own_module")
class TestOwn:
    def test_a_function_that_raises_costs_that_answer_a_zero(self, tmp_path: Path, capsys: Any) -> None:
        (reward,) = made(tmp_path, "own_reward:length")
        assert reward.score(["xyz", "abc", "", "a"], [{"bonus": 1}] * 4) == [4.0, 0.0, 1.0, 0.0]
        assert reward.counts["raised"] == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "no a, please" in line
        (reward,) = made(tmp_path, "own_reward:nonsense")
        assert reward.score(["x", "y", "z"], [{}] * 3) == [0.0, 0.0, 2.0]
        assert reward.counts["raised"] == 2

    @pytest.mark.parametrize(
        ("name", "what"),
        [
            ("nowhere_at_all:f", "there is no module 'nowhere_at_all'"),
            ("own_reward:f", "has no function 'f'"),
            ("own_reward:number", "is a int, not a function"),
            ("unit_test", "did you mean 'unit_tests'?"),
        ],
    )
    def test_that_is_not_there(self, tmp_path: Path, name: str, what: str) -> None:
        with pytest.raises(ConfigError) as caught:
            made(tmp_path, name)
        assert what in str(caught.value)

    def test_a_run_goes_on_and_shows_the_count(self, tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
        """Also where every single answer raises; beside another reward, with weights."""
        (tmp_path / "own_reward.py").write_text("def always(completion, row):\n    raise OSError('gone')\n")
        changes = {"rewards": ["own_reward:always", "bleu"], "reward_weights": [1.0, 2.0], "generations": 4}
        recipe = write_recipe(
            tmp_path, tiny, sums, max_steps=2, max_new_tokens=3, gradient_accumulation_steps=2, **changes
        )
        assert run("rlvr", recipe, tmp_path / "out") == 0
        assert "raised OSError: gone" in capsys.readouterr().err
        last = [e for e in metrics_of(tmp_path / "out") if "loss" in e][-1]
        assert last["reward_counts/raised"] == 2 * 8
        assert last["rewards/own_reward.always/mean"] == 0.0
        assert last["reward"] == pytest.approx(2 * last["rewards/bleu/mean"])


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
    assert "rewards unit_tests" in (output / "final" / "README.md").read_text()


def test_resuming_goes_on_with_the_same_numbers(tiny: Path, sums: Path, tmp_path: Path) -> None:
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


def test_dry_run(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, rewards="bleu", gradient_accumulation_steps=4)
    assert run("rlvr", recipe, tmp_path / "out", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "16: 8 to each of 2 prompts, at most 1024 tokens at temperature 1.0" in printed
    assert "29 of 29 documents, 4.0 tokens" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--rewards", ""], "no reward: set `rewards`"),
        (["--rewards", "blue"], "did you mean 'bleu'?"),
        (["--generations", "1"], "generations=1 must be at least 2"),
        (["--generations", "7"], "is not a multiple of generations=7"),
        (["--generation_temperature", "0"], "must be above 0"),
        (["--reference_column", "ref"], "none of the 29 documents can be used"),
        (["--use_vllm", "true"], "use_vllm=true needs vllm"),
        (["--reward_weights", "1,2"], "2 values for 1 rewards"),
        (["--text_column", "prompt", "--prompt_column", "nothing"], "rlvr needs a prompt"),
    ],
)
def test_bad_input(
    arguments: list[str], what: str, tiny: Path, sums: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, rewards="bleu")
    output = tmp_path / "out"
    capfd.readouterr()
    assert run("rlvr", recipe, output, *arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ebft: ")
    assert what in line
    assert not contents(output) if output.exists() else True


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


def test_counts_go_on_after_a_resume(tiny: Path, sums: Path, tmp_path: Path, own_module: None) -> None:
    changes = {"rewards": "own_reward:length", "max_new_tokens": 4, "generations": 4, "gradient_accumulation_steps": 1}
    recipe = write_recipe(tmp_path, tiny, sums, **changes)  # without the column `bonus`: every answer raises
    output = tmp_path / "out"
    assert run("rlvr", recipe, output, "--max_steps", 2) == 0
    assert run("rlvr", recipe, output, "--max_steps", 4, "--resume") == 0
    raised = {e["step"]: e["reward_counts/raised"] for e in metrics_of(output) if "loss" in e}
    assert raised == {1: 4, 2: 8, 3: 12, 4: 16}


def test_a_reward_that_exits_costs_a_zero(tmp_path: Path, own_module: None) -> None:
    (tmp_path / "own_exit.py").write_text("import sys\ndef leave(completion, row):\n    sys.exit(3)\n")
    (reward,) = made(tmp_path, "own_exit:leave")
    assert reward.score(["a", "b"], [{}] * 2) == [0.0, 0.0]
    assert reward.counts["raised"] == 2


@needs_sandbox
def test_the_cache_may_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is known when a batch begins keeps its score, though others push it out of the cache."""
    monkeypatch.setattr("ebft.baselines.verifiable_rewards.CACHED", 1)
    (reward,) = made(tmp_path, "unit_tests")
    assert reward.score([GOOD], [MBPP]) == [1.0]
    assert reward.score([WRONG, GOOD], [MBPP] * 2) == [0.0, 1.0]
    assert reward.counts["from_cache"] == 1


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
