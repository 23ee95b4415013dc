"""A run from start to end, whatever the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from transformers import TrainerCallback

from ebft.method.measures import as_logged, differences, with_error
from ebft.train import report
from tests.baselines.runs import results_of, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


def records_of(output: Path, when: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / f"validation-{when}.jsonl").read_text().splitlines()]


def test_change_of_a_run_that_is_stopped_resumed_and_continued(
    tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It is that of the run that was not stopped, paired, against the same before."""
    recipe, whole, output = write_recipe(tmp_path, tiny, sums), tmp_path / "whole", tmp_path / "out"
    assert run("train", recipe, whole) == 0
    printed, results = capsys.readouterr().out, results_of(whole)
    before, after = records_of(whole, "before"), records_of(whole, "after")
    assert [r["sequence"] for r in before] == [r["sequence"] for r in after] == list(range(len(before)))
    change = results["change"]
    assert change == as_logged(differences(after, before))
    assert change["eval_cfm"] == pytest.approx(results["after"]["eval_cfm"] - results["before"]["eval_cfm"])
    shown = with_error(change["eval_cfm"], change["eval_cfm_se"], "+")
    assert shown in printed
    assert f"| {shown} |" in (whole / "final" / "README.md").read_text()

    def stop(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(TrainerCallback, "on_step_begin", stop)
        assert run("train", recipe, output) == 130
    assert "change" not in results_of(output)
    assert run("train", recipe, output, "--resume") == 0
    for when in ("before", "after"):
        assert records_of(output, when) == records_of(whole, when)
    assert results_of(output)["change"] == change

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(TrainerCallback, "on_epoch_begin", lambda *_, **__: seen.append(results_of(output)))
    assert run("train", recipe, output, "--max_steps", 5, "--resume", "--eval_seed", 11) == 0
    assert not {"steps", "after", "change"} & seen[0].keys(), "a finished run that is continued is not finished"
    again = results_of(output)
    assert again["before"]["eval_cfm"] != results["before"]["eval_cfm"], "other rollouts are measured again"
    expected = again["after"]["eval_cfm"] - again["before"]["eval_cfm"]
    assert (again["steps"], again["change"]["eval_cfm"]) == (5, pytest.approx(expected))


def test_prompts_are_answered_and_curves_are_live(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    EventAccumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    changes = {"learning_rate": 0.03, "show_prompts": 2, "report_to": "tensorboard"}
    recipe, output = write_recipe(tmp_path, tiny, sums, max_steps=2, eval_strategy="no", **changes), tmp_path / "out"
    assert run("train", recipe, output, "--save_steps", 1) == 0
    (events,) = (output / "runs").glob("events.*")
    assert {"train/reward", "train/ebft/cfm", "eval/cfm"} <= {*EventAccumulator(str(events)).Reload().Tags()["scalars"]}
    answers = results_of(output)["answers"]
    assert answers["before"] != answers["after"]
    printed = capsys.readouterr().out
    card = (output / "final" / "README.md").read_text(encoding="utf-8")
    for line in report.answer_lines(answers):
        assert line in card
        assert line in printed
    assert run("train", recipe, output, "--resume", "--max_steps", 3) == 0
    assert results_of(output)["answers"]["before"] == answers["before"]


def test_push_to_hub_is_the_final_model_and_nothing_else(
    tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """With the hub's two calls replaced; the upload fails."""
    hub = {"push_to_hub": True, "hub_model_id": "me/mine", "hub_private_repo": True}
    recipe, output = write_recipe(tmp_path, tiny, sums, max_steps=1, eval_strategy="no", **hub), tmp_path / "out"
    create = Mock(side_effect=RuntimeError("who are you?"))
    upload = Mock(side_effect=ConnectionError("the hub is away"))
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert run("train", recipe, output) == 2, "nobody is logged in"
    assert "ebft: push_to_hub: who are you?; log in with" in capsys.readouterr().err
    assert not any(output.iterdir()), "nothing is trained"
    create.side_effect = lambda name, **_: SimpleNamespace(repo_id=name)
    assert run("train", recipe, output) == 0, "a failed upload does not fail the run"
    create.assert_called_with("me/mine", private=True, exist_ok=True)
    upload.assert_called_once_with(repo_id="me/mine", folder_path=output / "final", revision=None)
    assert f"by hand: hf upload me/mine {output}/final" in capsys.readouterr().err
