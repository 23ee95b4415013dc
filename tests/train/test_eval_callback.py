"""Tasks of `ebft eval` while training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft import EBFTConfig, EBFTTrainer
from ebft.config.recipe import load_recipe
from ebft.errors import ConfigError
from tests.models import tiny_model
from tests.tiny_tokenizer import END, VOCABULARY, byte_tokenizer

ROWS = [{"prompt": f"{a}+{b}=", "completion": f"{a + b}, that is all"} for a in range(5) for b in range(5)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    pairs, rows = tmp_path / "pairs.jsonl", tmp_path / "rows.jsonl"
    pairs.write_text("".join(json.dumps({"de": f"Haus {n}", "en": f"house {n}"}) + "\n" for n in range(3)))
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {
        "translation_data": str(pairs),
        "source_field": "de",
        "target_field": "en",
        "samples": 2,
        "max_new_tokens": 4,
        "calibration_data": str(rows),
        "context_length": 32,
        "horizon": 4,
        "stride": 8,
        "rollouts": 2,
        "sequences": 3,
        "profile_lengths": [1, 4],
        "profile_stride": 8,
    }


def trainer(output: Path, **changes: Any) -> EBFTTrainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = dict(
        output_dir=str(output),
        use_cpu=True,
        context_length=32,
        horizon=4,
        stride=4,
        samples=2,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        warmup_steps=0,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        samples_every=0,
        gradient_checkpointing=True,  # which turns the model's cache off
    )
    model = tiny_model("llama", vocab_size=VOCABULARY, num_hidden_layers=2)
    config = EBFTConfig(**{**settings, **changes})
    return EBFTTrainer(model, config, ROWS, ROWS[:6], byte_tokenizer(pad=END))


def logged(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_every_k_steps_without_changing_the_training(options: dict[str, Any], tmp_path: Path) -> None:
    with_tasks = trainer(
        tmp_path / "with", eval_tasks=["translation", "calibration"], eval_tasks_every=2, eval_task_options=options
    )
    with_tasks.train()
    without = trainer(tmp_path / "without")
    without.train()
    for (name, mine), theirs in zip(with_tasks.model.named_parameters(), without.model.parameters(), strict=True):
        assert torch.equal(mine, theirs), name

    entries = [entry for entry in logged(tmp_path / "with") if "eval_translation_greedy_chrf" in entry]
    assert [entry["step"] for entry in entries] == [2, 4]
    for entry in entries:
        for name in (
            "translation_greedy_bleu",
            "translation_best_of_1_sentence_chrf",
            "calibration_cfm",
            "calibration_cross_entropy",
            "calibration_cfm_at_4",
        ):
            assert isinstance(entry[f"eval_{name}"], float)
            assert entry[f"eval_{name}_se"] >= 0
        assert entry["eval_calibration_runtime"] > 0
    assert entries[0]["eval_calibration_cross_entropy"] != entries[1]["eval_calibration_cross_entropy"]
    made = tmp_path / "with" / "eval_tasks" / "step-000002" / "translation.samples.jsonl"
    assert len(made.read_text().splitlines()) == 6


def test_calibration_is_what_the_trainers_own_evaluation_says(options: dict[str, Any], tmp_path: Path) -> None:
    """The same rows, anchors and seed through both ways."""
    same = {**options, "stride": 4, "sequences": 100, "seed": 0}
    trained = trainer(tmp_path / "out", eval_tasks=["calibration"], eval_task_options=same, max_steps=1)
    metrics = trained.evaluate(ROWS)
    for name in ("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy"):
        for ending in ("", "_se"):
            mine, theirs = metrics[f"eval_calibration_{name}{ending}"], metrics[f"eval_{name}{ending}"]
            assert mine == pytest.approx(theirs, rel=1e-4), name


def test_at_every_evaluation_and_for_the_best_checkpoint(options: dict[str, Any], tmp_path: Path) -> None:
    trained = trainer(
        tmp_path / "out",
        eval_tasks=["translation"],
        eval_task_options=options,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="translation_greedy_chrf",
    )
    trained.train()
    found = {
        e["step"]: e["eval_translation_greedy_chrf"]
        for e in logged(tmp_path / "out")
        if "eval_translation_greedy_chrf" in e
    }
    assert list(found) == [2, 4]
    assert trained.state.best_metric == max(found.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"eval_tasks": ["translatio"]},
            "unknown task 'translatio' in eval_tasks; there is .*; did you mean 'translation'",
        ),
        ({"eval_tasks_every": 0}, "eval_tasks_every=0 must be at least 1"),
        ({"eval_task_options": {"limitt": 3}}, "unknown option 'limitt' of an evaluation; did you mean 'limit'"),
        ({"eval_task_options": {"model": "x"}}, "eval_task_options holds 'model', which training decides itself"),
        ({"eval_task_options": {}}, "the task translation needs --translation-data"),
        (
            {"eval_task_options": {"translation_data": "gone.jsonl", "source_field": "de", "target_field": "en"}},
            "no such",
        ),
    ],
)
def test_mistakes_show_before_the_first_step(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path / "out", **{"eval_tasks": ["translation"], **changes})


def test_in_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("model: m\ndataset: d\neval_tasks: [humaneval]\neval_task_options: {limit: 3, samples: 0}\n")
    config = load_recipe(file, {"output_dir": str(tmp_path), "use_cpu": True, "eval_tasks_every": "5"}).training
    assert (config.eval_tasks, config.eval_tasks_every) == (["humaneval"], 5)
    assert config.eval_task_options == {"limit": 3, "samples": 0}
    with pytest.raises(ConfigError, match="eval_task_options='limit' is not a mapping"):
        load_recipe(file, {"output_dir": str(tmp_path), "use_cpu": True, "eval_task_options": "limit"})
