"""A run from start to end, whatever the trainer."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from transformers import TrainerCallback

from ebft.method.measures import with_error
from ebft.train import report
from tests.baselines.runs import needs_trl, results_of, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")


@needs_trl
def test_evaluation_that_is_asked_for_without_data(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    for command in ("train", "sft"):
        assert run(command, write_recipe(tmp_path, tiny, sums, validation_split=0), tmp_path / "out") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ebft: eval_strategy=steps needs validation data; set validation_split")


@needs_trl
def test_a_finished_run_that_is_continued_is_not_finished(
    tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ebft.baselines import sft

    recipe, output = write_recipe(tmp_path, tiny, sums), tmp_path / "out"
    assert run("sft", recipe, output, "--max_steps", 2) == 0
    seen: list[dict[str, Any]] = []
    train = sft.MeasuredSFT.train
    monkeypatch.setattr(sft.MeasuredSFT, "train", lambda *a, **k: (seen.append(results_of(output)), train(*a, **k))[1])
    assert run("sft", recipe, output, "--max_steps", 4, "--resume") == 0
    assert "steps" not in seen[0]
    assert results_of(output)["steps"] == 4


def records_of(output: Path, when: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / f"validation-{when}.jsonl").read_text().splitlines()]


OWN: dict[str, list[Any]] = {
    "rlvr": ["--rewards", "bleu", "--generations", 4, "--max_new_tokens", 3, "--gradient_accumulation_steps", 1]
}


class TestChange:
    @needs_trl
    @pytest.mark.parametrize("command", ["train", "sft", "rlvr"])
    def test_it_comes_with_the_error_of_the_paired_difference(
        self, command: str, tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipe, output = write_recipe(tmp_path, tiny, sums), tmp_path / "out"
        assert run(command, recipe, output, *OWN.get(command, [])) == 0
        printed = capsys.readouterr().out
        results = results_of(output)
        before, after = records_of(output, "before"), records_of(output, "after")
        assert [r["sequence"] for r in before] == [r["sequence"] for r in after] == list(range(len(before)))
        contexts = [r["contexts"] for r in before]
        moved = [new["cfm"] - old["cfm"] for new, old in zip(after, before, strict=True)]
        mean = sum(m * c for m, c in zip(moved, contexts, strict=True)) / sum(contexts)
        pulls = [(m - mean) * c / statistics.mean(contexts) for m, c in zip(moved, contexts, strict=True)]
        change = results["change"]
        assert change["eval_cfm"] == pytest.approx(mean, abs=1e-12)
        assert change["eval_cfm"] == pytest.approx(results["after"]["eval_cfm"] - results["before"]["eval_cfm"])
        assert change["eval_cfm_se"] == pytest.approx(statistics.stdev(pulls) / len(pulls) ** 0.5, abs=1e-12)
        shown = with_error(change["eval_cfm"], change["eval_cfm_se"], "+")
        assert shown in printed
        assert f"| {shown} |" in (output / "final" / "README.md").read_text()

    @needs_trl
    @pytest.mark.parametrize("command", ["train", "sft"])
    def test_a_stopped_run_still_has_its_before(
        self, command: str, tiny: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = write_recipe(tmp_path, tiny, sums)
        assert run(command, recipe, tmp_path / "whole") == 0
        step = TrainerCallback.on_step_begin

        def stop(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(TrainerCallback, "on_step_begin", stop)
        assert run(command, recipe, tmp_path / "out") == 130
        monkeypatch.setattr(TrainerCallback, "on_step_begin", step)
        assert "change" not in results_of(tmp_path / "out")
        assert run(command, recipe, tmp_path / "out", "--resume") == 0
        for when in ("before", "after"):
            assert records_of(tmp_path / "out", when) == records_of(tmp_path / "whole", when)
        assert results_of(tmp_path / "out")["change"] == results_of(tmp_path / "whole")["change"]

    @pytest.mark.parametrize("lost", ["the records", "the seed"])
    def test_what_has_no_counterpart_is_measured_again(self, lost: str, tiny: Path, sums: Path, tmp_path: Path) -> None:
        """Records that a version of before did not keep, and rollouts with another seed than those to come."""
        recipe, output = write_recipe(tmp_path, tiny, sums), tmp_path / "out"
        assert run("train", recipe, output, "--max_steps", 2) == 0
        before = results_of(output)["before"]
        more: list[Any] = []
        if lost == "the records":
            (output / "validation-before.jsonl").unlink()
        else:
            more = ["--eval_seed", 11]
        assert run("train", recipe, output, "--max_steps", 4, "--resume", *more) == 0
        results = results_of(output)
        assert (results["before"]["eval_cfm"] == before["eval_cfm"]) == (lost == "the records")
        expected = results["after"]["eval_cfm"] - results["before"]["eval_cfm"]
        assert results["change"]["eval_cfm"] == pytest.approx(expected)
        assert len(records_of(output, "before")) == len(records_of(output, "after"))


def test_held_out_prompts_are_answered_before_and_after(
    tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, max_steps=2, eval_strategy="no", learning_rate=0.03, show_prompts=2)
    assert run("train", recipe, tmp_path / "out", "--save_steps", 1) == 0
    answers = results_of(tmp_path / "out")["answers"]
    assert answers["before"] != answers["after"]
    printed = capsys.readouterr().out
    card = (tmp_path / "out" / "final" / "README.md").read_text(encoding="utf-8")
    for line in report.answer_lines(answers):
        assert line in card
        assert line in printed
    assert run("train", recipe, tmp_path / "out", "--resume", "--max_steps", 3) == 0
    assert results_of(tmp_path / "out")["answers"]["before"] == answers["before"]


class TestHub:
    """`push_to_hub`, with the hub's two calls replaced."""

    @pytest.fixture
    def recipe(self, tiny: Path, sums: Path, tmp_path: Path) -> Path:
        hub = {"push_to_hub": True, "hub_model_id": "me/mine", "hub_private_repo": True}
        return write_recipe(tmp_path, tiny, sums, max_steps=2, save_steps=1, eval_strategy="no", **hub)

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        made: list[Any] = []

        def create_repo(self: Any, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
            made.append(("create", repo_id, private, exist_ok))
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self: Any, *, repo_id: str, folder_path: Path, revision: str | None) -> Any:
            made.append(("upload", repo_id, sorted(file.name for file in folder_path.iterdir())))
            if len(made) > 2:
                raise ConnectionError("the hub is away")
            return SimpleNamespace(commit_url="https://hub/me/mine")

        monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
        monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
        return made

    def test_the_final_model_and_nothing_else(
        self, recipe: Path, calls: list[Any], tmp_path: Path, capsys: Any
    ) -> None:
        assert run("train", recipe, tmp_path / "out") == 0
        (_, *created), (_, name, files) = calls
        assert (created, name) == (["me/mine", True, True], "me/mine")
        assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
        assert json.loads((tmp_path / "out" / "resolved.json").read_text())["push_to_hub"] is True
        assert run("train", recipe, tmp_path / "out", "--resume") == 0, "a failed upload does not fail the run"
        assert f"again by hand: hf upload me/mine {tmp_path / 'out' / 'final'}" in capsys.readouterr().err

    def test_without_a_token_nothing_is_trained(
        self, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise OSError("401 Unauthorized\nand a long explanation")

        monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
        assert run("train", recipe, tmp_path / "out") == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "me/mine cannot be made on the hub: 401 Unauthorized; log in with `hf auth login`" in line
        assert not (tmp_path / "out").exists()
