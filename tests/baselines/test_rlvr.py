"""`ebft rlvr`: rewards that are checked, what goes wrong with them, and a pass rate that rises."""

import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("trl")

from sacrebleu import sentence_bleu
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from ebft.baselines import rewards, rlvr
from ebft.baselines.rewards import as_tests, make_rewards
from ebft.config.recipe import load_recipe
from ebft.config.training import RLVRSettings
from ebft.errors import ConfigError, DataError, SandboxError
from ebft.loading import load_tokenizer
from ebft.runtime.messages import show_messages
from ebft.train.sequences import load_data
from tests.baselines.runs import metrics_of, results_of, run, write_recipe, write_rows
from tests.sandbox.sandboxed import needs_sandbox

pytestmark = pytest.mark.usefixtures("offline")

MBPP: dict[str, Any] = {"prompt": "Double a number.", "completion": "def double(x):\n    return 2 * x\n"}
MBPP |= {"test_list": ["assert double(2) == 4", "assert double(-1) == -2"]}
GOOD, WRONG = "def double(x):\n    return x + x\n", "def double(x):\n    return x * x\n"


def made(reward: str, **changes: Any) -> Any:
    settings = RLVRSettings(output_dir="out", use_cpu=True, rewards=[reward], **changes)
    columns = {name: name for name in ("text", "prompt", "completion", "messages")}
    return make_rewards(settings, columns, Counter())[0]


@needs_sandbox
def test_all_tests_of_a_problem_must_pass_and_nothing_runs_twice() -> None:
    reward = made("unit_tests")
    answers = [GOOD, WRONG, "not a program", GOOD, f"Here it is:\n```python\n{GOOD}```"]
    assert reward.score(answers, [MBPP] * 5) == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert (reward.counts["programs"], reward.counts["from_cache"]) == (4, 1)
    assert reward.score([WRONG, GOOD], [dict(MBPP)] * 2) == [0.0, 1.0]
    assert (reward.counts["programs"], reward.counts["from_cache"]) == (4, 3)
    assert reward.counts["raised"] == 0
    # The same answer to another problem is another matter.
    square = {**MBPP, "test_list": ["assert double(3) == 9"]}
    assert reward.score([GOOD, GOOD, WRONG], [MBPP, square, square]) == [1.0, 0.0, 1.0]
    assert reward.unusable(MBPP, "row 1") is None
    assert "Name yours with tests_column" in reward.unusable({"prompt": "x"}, "row 2")
    assert reward.unusable({**MBPP, "test_list": []}, "row 3"), "without tests everything would pass"


@needs_sandbox
def test_an_answer_that_hangs_costs_itself_a_zero() -> None:
    reward = made("unit_tests", reward_timeout=1.0)
    hanging = "def double(x):\n    while True:\n        pass\n"
    assert reward.score([hanging, GOOD, hanging], [MBPP] * 3) == [0.0, 1.0, 0.0]
    assert (reward.counts["timeouts"], reward.counts["programs"]) == (1, 2)


def test_without_a_sandbox_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"bubblewrap.*unsafe_exec=true"):
        made("unit_tests")


def test_ways_to_write_unit_tests_and_what_makes_no_reward() -> None:
    assert as_tests('["assert a", " ", "assert b"]') == ["assert a", "assert b"]
    assert as_tests("['assert a']") == ["assert a"]
    assert as_tests("assert a\nassert b") == ["assert a\nassert b"]
    with pytest.raises(DataError, match="unit tests are of the type int"):
        as_tests(3)
    for name, words in (
        ("blue", "is not unit_tests, bleu or module:function; did you mean 'bleu'"),
        ("no_such_module:f", "cannot be imported: ModuleNotFoundError"),
        ("math:pi", "is of the type float, not a function"),
    ):
        with pytest.raises(ConfigError, match=words):
            made(name)


def test_a_sandbox_that_breaks_costs_what_is_left_and_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    show_messages()
    reward = made("unit_tests", unsafe_exec=True)

    def broken(*_: Any) -> Any:
        raise SandboxError("bubblewrap is gone")
        yield

    monkeypatch.setattr(rewards, "run_many", broken)
    prose = {**MBPP, "completion": "Double it: `2 * x`."}
    assert reward.score([GOOD, WRONG], [MBPP, prose]) == [0.0, 0.0]
    assert reward.counts["sandbox_errors"] == 2
    assert "bubblewrap is gone" in capsys.readouterr().err


def test_bleu_is_sacrebleus_sentence_score() -> None:
    reward, row = made("bleu"), {"completion": "the dog sleeps in the house today"}
    texts = ["the dog sleeps in the house today", "a dog sleeps in the house", "nothing\nof it", ""]
    expected = [sentence_bleu(t.replace("\n", " "), [row["completion"]]).score / 100 for t in texts]
    assert reward.score(texts, [row] * 4) == pytest.approx(expected)
    assert expected[0] == pytest.approx(1.0)
    assert 0 < expected[1] < 1
    assert "set reference_column" in reward.unusable({"completion": " "}, "row 1")
    assert made("bleu", reference_column="ref").score(["a b c d"], [{"ref": "a b c d"}]) == [pytest.approx(1.0)]


def test_a_function_that_raises_costs_that_answer_a_zero(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    show_messages()
    reward = made("tests.baselines.own_reward:length")
    assert reward.score(["xyz", "abc", "", "a"], [{"bonus": 1}] * 4) == [4.0, 0.0, 1.0, 0.0]
    assert reward.counts["raised"] == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no a, please" in line
    monkeypatch.chdir(tmp_path)  # a module is also found in the folder of the run
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_exit.py").write_text("import sys\ndef leave(completion, row):\n    sys.exit(3)\n")
    assert made("own_exit:leave").score(["a", "b"], [{}] * 2) == [0.0, 0.0]
    reward = made("tests.baselines.own_reward:nonsense")
    assert reward.score(["x", "y", "z"], [{}] * 3) == [0.0, 0.0, 2.0]
    assert reward.counts["raised"] == 2


# ---- runs ------------------------------------------------------------------------------------------------------------


@needs_sandbox
def test_the_pass_rate_of_a_toy_task_rises(tiny: Path, tmp_path: Path) -> None:
    """SFT teaches to answer with any digit; RLVR, with real tests in the real sandbox, to answer with a large one."""
    row = {"prompt": "def f():\n    return ", "entry_point": "f"}
    row |= {"test": "def check(candidate):\n    assert candidate() >= 5\n"}
    rows = write_rows(tmp_path / "digits.jsonl", [{**row, "completion": str(n % 10)} for n in range(40)])
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


def test_a_resumed_run_ends_the_same(tiny: Path, sums: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Stopped in the second epoch, whose order depends on the first; before the first checkpoint, with the results of
    before on disk: whether they are measured again must not change what is drawn. Rewards that raise are counted on."""

    def interrupt(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    changes = {"rewards": "tests.baselines.own_reward:length,bleu", "kl_coefficient": 0.1}
    changes |= {"max_new_tokens": 4, "generations": 4}
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
