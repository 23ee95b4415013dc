"""What happens beside training: the metrics file, checkpoints, the moving average, samples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebft import EBFTTrainer
from ebft.data.formats import Document
from ebft.data.packing import DocumentIndex, SequenceDataset
from ebft.data.store import TokenStore
from ebft.errors import DataError
from ebft.train.callbacks import MetricsFile
from tests.train.small_runs import T, config, counting_text, small_model


@pytest.mark.parametrize("metric", ["cfm", "whitened_proxy"])
def test_the_best_checkpoint_is_the_best(tmp_path: Path, metric: str) -> None:
    """Smaller is better but for the proxy and the reward, and the best one survives the limit."""
    args = config(
        tmp_path,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=metric,
        learning_rate=3e-3,
    )
    trainer = EBFTTrainer(small_model(), args, counting_text(), counting_text(documents=8, seed=1))
    trainer.train()
    seen = {e["step"]: e[f"eval_{metric}"] for e in trainer.state.log_history if f"eval_{metric}" in e}
    best = (max if metric == "whitened_proxy" else min)(seen, key=lambda step: seen[step])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert (tmp_path / f"checkpoint-{best}" / "COMPLETE").exists()
    assert trainer.evaluate()[f"eval_{metric}"] == pytest.approx(seen[best], rel=1e-5)
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [entry.get("model_step") for entry in logged if f"eval_{metric}" in entry] == [None] * len(seen) + [best]


@dataclass
class State:
    global_step: int
    is_world_process_zero: bool = True


def test_the_metrics_file_drops_what_lies_behind_the_checkpoint(tmp_path: Path) -> None:
    args, callback = SimpleNamespace(output_dir=str(tmp_path)), MetricsFile()
    callback.on_train_begin(args, State(0), None)  # nothing there yet
    for step in range(1, 5):
        callback.on_log(args, State(step), None, logs={"reward": float(step), "eval_cfm_se": float("nan")})
    callback.on_log(args, State(4, is_world_process_zero=False), None, logs={"reward": 9.0})
    file = tmp_path / "metrics.jsonl"
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2, 3, 4]
    with file.open("a") as cut_off:
        cut_off.write('{"step": 4, "rew')
    callback.on_train_begin(args, State(2), None)
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept == [{"step": step, "reward": float(step), "eval_cfm_se": None} for step in (1, 2)]


@pytest.mark.parametrize(("logging_steps", "logged"), [(10, [3]), (2, [2, 3]), (3, [3])])
def test_the_last_step_is_logged(logging_steps: int, logged: list[int], tmp_path: Path) -> None:
    args = config(tmp_path, max_steps=3, logging_steps=logging_steps)
    EBFTTrainer(small_model(), args, counting_text()).train()
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "reward" in entry] == logged


def test_an_error_in_the_validation_data_names_them(tmp_path: Path) -> None:
    """Its one document is shorter than a truth of 4 tokens."""
    short = SequenceDataset(DocumentIndex.of(TokenStore.from_documents([Document([1, 2, 3], [True] * 3)])), T)
    with pytest.raises(DataError, match=r"^the validation data: no rollout can begin in the data: the longest"):
        EBFTTrainer(small_model(), config(tmp_path), counting_text(), short)
