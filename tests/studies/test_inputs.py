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
        ({"evaluation": {"tasks": ["translation"], "translation_data": "./no"}}, "evaluation: ./no: no such file"),
        ({"dataset": ["{empty}"]}, "empty.jsonl: the file is empty"),
        ({"dataset": ["{bad}"]}, "bad.jsonl: line 2 is not valid JSON"),
        ({"validation_dataset": "{columns}"}, "columns.jsonl: row 1: a row needs 'text'"),
        ({"evaluation": {"calibration_data": "{empty}"}}, "evaluation: "),
        ({"evaluation": {"calibration_data": "{columns}"}}, "columns.jsonl: row 1: a row needs 'text'"),
        ({"evaluation": {"calibration_data": ["{bad}"]}}, "is not text"),
        ({"validation_dataset": ["{bad}"]}, "is not text"),
        ({"dataset": 5}, "dataset=5 is not a list"),
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


def test_what_is_finished_needs_its_data_no_more(study: Any, sums: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    shutil.copy(sums, data)
    file = study({"sft": {}}, {**EVALUATION}, dataset=[str(data)], test_split=8)
    assert cli.main(["study", "run", str(file)]) == 0
    data.unlink()
    assert cli.main(["study", "run", str(file)]) == 0
