"""What happens beside training: the metrics file, checkpoints, tasks, progress, stopping."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ebft import EBFTConfig, EBFTTrainer
from ebft.config.recipe import load_recipe
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.row_format import Document
from ebft.data.store import TokenStore
from ebft.errors import ConfigError, DataError, TrainingDiverged
from ebft.runtime import messages
from ebft.train.callbacks import EarlyStopping, MetricsFile, Progress
from tests.baselines.runs import ROWS, metrics_of, results_of, run, write_recipe
from tests.config.recipes import load
from tests.models import tiny_model
from tests.tiny_tokenizer import END, VOCABULARY, byte_tokenizer
from tests.train.small_runs import T, config, counting_text, small_model

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("metric", ["cfm", "whitened_proxy"])
def test_the_best_checkpoint_is_the_best(tmp_path: Path, metric: str) -> None:
    """Smaller is better but for the proxy and the reward, and the best one survives the limit."""
    steps = dict(max_steps=6, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    best_one = dict(save_total_limit=1, load_best_model_at_end=True, metric_for_best_model=metric)
    args = config(tmp_path, learning_rate=3e-3, **steps, **best_one)
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    trainer.train()
    seen = {e["step"]: e[f"eval_{metric}"] for e in trainer.state.log_history if f"eval_{metric}" in e}
    best = (max if metric == "whitened_proxy" else min)(seen, key=lambda step: seen[step])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert (tmp_path / f"checkpoint-{best}" / "COMPLETE").exists()
    assert trainer.evaluate()[f"eval_{metric}"] == pytest.approx(seen[best], rel=1e-5)
    logged = [entry.get("model_step") for entry in metrics_of(tmp_path) if f"eval_{metric}" in entry]
    assert logged == [None] * len(seen) + [best]
    assert results_of(tmp_path)["after"][f"eval_{metric}"] == pytest.approx(seen[best], rel=1e-5)


def state(step: int, first: bool = True, max_steps: int = 9) -> Any:
    return SimpleNamespace(global_step=step, is_world_process_zero=first, max_steps=max_steps)


def test_the_metrics_file_drops_what_lies_behind_the_checkpoint(tmp_path: Path) -> None:
    args: Any = config(tmp_path)
    callback, control = MetricsFile(str(tmp_path)), Any
    callback.on_train_begin(args, state(0), control)  # nothing there yet
    for step in range(1, 5):
        callback.on_log(args, state(step), control, logs={"reward": float(step), "eval_cfm_se": float("nan")})
    callback.on_log(args, state(4, first=False), control, logs={"reward": 9.0})
    assert [entry["step"] for entry in metrics_of(tmp_path)] == [1, 2, 3, 4]
    with (tmp_path / "metrics.jsonl").open("a") as cut_off:
        cut_off.write('{"step": 4, "rew')
    callback.on_train_begin(args, state(2), control)
    assert metrics_of(tmp_path) == [{"step": step, "reward": float(step), "eval_cfm_se": None} for step in (1, 2)]


def test_a_run_of_warm_up_alone_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for changes, said in ({"warmup_steps": 9}, True), ({"warmup_steps": 8}, False):
        caplog.clear()
        MetricsFile(str(tmp_path)).on_train_begin(config(tmp_path, **changes), state(0), Any)
        assert ("warm-up takes all 9 steps" in caplog.text) == said


@pytest.mark.parametrize(("logging_steps", "logged"), [(10, [3]), (2, [2, 3])])
def test_the_last_step_is_logged(logging_steps: int, logged: list[int], tmp_path: Path) -> None:
    EBFTTrainer(small_model(), config(tmp_path, max_steps=3, logging_steps=logging_steps), counting_text()).train()
    assert [entry["step"] for entry in metrics_of(tmp_path) if "reward" in entry] == logged


def test_an_error_in_the_validation_data_names_them(tmp_path: Path) -> None:
    """Its one document is shorter than a truth of 4 tokens."""
    short = SequenceDataset(DocumentIndex.of(TokenStore.from_documents([Document([1, 2, 3], [True] * 3)])), T)
    with pytest.raises(DataError, match=r"^the validation data: no rollout can begin in the data: the longest"):
        EBFTTrainer(small_model(), config(tmp_path), counting_text(), short)


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_a_gradient_that_is_no_number_stops_the_run_before_its_step(tmp_path: Path, max_grad_norm: float) -> None:
    """The loss is a number at this step, so only the gradient tells."""
    trainer = EBFTTrainer(small_model(), config(tmp_path, max_grad_norm=max_grad_norm), counting_text())
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.model.lm_head.weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(TrainingDiverged, match="the gradient's norm is nan at step 1; try a lower learning_rate"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_no_evaluation_of_a_model_that_has_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU numbers arrive late: an evaluation waits for them."""
    trainer = EBFTTrainer(small_model(), config(tmp_path), counting_text(), eval_dataset=counting_text())
    waited: list[bool] = []
    monkeypatch.setattr(trainer.deferred_checks, "run", lambda wait=False: waited.append(wait))
    trainer.evaluate()
    assert waited[0] is True


class TestEarlyStopping:
    @pytest.mark.parametrize(
        ("values", "greater", "threshold", "since"),
        [
            ([3.0], False, 0.0, 0),
            ([3.0, 2.0, 1.0], False, 0.0, 0),
            ([3.0, 2.0, 2.0, 2.5], False, 0.0, 2),
            ([3.0, 2.0, 2.0, 2.5], True, 0.0, 3),
            ([3.0, 2.9, 2.8], False, 0.5, 2),
            ([3.0, 2.8, 2.4], False, 0.5, 0),  # better than the best by more than the threshold, in two evaluations
            ([1.0, float("nan"), float("nan")], False, 0.0, 2),
        ],
    )
    def test_the_log_of_a_checkpoint_is_enough(
        self, values: list[float], greater: bool, threshold: float, since: int
    ) -> None:
        """A resumed run has a new callback, and the log of the run before."""
        args: Any = SimpleNamespace(metric_for_best_model="cfm", greater_is_better=greater)
        found = SimpleNamespace(log_history=[{"loss": 1.0}, *({"eval_cfm": v} for v in values)], **vars(state(3)))
        for patience, stops in ((since, since > 0), (since + 1, False)):
            control: Any = SimpleNamespace(should_training_stop=False)
            EarlyStopping(max(patience, 1), threshold).on_evaluate(args, found, control)
            assert control.should_training_stop == stops

    def test_a_run_stops_and_a_resumed_one_counts_on(self, tiny: Path, sums: Path, tmp_path: Path) -> None:
        """Nothing is ever better by a million, so it stops at the third evaluation, killed after the second or not."""
        recipe = write_recipe(tmp_path, tiny, sums, max_steps=8, eval_steps=1, save_steps=1)
        stopping = ["--early_stopping_patience", 2, "--early-stopping-threshold", 1e6]
        assert run("train", recipe, tmp_path / "out", *stopping, "--max_steps", 2) == 0
        assert run("train", recipe, tmp_path / "out", *stopping, "--resume") == 0
        assert results_of(tmp_path / "out")["steps"] == 3

    def test_it_needs_evaluations(self) -> None:
        with pytest.raises(ConfigError, match="needs evaluations; set eval_strategy=steps"):
            load(early_stopping_patience=2)


class TestProgress:
    SHOWN = {"reward": "reward", "ebft/cfm": "cfm"}  # noqa: RUF012

    def test_a_line_for_every_entry_and_how_far_it_is(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(messages, "SECONDS", 0.0)
        caplog.set_level(logging.INFO, "ebft")
        callback = Progress(self.SHOWN, bar=True)
        callback.on_train_begin(None, state(40, max_steps=50), None)
        callback.on_step_end(None, state(41), None)
        callback.on_log(None, state(41), None, logs={"reward": 1.0, "loss": 2.0})
        callback.on_log(None, state(41), None, logs={"eval_cfm": 0.5, "eval_cfm_se": 0.1, "eval_runtime": 3.0})
        callback.on_log(None, state(41, first=False), None, logs={"reward": 1.0})
        callback.on_log(None, state(41), None, logs={"learning_rate": 1.0})
        callback.on_train_end(None, state(41), None)
        said = [line for line in caplog.messages if not line.startswith("training")]
        assert said == ["step 41: reward 1", "step 41: cfm 0.5"]
        assert any(line.startswith("training: 41 of 50 [") for line in caplog.messages)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    pairs, rows = tmp_path / "pairs.jsonl", tmp_path / "rows.jsonl"
    pairs.write_text("".join(json.dumps({"de": f"Haus {n}", "en": f"house {n}"}) + "\n" for n in range(3)))
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    translation = {"translation_data": str(pairs), "source_field": "de", "target_field": "en", "samples": 2}
    anchors = {"context_length": 32, "horizon": 4, "stride": 4, "answer_only": False}
    more = {"rollouts": 2, "sequences": 100, "profile_lengths": [1, 4], "profile_stride": 8, "max_new_tokens": 4}
    return {**translation, **anchors, **more, "calibration_data": str(rows)}


class TestTasks:
    def trainer(self, output: Path, **changes: Any) -> EBFTTrainer:
        torch.manual_seed(0)
        settings: dict[str, Any] = dict(
            samples=2,
            per_device_train_batch_size=2,
            gradient_checkpointing=True,  # which turns the model's cache off
        )
        model = tiny_model("llama", vocab_size=VOCABULARY, num_hidden_layers=2)
        args: EBFTConfig = config(output, **{**settings, **changes})
        return EBFTTrainer(model, args, ROWS, ROWS[:6], byte_tokenizer(pad=END))

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
        assert entries[0]["eval_calibration_runtime"] > 0
        assert entries[0]["eval_calibration_cross_entropy"] != entries[1]["eval_calibration_cross_entropy"]
        made = tmp_path / "with" / "eval_tasks" / "step-000002" / "translation.samples.jsonl"
        assert len(made.read_text().splitlines()) == 6

    def test_calibration_is_what_the_trainers_own_evaluation_says(
        self, options: dict[str, Any], tmp_path: Path
    ) -> None:
        """The same rows, anchors and seed through both ways."""
        same = {**options, "seed": 0}
        trained = self.trainer(tmp_path / "out", eval_tasks=["calibration"], eval_task_options=same, max_steps=1)
        metrics = trained.evaluate(ROWS)
        for name in ("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy"):
            for ending in ("", "_se"):
                mine, theirs = metrics[f"eval_calibration_{name}{ending}"], metrics[f"eval_{name}{ending}"]
                assert mine == pytest.approx(theirs, rel=1e-4), name

    def test_at_every_evaluation_and_for_the_best_checkpoint(self, options: dict[str, Any], tmp_path: Path) -> None:
        metric = "translation_greedy_chrf"
        steps = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
        best = dict(load_best_model_at_end=True, metric_for_best_model=metric)
        tasks = dict(eval_tasks=["translation"], eval_task_options=options)
        trained = self.trainer(tmp_path / "out", **steps, **best, **tasks)
        trained.train()
        found = {e["step"]: e[f"eval_{metric}"] for e in metrics_of(tmp_path / "out") if f"eval_{metric}" in e}
        assert list(found) == [2, 4]
        assert trained.state.best_metric == max(found.values())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"eval_tasks": ["translatio"]}, "eval_tasks.*'translatio'.*did you mean 'translation'"),
            ({"eval_task_options": {"limitt": 3}}, "unknown option 'limitt' of an evaluation; did you mean 'limit'"),
            ({"eval_task_options": {}}, "the task translation needs --translation-data"),
        ],
    )
    def test_mistakes_show_before_the_first_step(self, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=message):
            self.trainer(tmp_path / "out", **{"eval_tasks": ["translation"], **changes})

    def test_in_a_recipe(self, tmp_path: Path) -> None:
        file = tmp_path / "recipe.yaml"
        file.write_text("model: m\ndataset: d\neval_tasks: [humaneval]\neval_task_options: {limit: 3, samples: 0}\n")
        config = load_recipe(file, {"output_dir": str(tmp_path), "use_cpu": True, "eval_tasks_every": "5"}).training
        assert (config.eval_tasks, config.eval_tasks_every) == (["humaneval"], 5)
        assert config.eval_task_options == {"limit": 3, "samples": 0}
