"""What happens beside training: the metrics file, the best checkpoint, tasks, stopping."""

from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ebft import EBFTTrainer
from tests.baselines.runs import ROWS, metrics_of, results_of, run, write_recipe, write_rows
from tests.models import tiny_model
from tests.tiny_tokenizer import END, VOCABULARY, byte_tokenizer
from tests.train.small_runs import config, counting_text, small_model

pytestmark = pytest.mark.usefixtures("offline")


def test_the_best_checkpoint_is_the_best(tmp_path: Path) -> None:
    """Of the proxy a larger one is better; and the best one survives the limit."""
    steps = dict(max_steps=6, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    best_one = dict(save_total_limit=1, load_best_model_at_end=True, metric_for_best_model="whitened_proxy")
    args, name = config(tmp_path, learning_rate=3e-3, **steps, **best_one), "eval_whitened_proxy"
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    trainer.train()
    seen = {e["step"]: e[name] for e in trainer.state.log_history if name in e}
    best = max(seen, key=lambda step: seen[step])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert (tmp_path / f"checkpoint-{best}" / "COMPLETE").exists()
    assert trainer.evaluate()[name] == pytest.approx(seen[best], rel=1e-5)
    assert [entry.get("model_step") for entry in metrics_of(tmp_path) if name in entry] == [None] * len(seen) + [best]
    assert results_of(tmp_path)["after"][name] == pytest.approx(seen[best], rel=1e-5)


def test_the_limit_spares_the_best_checkpoint_and_those_at_powers_of_two(tmp_path: Path) -> None:
    trainer = EBFTTrainer(small_model(), config(tmp_path, save_total_limit=1, save_log_spaced=True), counting_text())
    trainer.on_train_begin()
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-3")
    for trainer.state.global_step in range(2, 8):
        trainer.checkpoint.mkdir()
        trainer.on_save()
    assert sorted(p.name for p in tmp_path.glob("*/")) == [f"checkpoint-{step}" for step in (2, 3, 4, 7)]


@pytest.mark.parametrize(
    ("values", "greater", "threshold", "since"),
    [
        ([3.0, 2.0, 2.0, 2.5], False, 0.0, 2),
        ([3.0, 2.0, 2.0, 2.5], True, 0.0, 3),
        ([3.0, 2.9, 2.8], False, 0.5, 2),
        ([3.0, 2.8, 2.4], False, 0.5, 0),  # better than the best by more than the threshold, in two evaluations
        ([1.0, float("nan"), float("nan")], False, 0.0, 2),
    ],
)
def test_the_log_is_enough_to_stop_early(values: list[float], greater: bool, threshold: float, since: int) -> None:
    log = [{"loss": 1.0}, *({"eval_cfm": value} for value in values)]
    for patience, stops in ((since, since > 0), (since + 1, False)):
        stopping = {"early_stopping_patience": max(patience, 1), "early_stopping_threshold": threshold}
        args = config(Path("out"), eval_strategy="steps", greater_is_better=greater, **stopping)
        trainer: Any = Mock(args=args, settings=args, state=Mock(log_history=log), control=Mock(spec=[]))
        EBFTTrainer._stop_early(trainer)
        assert hasattr(trainer.control, "should_training_stop") == stops


def test_a_run_stops_early_and_a_resumed_one_counts_on(tiny: Path, sums: Path, tmp_path: Path) -> None:
    """Nothing is ever better by a million, so it stops at the third evaluation, killed after the second or not."""
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=8, eval_steps=1, save_steps=1)
    stopping = ["--early_stopping_patience", 2, "--early-stopping-threshold", 1e6]
    assert run("train", recipe, tmp_path / "out", *stopping, "--max_steps", 2) == 0
    assert run("train", recipe, tmp_path / "out", *stopping, "--resume") == 0
    assert results_of(tmp_path / "out")["steps"] == 3


class TestTasks:
    @pytest.fixture
    def options(self, tmp_path: Path) -> dict[str, Any]:
        pairs = write_rows(tmp_path / "pairs.jsonl", [{"de": f"Haus {n}", "en": f"house {n}"} for n in range(3)])
        rows = write_rows(tmp_path / "rows.jsonl", ROWS)
        translation = {"translation_data": str(pairs), "source_field": "de", "target_field": "en", "samples": 2}
        anchors = {"context_length": 32, "horizon": 4, "stride": 4, "answer_only": False}
        more = {"rollouts": 2, "sequences": 100, "profile_lengths": [1, 4], "profile_stride": 8, "max_new_tokens": 4}
        return {**translation, **anchors, **more, "calibration_data": str(rows)}

    def trainer(self, output: Path, **changes: Any) -> EBFTTrainer:
        torch.manual_seed(0)
        # Gradient checkpointing turns the model's cache off.
        changes |= dict(samples=2, per_device_train_batch_size=2, gradient_checkpointing=True)
        model = tiny_model("llama", vocab_size=VOCABULARY, num_hidden_layers=2)
        return EBFTTrainer(model, config(output, **changes), ROWS, ROWS[:6], byte_tokenizer(pad=END))

    def test_every_k_steps_without_changing_the_training(self, options: dict[str, Any], tmp_path: Path) -> None:
        tasks = dict(eval_tasks=["translation", "calibration"], eval_tasks_every=2, eval_task_options=options)
        with_tasks, without = self.trainer(tmp_path / "with", **tasks), self.trainer(tmp_path / "without")
        with_tasks.train()
        without.train()
        for (name, mine), theirs in zip(with_tasks.model.named_parameters(), without.model.parameters(), strict=True):
            assert torch.equal(mine, theirs), name
        entries = [entry for entry in metrics_of(tmp_path / "with") if "eval_translation_greedy_chrf" in entry]
        assert [entry["step"] for entry in entries] == [2, 4]
        for name in ("translation_greedy_bleu", "translation_best_of_1_sentence_chrf", "calibration_cfm_at_4"):
            assert isinstance(entries[0][f"eval_{name}"], float)
            assert entries[0][f"eval_{name}_se"] >= 0
        assert entries[0]["eval_calibration_cross_entropy"] != entries[1]["eval_calibration_cross_entropy"]
        made = tmp_path / "with" / "eval_tasks" / "step-000002" / "translation.samples.jsonl"
        assert len(made.read_text().splitlines()) == 6

    def test_at_every_evaluation_and_for_the_best_checkpoint(self, options: dict[str, Any], tmp_path: Path) -> None:
        """And calibration of the same rows, anchors and seed is what the trainer's own evaluation says."""
        metric = "translation_greedy_chrf"
        steps = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
        best = dict(load_best_model_at_end=True, metric_for_best_model=metric)
        tasks = dict(eval_tasks=["translation", "calibration"], eval_task_options={**options, "seed": 0})
        trained = self.trainer(tmp_path / "out", **steps, **best, **tasks)
        metrics = trained.evaluate(ROWS)
        for name, ending in product(("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy"), ("", "_se")):
            mine, theirs = metrics[f"eval_calibration_{name}{ending}"], metrics[f"eval_{name}{ending}"]
            assert mine == pytest.approx(theirs, rel=1e-4), name
        trained.train()
        found = {e["step"]: e[f"eval_{metric}"] for e in metrics_of(tmp_path / "out") if f"eval_{metric}" in e}
        assert list(found) == [0, 2, 4]
        assert trained.state.best_metric == max(found[2], found[4])
