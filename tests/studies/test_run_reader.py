"""Reading the folder of a run, which may still be training."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebft.errors import ConfigError
from ebft.studies.run_reader import read_run
from tests.studies.made_runs import VALIDATION, make_run


def test_a_finished_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "one", [1.3, 1.1], "sft"))
    assert (run.name, run.method, run.finished, run.validation) == ("one", "sft", True, VALIDATION)
    assert run.metrics() == {"cfm", "cross_entropy", "whitened_proxy"}
    assert [(m.step, m.value, m.error) for m in run.measurements("cfm")] == [(0, 1.3, 0.01), (10, 1.1, 0.01)]
    costs = {"step": 10.0, "spent/tokens": 100.0, "spent/seconds": 2.0, "spent/flops": 1e9}
    assert run.measurements("cfm")[1].costs == costs
    assert run.total_costs() == costs


def test_a_run_that_is_writing_a_line(runs: list[str]) -> None:
    run = read_run(Path(runs[1]))
    assert not run.finished
    assert [m.step for m in run.measurements("cfm")] == [0, 10]


def test_of_two_values_at_one_step_the_later_counts(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", [1.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 0, "eval_cfm": 0.5}\n')
    (found,) = read_run(folder).measurements("cfm")
    assert (found.value, found.error) == (0.5, None)


def test_the_final_model_of_a_run_stands_for_the_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", [1.0])
    (folder / "final").mkdir()
    assert read_run(folder / "final").folder == folder


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such run"):
        read_run(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl"):
        read_run(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a study; look at it with `ebft study report"):
        read_run(tmp_path)
