"""What both baselines share: TRL's arguments, EBFT's measurement, divergence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("trl")
from ebft.baselines import sft, trl_trainers
from ebft.config.recipe import load_recipe
from ebft.errors import ConfigError, TrainingDiverged
from ebft.train.sequences import load
from tests.baselines.runs import metrics_of, results_of, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


def test_evaluation_without_validation_data(tiny: Path, sums: Path, tmp_path: Path) -> None:
    file = write_recipe(tmp_path, tiny, sums, validation_split=0, eval_strategy="no")
    recipe = load_recipe(file, {"output_dir": str(tmp_path / "out")}, "sft")
    trainer = sft.build(load(recipe))
    with pytest.raises(ConfigError, match="evaluation needs validation data"):
        trainer.evaluate()


CALIBRATION = {"context_length": 32, "horizon": 4, "stride": 8, "answer_only": False, "rollouts": 2, "sequences": 3}
CALIBRATION |= {"profile_lengths": [1, 4], "profile_stride": 8}


def test_the_best_checkpoint_by_validation(tiny: Path, sums: Path, tmp_path: Path) -> None:
    """A learning rate that is far too high at the end: the best one is not the last, and it is the one that is left."""
    tasks = {"eval_tasks": ["calibration"], "eval_task_options": {**CALIBRATION, "calibration_data": str(sums)}}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "cross_entropy"}
    recipe, output = write_recipe(tmp_path, tiny, sums, max_steps=8, **best, **tasks), tmp_path / "out"
    schedule = ["--learning_rate", "3e-2", "--warmup_steps", "8"]  # grows from step to step
    assert run("sft", recipe, output, *schedule) == 0
    assert any("eval_calibration_cfm_at_4" in entry for entry in metrics_of(output)), "tasks run in training"
    seen = {
        e["step"]: e["eval_cross_entropy"]
        for e in metrics_of(output)
        if "model_step" not in e and "eval_cross_entropy" in e
    }
    best = min((step for step in seen if step), key=lambda step: seen[step])
    assert results_of(output)["after"]["eval_cross_entropy"] == pytest.approx(seen[best], rel=1e-6)
    assert (output / f"checkpoint-{best}" / "COMPLETE").exists()


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_no_number_stops_the_run(
    broken: str, tiny: Path, sums: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    if broken == "loss":
        with torch.no_grad():
            model.lm_head.weight[0] = float("nan")
    else:
        model.lm_head.weight.register_hook(lambda gradient: gradient * float("nan"))
    file = write_recipe(tmp_path, tiny, sums, validation_split=0, eval_strategy="no", save_steps=1)
    loaded = load(load_recipe(file, {"output_dir": str(tmp_path / "out")}, "sft"))
    torch.backends.cuda.enable_cudnn_sdp(True)  # another test may have left it off
    trainer = sft.build(replace(loaded, model=model))
    with pytest.raises(TrainingDiverged, match=rf"the {broken}.* is nan at step 1; try a lower learning_rate"):
        trainer.train()
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_divergence_stops_before_a_checkpoint_though_nothing_is_logged_yet(
    tiny: Path, sums: Path, tmp_path: Path, capsys: Any
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, learning_rate=1e30, max_grad_norm=1e30, eval_strategy="no")
    assert run("sft", recipe, tmp_path / "out", "--logging_steps", 100, "--save_steps", 3) == 1
    assert "try a lower learning_rate" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_without_trl(tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(trl_trainers, "find_spec", lambda name: None)
    assert run("sft", write_recipe(tmp_path, tiny, sums), tmp_path / "out") == 2
    assert 'pip install ".[baselines]"' in capsys.readouterr().err


def test_nothing_is_reported_to_the_makers_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.utils import _telemetry

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    sent: list[Any] = []
    monkeypatch.setattr(_telemetry._TELEMETRY_QUEUE, "put", lambda *args, **kwargs: sent.append(args))
    monkeypatch.setattr(_telemetry, "_start_telemetry_thread", lambda: None)
    _telemetry.send_telemetry("test/before")
    assert sent  # so that the next line can fail
    sent.clear()
    trl_trainers.method("sft")
    _telemetry.send_telemetry("test/after")
    assert not sent
