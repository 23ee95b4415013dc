"""Rewards that are checked, and what goes wrong with them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
from sacrebleu import sentence_bleu

from ebft.baselines import rewards
from ebft.baselines.rewards import as_tests, make_rewards
from ebft.config.training import RLVRSettings
from ebft.errors import ConfigError, DataError, SandboxError
from ebft.runtime.messages import show_messages
from tests.sandbox.sandboxed import needs_sandbox

pytestmark = pytest.mark.usefixtures("offline")

MBPP = {
    "prompt": "Write a function that doubles a number.",
    "completion": "def double(x):\n    return 2 * x\n",
    "test_list": ["assert double(2) == 4", "assert double(-1) == -2"],
}
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


def test_ways_to_write_unit_tests() -> None:
    for value, expected in (
        ('["assert a", " ", "assert b"]', ["assert a", "assert b"]),
        ("['assert a']", ["assert a"]),
        ("assert a\nassert b", ["assert a\nassert b"]),
    ):
        assert as_tests(value) == expected


def test_names_and_tests_that_make_no_reward() -> None:
    for name, words in (
        ("blue", "is not unit_tests, bleu or module:function; did you mean 'bleu'"),
        ("no_such_module:f", "cannot be imported: ModuleNotFoundError"),
        ("math:pi", "is of the type float, not a function"),
    ):
        with pytest.raises(ConfigError, match=words):
            made(name)
    with pytest.raises(DataError, match="unit tests are of the type int"):
        as_tests(3)


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


@pytest.mark.usefixtures("own_module")
def test_a_function_that_raises_costs_that_answer_a_zero(tmp_path: Path, capsys: Any) -> None:
    show_messages()
    reward = made("own_reward:length")
    assert reward.score(["xyz", "abc", "", "a"], [{"bonus": 1}] * 4) == [4.0, 0.0, 1.0, 0.0]
    assert reward.counts["raised"] == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no a, please" in line
    (tmp_path / "own_exit.py").write_text("import sys\ndef leave(completion, row):\n    sys.exit(3)\n")
    assert made("own_exit:leave").score(["a", "b"], [{}] * 2) == [0.0, 0.0]
    reward = made("own_reward:nonsense")
    assert reward.score(["x", "y", "z"], [{}] * 3) == [0.0, 0.0, 2.0]
    assert reward.counts["raised"] == 2
