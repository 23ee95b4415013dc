"""A run from start to end, whatever the trainer, and what it leaves: tables, answers, curves, the card, exports."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
import yaml
from torch import Tensor
from transformers import AutoModelForCausalLM, TrainerCallback

from ebft import cli
from ebft.config.recipe import load_recipe
from ebft.data.packing import DocumentIndex, SequenceDataset, TokenStore
from ebft.data.row_format import encode
from ebft.method.measures import as_logged, differences, with_error
from ebft.train import report
from tests.baselines.runs import results_of, run, write_recipe
from tests.tiny_tokenizer import byte_tokenizer

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
    assert not output.exists(), "nothing is trained"
    create.side_effect = lambda name, **_: SimpleNamespace(repo_id=name)
    assert run("train", recipe, output) == 0, "a failed upload does not fail the run"
    create.assert_called_with("me/mine", private=True, exist_ok=True)
    upload.assert_called_once_with(repo_id="me/mine", folder_path=output / "final", revision=None)
    assert f"by hand: hf upload me/mine {output}/final" in capsys.readouterr().err


def example(anchors: int = 9, samples: int = 2) -> dict[str, Tensor]:
    """Token t at position t; the second anchor does not count."""
    numbers = torch.arange(anchors * samples).view(anchors, samples) / 10
    return {
        "input_ids": torch.arange(60),
        "completions": torch.full((anchors, samples, 3), 65),
        "alignment": numbers,
        "diversity": -numbers,
        "advantages": numbers + 1,
        "anchors": torch.arange(1, anchors + 1) * 5,
        "anchor_mask": torch.tensor([place != 1 for place in range(anchors)]),
        "truth_lengths": torch.full((anchors,), 2),
    }


def test_contexts_truths_and_numbers_are_those_of_the_anchors() -> None:
    text = "\n".join(report.sample_lines(example(), None))
    shown = [int(line.split()[-1]) for line in text.splitlines() if line.startswith("## Anchor")]
    assert len(shown) == report.ANCHORS
    assert 10 not in shown, "an anchor that does not count is not shown"
    assert f"Context: {' '.join(map(str, range(5)))}\n" in text, "all of it, without dots before it"
    assert f"Context: ...{' '.join(map(str, range(shown[-1] - 24, shown[-1])))}\n" in text
    assert "| truth | 5 6 | | | |" in text
    assert "| sample 1 | 65 65 65 | +0.000 | +0.000 | +1.000 |" in text, "no -0.000"
    assert "| sample 2 | 65 65 65 | +0.100 | -0.100 | +1.100 |" in text


def test_prompts_end_where_answers_begin() -> None:
    tokenizer = byte_tokenizer()
    rows = [{"prompt": "x" * 100 + "=", "completion": "y" * 100}, {"text": "abcdef"}]
    store = TokenStore.from_documents([encode(row, tokenizer) for row in rows])
    found = report.held_out_prompts(SequenceDataset(DocumentIndex.of(store), 16), tokenizer, 3)
    assert found["prompts"] == ["x" * (report.PROMPT_TOKENS - 1) + "=", "abc"], "a text is cut in its middle"
    assert found["text"] == ["y" * report.ANSWER_TOKENS, "def"]


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    settings = {"model": "some/base", "dataset": ["a/b:c", "rows.jsonl"], "output_dir": str(tmp_path), "use_cpu": True}
    recipe = load_recipe(None, {**settings, "horizon": 5, "prompt_separator": "\\n"})
    results = {"after": {"eval_cfm": 0.25, "eval_cfm_se": 0.125}, "change": {"eval_cfm": -0.25}, "steps": 42}
    report.write_card(tmp_path, "a title", recipe, results, "Energy-Based Fine-Tuning")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---")[1])
    assert (header["base_model"], header["datasets"]) == (["some/base"], ["a/b"]), "names on the hub, not files"
    shown = load_recipe(None, yaml.safe_load(text.partition("```yaml")[2].partition("```")[0]))
    assert shown == recipe, "its settings make the same run"
    assert "| feature-matching loss |  | 0.2500 ± 0.1250 | -0.2500 |" in text


# ---- `ebft export` of whole models; tests/test_adapters.py has that of adapters -------------------------------


@pytest.fixture(scope="module")
def finished(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBFT_CACHE", str(folder / "cache"))
        recipe = write_recipe(folder, tiny, sums, max_steps=3, eval_strategy="no", validation_split=0)
        assert run("train", recipe, folder / "out", "--save_steps", 2) == 0
    return folder / "out"


@pytest.mark.parametrize(
    ("name", "same", "words", "dtype"),
    [
        ("", "final", "fine-tuned with Energy-Based", torch.float32),
        ("checkpoint-2", "checkpoint-2", "max_steps: 3", torch.bfloat16),
    ],
)
def test_what_is_exported(name: str, same: str, words: str, dtype: torch.dtype, finished: Path, tmp_path: Path) -> None:
    before, output = os.umask(0o027), tmp_path / "out"
    arguments = ["export", str(finished / name), "--output", str(output)]
    try:
        assert cli.main([*arguments, *(["--dtype", "bfloat16"] if dtype == torch.bfloat16 else [])]) == 0
    finally:
        os.umask(before)
    assert cli.main(arguments) == 2, "it is there already"
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype="auto") for folder in (output, finished / same)]
    for found, trained in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(found, trained.to(dtype))
        assert found.dtype == dtype
    assert not {file.name for file in output.iterdir()} & {"optimizer.pt", "trainer_state.json", "recipe.yaml"}
    assert (output / "model.safetensors").stat().st_mode & 0o777 == 0o640, "read by whom the umask lets"
    card = (output / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntags: [ebft]\nlibrary_name: transformers\n")
    assert words in card
    assert (output / "curves.png").exists() == (same == "final")
