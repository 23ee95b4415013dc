"""What runs say about themselves."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebft.config.training import EBFTConfig
from ebft.train.advice import (
    Advice,
    cross_entropy_rises,
    equal_completions,
    equal_rewards,
    only_warm_up,
    reward_does_not_move,
)
from tests.baselines.runs import needs_trl, run, write_recipe, write_rows

pytestmark = pytest.mark.usefixtures("offline")

EBFT: Any = SimpleNamespace(samples=4, temperature=0.6, horizon=8, learning_rate=1e-6, gamma=0.0)
TRL: Any = SimpleNamespace(learning_rate=1e-6)


def test_groups_of_equal_rewards() -> None:
    flat = {"frac_reward_zero_std": 1.0, "reward": 0.0}
    assert equal_rewards([flat] * 2, TRL) is None
    assert "easier prompts" in (equal_rewards([flat] * 3, TRL) or "")
    assert "harder prompts" in (equal_rewards([{**flat, "reward": 1.0}] * 3, TRL) or "")
    assert equal_rewards([flat, {"frac_reward_zero_std": 0.9}, flat, flat], TRL) is None


@pytest.mark.parametrize(
    ("settings", "steps", "words"),
    [
        ({}, 1, "warm-up takes the only step: the learning rate is 0 at first and 0 at last, never 1e-06"),
        (
            {"warmup_steps": 4, "learning_rate": 1e-3},
            3,
            "all 3 steps: the learning rate is 0 at first and 0.0005 at last",
        ),
        ({}, 2, None),
        ({"warmup_steps": 0}, 1, None),
        ({"lr_scheduler_type": "constant"}, 1, None),
    ],
    ids=str,
)
def test_nothing_but_warm_up(settings: dict[str, Any], steps: int, words: str | None) -> None:
    found = only_warm_up(EBFTConfig(output_dir="o", use_cpu=True, **settings), steps)
    assert (words or "") in (found or "")
    assert (found is None) == (words is None)


def test_equal_completions() -> None:
    assert "raise temperature (now 0.6)" in (equal_completions([{"ebft/distinct": 0.26}] * 3, EBFT) or "")
    assert equal_completions([{"ebft/distinct": 0.26}, {"ebft/distinct": 0.5}, {"ebft/distinct": 0.26}], EBFT) is None
    assert equal_completions([{"loss": 1.0}] * 9, TRL) is None


def test_a_reward_that_does_not_move() -> None:
    draw = random.Random(0)
    noise = [{"ebft/distinct": 1.0, "reward": 0.5 + draw.gauss(0, 0.1)} for _ in range(20)]
    rising = [{**entry, "reward": entry["reward"] + 0.05 * place} for place, entry in enumerate(noise)]
    falling = [{**entry, "reward": entry["reward"] - 0.05 * place} for place, entry in enumerate(noise)]
    assert reward_does_not_move(noise[:19], EBFT) is None
    assert reward_does_not_move(rising, EBFT) is None
    for entries in (falling, [{"ebft/distinct": 1.0, "reward": 0.5}] * 20):
        assert "raise learning_rate (now 1e-06)" in (reward_does_not_move(entries, EBFT) or "")
    without_features = [{"reward": entry["reward"]} for entry in falling]
    assert reward_does_not_move(without_features, TRL) is None


def test_cross_entropy_that_rises() -> None:
    def entries(*values: float) -> list[dict[str, Any]]:
        return [{"eval_cross_entropy": value, "eval_cross_entropy_se": 0.1} for value in values]

    assert cross_entropy_rises(entries(3.0), EBFT) is None
    assert cross_entropy_rises(entries(3.0, 3.15), EBFT) is None
    assert cross_entropy_rises(entries(3.0, 3.5, 2.9), EBFT) is None
    assert "from 3.000 to 3.250; raise gamma (now 0), or lower" in (cross_entropy_rises(entries(3.0, 3.25), EBFT) or "")
    assert "gamma" not in (cross_entropy_rises(entries(3.0, 3.25), TRL) or "gamma")


def test_each_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    advice, state = Advice(), SimpleNamespace(is_world_process_zero=True, global_step=7)
    for _ in range(10):
        advice.on_log(EBFT, state, None, {"ebft/distinct": 0.25})
    assert [message.partition(":")[0] for message in caplog.messages] == ["step 7"]
    other = SimpleNamespace(is_world_process_zero=False, global_step=7)
    Advice().on_log(EBFT, other, None, {"ebft/distinct": 0.25})
    assert len(caplog.messages) == 1


@needs_trl
def test_rlvr_says_that_nothing_is_learnt(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """References that no answer of a random model resembles: every BLEU is 0."""
    rows = [{"prompt": f"{n}?", "completion": "some words of a reference that nobody writes"} for n in range(12)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    settings = {"rewards": "bleu", "generations": 2, "gradient_accumulation_steps": 1, "max_new_tokens": 2}
    recipe = write_recipe(
        tmp_path, tiny, file, max_steps=3, save_strategy="no", eval_strategy="no", validation_split=0, **settings
    )
    assert run("rlvr", recipe, tmp_path / "out") == 0
    assert "all answers to a prompt get the same reward (wrong)" in capsys.readouterr().err


def test_ebft_says_that_completions_are_equal(
    tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=3, save_strategy="no", eval_strategy="no", validation_split=0)
    assert run("train", recipe, tmp_path / "out", "--temperature", 1e-4) == 0
    assert "nearly all completions of an anchor are equal" in capsys.readouterr().err
