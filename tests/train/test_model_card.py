"""Curves and model card of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft.config.recipe import load_recipe
from ebft.train import model_card
from ebft.train.training_method import EBFT
from tests.baselines.runs import needs_trl, run, write_recipe

pytestmark = [pytest.mark.usefixtures("offline"), pytest.mark.pictures]


@needs_trl
def test_the_card_holds_its_picture(tiny: Path, sums: Path, tmp_path: Path) -> None:
    assert run("sft", write_recipe(tmp_path, tiny, sums, max_steps=1), tmp_path / "out") == 0
    final = tmp_path / "out" / "final"
    assert "![curves](curves.png)" in (final / "README.md").read_text()
    assert (final / "curves.png").read_bytes() == (tmp_path / "out" / "curves.png").read_bytes()
    assert model_card._header("base_model", ["Qwen/Qwen2.5-1.5B"]) == ["base_model: [Qwen/Qwen2.5-1.5B]"]
    assert model_card._header("datasets", ["a/b:c", str(sums), "stdlib-code"]) == ["datasets: [a/b]"]


def write_metrics(folder: Path, *entries: dict[str, Any]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_the_verdict_is_no_stronger_than_the_test_allows() -> None:
    change = {
        **{"eval_cross_entropy": -0.21, "eval_cross_entropy_se": 0.1},
        **{"eval_answer_cross_entropy": -0.19, "eval_answer_cross_entropy_se": 0.1},
        **{"eval_cfm": 0.3, "eval_cfm_se": 0.1},
        **{"eval_whitened_proxy": 0.3, "eval_whitened_proxy_se": 0.1},
    }

    def verdict(change: dict[str, Any], sequences: int) -> list[str]:
        return model_card.verdict({"change": change, "ruler": {"validation_sequences": sequences}})

    assert verdict(change, 24) == [
        "better by more than chance would explain (p < 0.05): cross-entropy, all tokens; whitened proxy",
        "worse by more than chance would explain (p < 0.05): feature-matching loss",
        "no evidence of a change: cross-entropy, answer tokens",
    ]
    few = verdict(change, 6)  # 2.57 standard errors are at the border, not 2
    assert few[-1] == "no evidence of a change: cross-entropy, all tokens; cross-entropy, answer tokens"
    assert verdict({"eval_cfm": 0.0, "eval_cfm_se": 0.0}, 6) == ["no evidence of a change: feature-matching loss"]
    assert verdict(change, 1) == verdict({"eval_cfm": -1.0, "eval_cfm_se": None}, 6) == []
    assert verdict({"eval_cfm": -1.0, "eval_cfm_se": math.nan}, 6) == []
    assert model_card.verdict({"after": {"eval_cfm": 1.0}}) == []


def test_before_and_after_of_what_was_measured() -> None:
    before = {"eval_cfm": 0.5, "eval_cfm_se": 0.25, "eval_cross_entropy": 2.0, "eval_cross_entropy_se": None}
    after = {"eval_cfm": 0.25, "eval_cfm_se": 0.125, "eval_cross_entropy": 1.0, "eval_runtime": 3.0}
    change = {"eval_cfm": -0.25, "eval_cfm_se": 0.03125, "eval_cross_entropy": 1.0, "eval_cross_entropy_se": None}
    assert model_card.before_and_after({"before": before, "after": after, "change": change}) == [
        ("cross-entropy, all tokens", "2.0000", "1.0000", "+1.0000"),
        ("feature-matching loss", "0.5000 ± 0.2500", "0.2500 ± 0.1250", "-0.2500 ± 0.0312"),
    ]
    assert model_card.before_and_after({"after": after})[0] == ("cross-entropy, all tokens", "", "1.0000", "")
    assert model_card.before_and_after({"steps": 3}) == []


def test_curves_need_something_to_draw(tmp_path: Path) -> None:
    assert model_card.curves(tmp_path) is None
    write_metrics(tmp_path, {"step": 1, "learning_rate": 1.0}, {"step": 2, "reward": None})
    assert model_card.curves(tmp_path) is None
    write_metrics(tmp_path, {"step": 0, "eval_cfm": 1.0, "eval_cfm_se": 0.1}, {"step": 1, "reward": 0.5})
    assert model_card.curves(tmp_path) == tmp_path / "curves.png"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    settings = {"model": "some/base", "dataset": ["a/b:c", "rows.jsonl"], "output_dir": str(tmp_path), "use_cpu": True}
    recipe = load_recipe(None, {**settings, "horizon": 5, "seed": 17, "prompt_separator": "\\n", "answer_only": True})
    results = {"after": {"eval_cfm": 0.25, "eval_cfm_se": 0.125}, "change": {"eval_cfm": -0.25}, "steps": 42}
    file = model_card.write(tmp_path, "a title", recipe, results, EBFT)
    text = file.read_text(encoding="utf-8")
    assert file == tmp_path / "README.md"
    assert "# a title" in text
    header = yaml.safe_load(text.split("---")[1])
    assert header["library_name"] == "transformers"
    assert (header["base_model"], header["datasets"]) == (["some/base"], ["a/b"])
    assert "`ebft train --config recipe.yaml`" in text
    shown = load_recipe(None, yaml.safe_load(text.partition("```yaml")[2].partition("```")[0]))
    assert shown == recipe, "its settings make the same run"
    assert "| feature-matching loss |  | 0.2500 ± 0.1250 | -0.2500 |" in text
    assert "42 steps of 16 sequences of 1024 tokens; rollouts of 5 tokens" in text
    assert "seed 17." in text


@pytest.mark.parametrize(
    ("values", "errors", "share", "low", "high"),
    [
        ([0.5, 0.7], [0, 0], True, -0.02, 1.02),
        ([3.0, 3.03], [0, 0], False, 2.18175, 3.84825),  # a percent fills a small part: 3.03 / 2 around the middle
        ([1.0, 3.0], [0, 0], False, 0.9, 3.1),
        ([1.0, 3.0], [0.5, 0.5], False, 0.35, 3.65),  # the band fits
        ([0.1, 3.0], [0, 0], False, 0.0, 3.145),  # never below 0 for what is not
        ([-1.0, 3.0], [0, 0], False, -1.2, 3.2),
        ([0.0, 0.0], [0, 0], False, 0.0, 0.55),
    ],
)
def test_axes_do_not_make_a_trend_of_noise(
    values: list[float], errors: list[float], share: bool, low: float, high: float
) -> None:
    assert model_card.vertical_range(values, errors, share) == pytest.approx((low, high), abs=1e-9)


def test_few_points_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    titles: list[str] = []
    monkeypatch.setattr(Axes, "set_title", lambda self, label, **_: titles.append(label))
    write_metrics(
        tmp_path, *({"step": n, "reward": 0.5, "grad_norm": 1.0} for n in range(1, 6)), {"step": 0, "eval_cfm": 1.0}
    )
    model_card.curves(tmp_path)
    assert titles == ["feature-matching loss (validation) (only 1 point)", "reward", "gradient norm"]
