"""Runs of `EBFTTrainer` in a program leave what `ebft compare` needs, as those of `ebft train` do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft import EBFTConfig, EBFTTrainer
from ebft.studies import compare
from ebft.studies.runs import read_run
from tests.baselines.runs import ROWS

pytestmark = pytest.mark.usefixtures("offline")
SETTINGS = {
    "context_length": 32,
    "answer_only": False,
    "horizon": 4,
    "stride": 4,
    "samples": 2,
    "max_steps": 2,
    "use_cpu": True,
}


def trainer(model: Path, output: Path, **settings: Any) -> EBFTTrainer:
    return EBFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        args=EBFTConfig(output_dir=str(output), report_to=[], **{**SETTINGS, **settings}),
        train_dataset=ROWS[8:],
        eval_dataset=ROWS[:8],
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def test_two_runs_compare_in_pairs(tiny: Path, tmp_path: Path) -> None:
    for name, rate in (("one", 1e-3), ("two", 1e-2)):
        run = trainer(tiny, tmp_path / name, learning_rate=rate)
        before = run.evaluate()
        run.train()
        after = run.evaluate()
        results = json.loads((tmp_path / name / "results.json").read_text())
        assert (results["method"], results["steps"]) == ("ebft", 2)
        change = results["change"]["eval_cfm"]
        assert change == pytest.approx(after["eval_cfm"] - before["eval_cfm"], rel=1e-4)
    found = compare.compare([str(tmp_path / "one"), str(tmp_path / "two")], str(tmp_path / "out"))
    assert found.notes == []
    assert ("paired difference", "last - last of one") in [(row[2], row[4]) for row in found.table]
    assert [row[2] for row in found.table if row[0] in ("one", "two")][-2:] == ["finished", "finished"]
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "<td>learning_rate</td><td>0.001</td><td>0.01</td>" in page.replace("\n", "")


def test_evaluated_in_training_is_enough(tiny: Path, tmp_path: Path) -> None:
    trainer(tiny, tmp_path / "run", eval_strategy="steps", eval_steps=2).train()
    found = read_run(tmp_path / "run")
    assert found.finished
    assert len(found.records) == found.validation["validation_sequences"]


def test_other_data_do_not_count(tiny: Path, tmp_path: Path) -> None:
    run = trainer(tiny, tmp_path / "run")
    run.evaluate(ROWS[8:16])
    assert not (tmp_path / "run" / "results.json").exists()
    run.train()
    assert read_run(tmp_path / "run").finished
    run.evaluate(ROWS[8:16])
    assert read_run(tmp_path / "run").records == []


def test_a_resumed_run_keeps_what_was_measured_before(tiny: Path, tmp_path: Path) -> None:
    run = trainer(tiny, tmp_path / "run", max_steps=1, save_steps=1)
    before = run.evaluate()
    run.train()
    again = trainer(tiny, tmp_path / "run", max_steps=2, save_steps=1)
    again.train(resume_from_checkpoint=True)
    again.evaluate()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["steps"] == 2
    assert results["before"]["eval_cfm"] == before["eval_cfm"]
    assert "eval_cfm" in results["change"]


def test_the_folder_of_a_run_by_the_command_is_left_alone(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("model: x\n")
    (tmp_path / "run" / "results.json").write_text("{}")
    trainer(tiny, tmp_path / "run").evaluate()
    assert (tmp_path / "run" / "results.json").read_text() == "{}"
