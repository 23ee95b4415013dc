"""`ebft sft` and `ebft rlvr` on 1 and 2 processes (gloo, CPU)."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from ebft import cli
from tests.baselines.runs import metrics_of, results_of, write_recipe
from tests.distributed import group

OWN = "def even(completion, row):\n    if len(completion) % 2:\n        raise ValueError('odd')\n    return 1.0\n"


def work(arguments: list[str], own: str) -> int:
    sys.path.insert(0, own)
    return cli.main(arguments)


def trained(recipe: Path, command: str, processes: int) -> Path:
    folder = recipe.parent
    output = folder / f"{command}-{processes}"
    arguments = [command, "--config", str(recipe), "--output_dir", str(output)]
    arguments += ["--per_device_train_batch_size", str(8 // processes)]
    variables = {"EBFT_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    ended = group.run(processes, work, arguments, str(folder), folder=folder, variables=variables)
    assert ended.codes == [0] * processes, ended.said
    return output


def test_sft_is_the_same_training(tiny: Path, sums: Path, tmp_path: Path) -> None:
    # 3 steps: the 4th would be the short one at the end of the epoch, which accelerate fills up on several processes.
    recipe = write_recipe(tmp_path, tiny, sums, samples_every=1, answer_only=True, max_steps=3)
    one, two = (trained(recipe, "sft", processes) for processes in (1, 2))
    for name in ("eval_cross_entropy", "eval_cfm"):
        assert results_of(two)["before"][name] == pytest.approx(results_of(one)["before"][name], rel=1e-6)
    for mine, other in zip(metrics_of(one), metrics_of(two), strict=True):
        for name in ("loss", "grad_norm", "spent/tokens", "spent/flops", "eval_cross_entropy"):
            assert (name in mine) == (name in other)
            if name in mine:
                assert other[name] == pytest.approx(mine[name], rel=1e-3), (mine["step"], name)
    assert (two / "samples" / "step-000001.md").exists()
    assert (two / "final" / "model.safetensors").exists()


def test_rlvr_counts_what_all_processes_did(tiny: Path, sums: Path, tmp_path: Path) -> None:
    (tmp_path / "own_even.py").write_text(OWN)
    changes: dict[str, Any] = {"rewards": "own_even:even", "generations": 8, "max_new_tokens": 4}
    two = trained(write_recipe(tmp_path, tiny, sums, gradient_accumulation_steps=1, **changes), "rlvr", 2)
    results, logged = results_of(two), [e for e in metrics_of(two) if "loss" in e]
    # 8 answers per step, 4 with each process, to one prompt of 4 tokens.
    assert (results["steps"], results["spent"]["tokens"]) == (4, 4 * 4)
    generated = sum(8 * entry["completions/mean_length"] for entry in logged)
    assert results["spent"]["generated_tokens"] == pytest.approx(generated)
    # Every answer got 1, or raised.
    assert logged[-1]["reward_counts/raised"] == pytest.approx(sum(8 * (1 - e["reward"]) for e in logged))
    assert (two / "checkpoint-4" / "reward_counts.json").exists()
