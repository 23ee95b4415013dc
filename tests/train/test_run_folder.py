"""The output folder of a run: whose it is, when a run may be resumed in it, and what it keeps of its evaluations."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft import EBFTConfig, EBFTTrainer
from ebft.config.recipe import load_recipe
from ebft.data.packing import DocumentIndex, SequenceDataset, TokenStore
from ebft.data.row_format import Document
from ebft.errors import ConfigError
from ebft.studies import report as study_report
from ebft.train import run_folder
from ebft.train.run_folder import RunFolder
from tests.baselines.runs import ROWS, metrics_of, results_of

pytestmark = pytest.mark.usefixtures("offline")


GIVEN = {"model": "m", "dataset": "d", "use_cpu": True, "per_device_train_batch_size": 2, "gamma": 0.1}


def folder(output: Path, **changes: Any) -> RunFolder:
    return RunFolder(load_recipe(None, {**GIVEN, "output_dir": str(output), **changes}))


def sequences(*texts: str) -> SequenceDataset:
    documents = [Document([ord(c) for c in text], [True] * len(text)) for text in texts]
    return SequenceDataset(DocumentIndex.of(TokenStore.from_documents(documents)), 8)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """The folder of a run with one complete checkpoint."""
    out = folder(tmp_path / "out")
    out.describe(out.check_data(sequences("abc", "defg")))
    checkpoint = tmp_path / "out" / "checkpoint-2"
    checkpoint.mkdir()
    run_folder.mark_complete(checkpoint)
    (tmp_path / "out" / "results.json").write_text('{"method": "ebft"}')
    return tmp_path / "out"


def test_a_folder_that_is_new_or_of_a_run_is_ours(used: Path, tmp_path: Path) -> None:
    assert folder(tmp_path / "new").claim(False, "ebft") is None
    (tmp_path / "empty").mkdir()
    assert folder(tmp_path / "empty").claim(True, "ebft") is None
    with pytest.raises(ConfigError, match="or continue it with --resume"):
        folder(used).claim(False, "ebft")
    with pytest.raises(ConfigError, match="not empty and holds no run"):
        folder(tmp_path).claim(True, "ebft")
    (used / "checkpoint-4").mkdir()  # cut off
    assert folder(used).claim(True, "ebft") == used / "checkpoint-2"
    assert not (used / "checkpoint-4").exists()
    (used / "checkpoint-2" / "COMPLETE").unlink()
    assert folder(used).claim(True, "ebft") is None, "from the beginning"
    (used / "results.json").unlink()
    assert folder(used).claim(True, "sft") is None, "stopped before its first results"


def test_what_may_change_when_a_run_is_resumed(used: Path) -> None:
    resolved = json.loads((used / "resolved.json").read_text())
    (used / "resolved.json").write_text(json.dumps({**resolved, "answer_only": False, "alpha": 0.5}))
    for changes in (
        {"max_steps": 50, "logging_steps": 3, "save_steps": 7, "run_name": "again"},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
        {"gamma": "0.1", "horizon": 8},  # the second is the default, said aloud
    ):
        resumed = folder(used, **changes)
        assert resumed.claim(True, "ebft") == used / "checkpoint-2"
        # What nobody gave stays as the run began: a default may have changed since.
        assert (resumed.training.answer_only, resumed.training.alpha, resumed.training.gamma) == (False, 0.5, 0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 0.2}, "holds a run with gamma=0.1, not 0.2"),
        ({"per_device_train_batch_size": 4}, "holds a run with sequences per step .*=2, not 4"),
        ({"fsdp": "full_shard"}, "holds a run with fsdp=None, not 'full_shard'"),
        ({}, "holds a run with method='ebft', not 'sft'"),
    ],
)
def test_another_run_is_not_resumed(used: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        folder(used, **changes).claim(True, "ebft" if changes else "sft")


def test_a_run_is_described_by_what_was_given_and_what_came_of_it(used: Path) -> None:
    given = yaml.safe_load((used / "recipe.yaml").read_text())
    assert given == {**GIVEN, "dataset": ["d"], "output_dir": str(used)}
    resolved = json.loads((used / "resolved.json").read_text())
    assert (resolved["gamma"], resolved["horizon"], resolved["sequences_per_step"]) == (0.1, 8, 2)
    data = folder(used).check_data(sequences("abc", "defg"))
    assert (data["documents"], data["tokens"]) == (2, 7)
    for other in (sequences("defg", "abc"), sequences("abd", "defg")):
        with pytest.raises(ConfigError, match="the dataset has changed since the run"):
            folder(used).check_data(other)
    (used / "data.json").unlink()
    with pytest.raises(ConfigError, match=r"or its data\.json is broken"):
        folder(used).check_data(sequences("abc", "defg"))


def test_a_final_model_is_whole_or_not_there(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with folder(tmp_path).locked():
        assert folder(tmp_path).claim(False, "ebft") is None, "a lock alone is no run"
    for text in ("first", "", "second"):
        with suppress(ZeroDivisionError), run_folder.whole(final) as partial:
            partial.mkdir()
            (partial / "model").write_text(text)
            assert text or 1 / 0, "killed before it is whole"
        assert (final / "model").read_text() == (text or "first")
    assert [*tmp_path.iterdir()] == [final]


def in_a_program(model: Path, output: Path, **settings: Any) -> EBFTTrainer:
    small = {"context_length": 32, "answer_only": False, "horizon": 4, "stride": 4, "samples": 2, "use_cpu": True}
    args = EBFTConfig(output_dir=str(output), report_to=[], **{"max_steps": 2, **small, **settings})
    return EBFTTrainer(str(model), args, ROWS[8:], ROWS[:8])


def test_two_runs_of_a_program_compare_in_pairs(tiny: Path, tmp_path: Path) -> None:
    """Also where one is resumed, evaluated in training only, or on other data as well. tests/train/test_run.py has runs
    of commands."""
    one, two = tmp_path / "one", tmp_path / "two"
    run = in_a_program(tiny, one, learning_rate=1e-3, eval_strategy="steps", eval_steps=1)
    run.evaluate(ROWS[8:16])
    assert not (one / "results.json").exists()
    before = run.evaluate()
    run.train()
    run.evaluate(ROWS[8:16])
    found = results_of(one)
    evaluated = next(e for e in metrics_of(one) if e["step"] == 2 and "eval_cfm" in e)
    assert found["after"]["eval_cfm"] == evaluated["eval_cfm"]
    assert found["change"]["eval_cfm"] == pytest.approx(evaluated["eval_cfm"] - before["eval_cfm"], rel=1e-4)
    run = in_a_program(tiny, two, max_steps=1, save_steps=1, learning_rate=1e-2)
    assert run.evaluate()["eval_cfm"] == before["eval_cfm"]
    run.train()
    run = in_a_program(tiny, two, save_steps=1, learning_rate=1e-2)
    run.train(resume_from_checkpoint=True)
    run.evaluate()
    for results in found, results_of(two):
        assert (results["method"], results["steps"]) == ("ebft", 2)
        assert results["before"]["eval_cfm"] == before["eval_cfm"]
    compared = study_report.compare([str(one), str(two)], str(tmp_path / "out"))
    assert compared.notes == []
    assert any(table.name == "differences" for table in compared.tables)
    (two / "recipe.yaml").write_text("model: x\n")  # now it is the folder of a run by the command
    run.evaluate(), run.evaluate(ROWS[8:16])
    assert results_of(two) == results
