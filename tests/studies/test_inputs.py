"""What is not there is said before the first job starts: nothing is written, and nothing runs in vain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft import cli
from tests.baselines.runs import SETTINGS
from tests.sandbox.sandboxed import needs_sandbox
from tests.studies.commands import sweep

pytestmark = pytest.mark.usefixtures("offline")
EVALUATION = {"sequences": 4, "profile_lengths": [1, 4], "profile_stride": 8}

FILES = {"empty": "", "bad": '{"text": "a"}\n{', "columns": '{"question": "a"}'}


@pytest.fixture
def study(tiny: Path, sums: Path, tmp_path: Path) -> Any:
    def write(methods: dict[str, Any], evaluation: Any = False, **settings: Any) -> Path:
        given = {**SETTINGS, "model": str(tiny), "dataset": [str(sums)], "max_steps": 1, **settings}
        file = tmp_path / "study.yaml"
        values = {"output_dir": str(tmp_path / "out"), "settings": given, "evaluation": evaluation, "methods": methods}
        file.write_text(yaml.safe_dump(values, sort_keys=False))
        return file

    return write


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": ["no.jsonl"]}, "sft: no.jsonl: no such file or folder"),
        ({"validation_dataset": "./no"}, "sft: ./no: no such file or folder"),
        ({"dataset": ["some/dataset"]}, "sft: some/dataset"),
        ({"model": "./no"}, "sft: model='./no': no such folder"),
        ({"model": "smollm2-153m"}, "did you mean 'smollm2-135m'"),
        ({"feature_model": "./no"}, "sft: feature_model='./no': no such folder"),
        ({"evaluation": {"tasks": ["mbpp"], "mbpp": "no.jsonl"}}, "evaluation: no.jsonl: no such file or folder"),
        (
            {"eval_tasks": ["translation"], "eval_task_options": {"translation_data": "no.jsonl"}},
            "sft: no.jsonl: no such file or folder",
        ),
        ({"evaluation": {"tasks": ["translation"], "translation_data": "./no"}}, "evaluation: ./no: no such file"),
        ({"dataset": ["{empty}"]}, "empty.jsonl: the file is empty"),
        ({"dataset": ["{bad}"]}, "bad.jsonl: line 2 is not valid JSON"),
        ({"validation_dataset": "{columns}"}, "columns.jsonl: row 1: a row needs 'text'"),
        ({"evaluation": {"calibration_data": "{empty}"}}, "evaluation: "),
        ({"evaluation": {"calibration_data": "{columns}"}}, "columns.jsonl: row 1: a row needs 'text'"),
        ({"evaluation": {"calibration_data": ["{bad}"]}}, "is not text"),
        ({"validation_dataset": ["{bad}"]}, "is not text"),
        ({"dataset": 5}, "dataset=5 is not text"),
        ({"evaluation": {"calibration_data": "no.txt"}}, "evaluation: no.txt: no such file or folder"),
        (
            {"evaluation": {"calibration_data": "stdlib-functions", "feature_model": "./no"}},
            "evaluation: feature_model",
        ),
    ],
)
def test_a_study(
    how: list[str], change: dict[str, Any], words: str, study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    file = study({"sft": {}}, **change)
    given = file.read_text()
    for name in FILES:
        given = given.replace(f"{{{name}}}", f"{tmp_path}/{name}.jsonl")
    file.write_text(given)
    assert cli.main(["study", "run", str(file), *how]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_all_that_is_missing_is_named_at_once(study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    missing = {"dataset": ["one.jsonl"], "validation_dataset": "two.jsonl"}
    file = study({"sft": {}, "ebft": {}}, {"tasks": ["mbpp"], "mbpp": "three.jsonl"}, **missing)
    file.write_text("# Made by a program.\n" + file.read_text())
    assert cli.main(["study", "run", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for name in ("one.jsonl", "two.jsonl", "three.jsonl"):
        assert line.count(f"{name}: no such file") == 1, "once, though two methods need it"
    assert line.endswith("the first lines of the study's file may say how to make it")


def test_a_metric_to_choose_by(study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    methods = {"sft": {"search": {"learning_rate": [0.1, 0.2]}, "choose_by": "crossentropy"}}
    assert cli.main(["study", "run", str(study(methods)), "--dry-run"]) == 2
    assert "`choose_by: crossentropy` is no metric of validation" in (said := capsys.readouterr().err)
    assert "did you mean 'cross_entropy'?" in said


@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_a_file_where_a_folder_should_be(
    place: str, study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    file = study({"sft": {}})
    file.write_text(file.read_text().replace(str(tmp_path / "out"), place))
    assert cli.main(["study", "run", str(file)]) == 2
    assert f"ebft: output_dir={place}: file is a file; choose a folder" in capsys.readouterr().err
    assert sweep(file, "--set", "gamma=0", "--output_dir", place) == 2


def test_a_row_that_waits_for_a_search(study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    methods = {
        "sft": {"search": {"learning_rate": [0.1, 0.2]}},
        "warm": {"method": "ebft", "after": "sft", "settings": {"dataset": ["no.jsonl"], "feature_model": "sft"}},
    }
    assert cli.main(["study", "run", str(study(methods))]) == 2
    assert "ebft: warm: no.jsonl: no such file" in capsys.readouterr().err


def test_a_sweep(tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({**SETTINGS, "model": str(tiny), "output_dir": str(tmp_path / "out")}))
    assert sweep(recipe, "--set", f"dataset={sums},no.jsonl") == 2
    assert "ebft: dataset=no.jsonl: no.jsonl: no such file or folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@needs_sandbox
def test_a_sandbox(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    problem = {"task_id": 1, "text": "One.", "code": "def f():\n    return 1", "test_list": ["assert f() == 1"]}
    (tmp_path / "problems.jsonl").write_text(json.dumps(problem))
    evaluation = {"tasks": ["mbpp"], "mbpp": str(tmp_path / "problems.jsonl")}
    monkeypatch.setenv("PATH", "/nonexistent")
    assert cli.main(["study", "run", str(study({"sft": {}}, evaluation))]) == 2
    assert "ebft: evaluation: the sandbox needs `bwrap`" in capsys.readouterr().err


def test_what_is_on_another_machine_is_a_warning(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")  # no sbatch here either
    evaluation = {"tasks": ["mbpp"], "mbpp": "none.jsonl"}
    file = study({"sft": {}}, evaluation, dataset=["no.jsonl"], feature_model="./no")
    assert cli.main(["study", "run", str(file), "--launcher", "slurm"]) == 2
    for what in (
        "sft: no.jsonl: no such file",
        "sft: feature_model='./no': no such",
        "evaluation: none.jsonl: no such",
    ):
        assert f"not on this machine: {what}" in caplog.text, "all of it, not only what comes first"
    assert list((tmp_path / "out").glob("*.sbatch")), "the job file is written all the same"


def test_what_is_finished_needs_its_data_and_weights_no_more_but_what_follows_does(
    study: Any, sums: Path, tmp_path: Path, capsys: Any
) -> None:
    data = tmp_path / "data.jsonl"
    shutil.copy(sums, data)
    file = study({"sft": {}}, {**EVALUATION}, dataset=[str(data)], test_split=8)
    assert cli.main(["study", "run", str(file), "--reuse-processes"]) == 0
    data.unlink()
    weights = tmp_path / "out" / "runs" / "sft,seed=0" / "final" / "model.safetensors"
    weights.unlink()
    assert cli.main(["study", "run", str(file)]) == 0
    shutil.copy(sums, data)
    file = study({"sft": {}, "ebft": {"after": "sft"}}, {**EVALUATION}, dataset=[str(data)], test_split=8)
    capsys.readouterr()
    for how in ["--dry-run"], []:
        assert cli.main(["study", "run", str(file), *how]) == 2
        error = capsys.readouterr().err
        assert "ebft,seed=0: model=" in error
        assert "has no weights" in error
        assert "delete that run's folder, and it is trained again" in error


@pytest.mark.usefixtures("stub_runs")
def test_a_method_that_has_run_with_other_settings(study: Any, tmp_path: Path, capsys: Any) -> None:
    """Of the study that is there, nothing changes: its report says what was run."""
    methods = {"sft": {"settings": {"learning_rate": 1e-4}}, "ebft": {}}
    assert cli.main(["study", "run", str(study({"sft": methods["sft"]}))]) == 0
    kept = (tmp_path / "out" / "study.yaml").read_text()
    methods["sft"] = {"settings": {"learning_rate": 2e-4}}
    capsys.readouterr()
    for how in ["--dry-run"], []:
        assert cli.main(["study", "run", str(study(methods)), *how]) == 2
        error = capsys.readouterr().err
        assert "sft,seed=0: " in error
        assert "holds a run with learning_rate=0.0001, not 0.0002; what was run" in error
    assert (tmp_path / "out" / "study.yaml").read_text() == kept
    assert not (tmp_path / "out" / "runs" / "ebft,seed=0").exists()
    shutil.rmtree(tmp_path / "out" / "runs" / "sft,seed=0")
    assert cli.main(["study", "run", str(study({"sft": methods["sft"]})), "--dry-run"]) == 0


@pytest.mark.usefixtures("stub_runs")
def test_a_sweep_over_other_settings(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    def run(*more: str) -> int:
        fixed = {
            **SETTINGS,
            "model": str(tiny),
            "dataset": str(sums),
            "max_steps": 1,
            "output_dir": str(tmp_path / "out"),
        }
        flags = [word for name, value in fixed.items() for word in (f"--{name}", str(value))]
        return cli.main(["sweep", *flags, *more, "--set", "gamma=0.1"])

    assert run() == 0
    capsys.readouterr()
    assert run("--temperature", "0.9") == 2
    assert "holds a run with temperature=" in capsys.readouterr().err
    assert run("--max_steps", "2") == 0, "more steps continue a run"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rewards": ["nowhere:score"]}, "rlvr: rewards='nowhere:score': there is no module 'nowhere'"),
        ({"rewards": ["bleu"], "reference_column": "no"}, "no row can be rewarded; the first: "),
    ],
)
def test_rewards(settings: dict[str, Any], words: str, study: Any, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["study", "run", str(study({"sft": {}, "rlvr": {"settings": settings}}))]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rows_that_cannot_be_rewarded_may_be_left_out(study: Any, tmp_path: Path) -> None:
    """Also where they come first, or are a whole file."""
    rows = [{"prompt": "a", "completion": " "}] * 300 + [{"prompt": "a", "completion": "b"}]
    files = [tmp_path / "none.jsonl", tmp_path / "one.jsonl"]
    for file, some in zip(files, (rows[:9], rows), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in some))
    given = study({"rlvr": {"settings": {"rewards": ["bleu"]}}}, dataset=list(map(str, files)))
    assert cli.main(["study", "run", str(given), "--dry-run"]) == 0
