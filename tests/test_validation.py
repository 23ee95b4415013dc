"""All three trainers are measured alike."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from tests.baselines.runs import make_trainers, metrics_of, results_of, run, write_recipe

pytestmark = pytest.mark.usefixtures("offline")

METRICS = ("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy", "reward")


def measured(trainer: Any) -> dict[str, float]:
    found = trainer.evaluate()
    return {k: v for k, v in found.items() if k.startswith("eval_") and k != "eval_runtime"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"document_masks": True, "answer_only": True},
        {"anchors": "answer_start", "horizon": 30},
        {"bf16": True, "packing": False, "eval_samples": 4},
    ],
    ids=str,
)
def test_equal_models_have_equal_numbers(tiny: Path, sums: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    made = make_trainers(tiny, sums, tmp_path, **changes)
    found = {name: measured(trainer) for name, trainer in made.items()}
    assert {f"eval_{name}{end}" for name in METRICS for end in ("", "_se")} == set(found["ebft"])
    assert found["sft"] == found["ebft"]
    assert found["rlvr"] == found["ebft"]
    for trainer in made.values():
        assert (trainer.end_token_ids is not None) == ("document_masks" in changes or "anchors" in changes)
    identities = [trainer.results["ruler"] for trainer in made.values()]
    assert identities[0] == identities[1] == identities[2]
    # Not the same because nothing is looked at: another model gives other numbers, again the same for all.
    for trainer in made.values():
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1.1)
    moved = {name: measured(trainer) for name, trainer in made.items()}
    assert moved["ebft"]["eval_cfm"] != found["ebft"]["eval_cfm"]
    assert moved["sft"] == moved["rlvr"] == moved["ebft"]


def test_the_same_names_at_the_same_steps(tiny: Path, sums: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny, sums)
    own = ["--rewards", "bleu", "--generations", "4", "--max_new_tokens", "3", "--gradient_accumulation_steps", "1"]
    logged: dict[str, list[dict[str, Any]]] = {}
    for command in ("train", "sft", "rlvr"):
        assert run(command, recipe, tmp_path / command, *(own if command == "rlvr" else [])) == 0
        logged[command] = metrics_of(tmp_path / command)
    documented = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
    keys = {key.replace("/bleu/", "/<name>/") for entries in logged.values() for entry in entries for key in entry}
    totals = {"step", "total_flos", "train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
    assert [key for key in keys - totals if f"`{key}`" not in documented] == []

    def evaluated(command: str) -> list[tuple[int, list[str]]]:
        found = [entry for entry in logged[command] if "eval_cfm" in entry]
        return [(entry["step"], sorted(key for key in entry if key.startswith(("eval_", "spent/")))) for entry in found]

    assert evaluated("train") == evaluated("sft") == evaluated("rlvr")
    assert [step for step, _ in evaluated("train")] == [0, 2, 4]  # the last one once
    results = {command: results_of(tmp_path / command) for command in logged}
    for name in METRICS:
        assert len({found["before"][f"eval_{name}"] for found in results.values()}) == 1
    for command, entries in logged.items():
        for spent in ("seconds", "tokens", "flops"):
            column = [entry[f"spent/{spent}"] for entry in entries if "loss" in entry]
            assert all(earlier < later for earlier, later in itertools.pairwise(column))
        assert results[command]["spent"]["flops"] == column[-1]
