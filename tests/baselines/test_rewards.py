"""Rewards that are checked, and what goes wrong with them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
from ebft.baselines.rewards import as_tests, make_rewards
from ebft.config.training import RLVRSettings
from ebft.errors import ConfigError
from ebft.runtime.messages import show_messages
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
        # The same answer to another problem is another matter.
        square = {**MBPP, "test_list": ["assert double(3) == 9"]}
        assert reward.score([GOOD, GOOD, WRONG], [MBPP, square, square]) == [1.0, 0.0, 1.0]

    def test_an_answer_that_hangs_costs_itself_a_zero(self, tmp_path: Path) -> None:
        (reward,) = made(tmp_path, "unit_tests", reward_timeout=1.0)
        hanging = "def double(x):\n    while True:\n        pass\n"
        assert reward.score([hanging, GOOD, hanging], [MBPP] * 3) == [0.0, 1.0, 0.0]
        assert (reward.counts["timeouts"], reward.counts["programs"]) == (1, 2)

    def test_rows_without_tests_are_told_before_training(self, tmp_path: Path) -> None:
        (reward,) = made(tmp_path, "unit_tests")
        assert reward.unusable(MBPP, "row 1") is None
        assert "Name yours with tests_column" in reward.unusable({"prompt": "x"}, "row 2")
        assert reward.unusable({**MBPP, "test_list": []}, "row 3"), "without tests everything would pass"


def test_without_a_sandbox_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"bubblewrap.*unsafe_exec=true"):
        made(tmp_path, "unit_tests")


def test_ways_to_write_unit_tests() -> None:
    for value, expected in (
        ('["assert a", " ", "assert b"]', ["assert a", "assert b"]),
        ("['assert a']", ["assert a"]),
        ("assert a\nassert b", ["assert a\nassert b"]),
    ):
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


@pytest.mark.usefixtures("own_module")
class TestOwn:
    def test_a_function_that_raises_costs_that_answer_a_zero(self, tmp_path: Path, capsys: Any) -> None:
        show_messages()
        (reward,) = made(tmp_path, "own_reward:length")
        assert reward.score(["xyz", "abc", "", "a"], [{"bonus": 1}] * 4) == [4.0, 0.0, 1.0, 0.0]
        assert reward.counts["raised"] == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "no a, please" in line
        (tmp_path / "own_exit.py").write_text("import sys\ndef leave(completion, row):\n    sys.exit(3)\n")
        (reward,) = made(tmp_path, "own_exit:leave")
        assert reward.score(["a", "b"], [{}] * 2) == [0.0, 0.0]
        (reward,) = made(tmp_path, "own_reward:nonsense")
        assert reward.score(["x", "y", "z"], [{}] * 3) == [0.0, 0.0, 2.0]
        assert reward.counts["raised"] == 2
