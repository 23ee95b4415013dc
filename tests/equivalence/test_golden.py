"""Two short seeded runs on a CPU give the committed numbers.

A change that should not move numbers proves it here. A change that should move them says so, and commits new ones:

    PYTHONPATH=src:. python -m tests.equivalence.test_golden > tests/assets/golden.json
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft.config.recipe import load_recipe
from ebft.train.run import train
from tests.baselines.runs import ROWS, make_model, metrics_of, write_rows

GOLDEN = Path(__file__).parents[1] / "assets" / "golden.json"
SETTINGS: dict[str, Any] = {
    "context_length": 48, "samples": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
    "max_steps": 4, "learning_rate": 1e-2, "warmup_steps": 0, "logging_steps": 1, "validation_split": 0.2, "seed": 5,
    # Adam's first steps are signs of gradients, which rounding flips where they are near zero: a large epsilon.
    "adam_epsilon": 1e-2,
    "samples_every": 0, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"gamma": 0.1, "answer_only": False},
    "documents and answers": {
        "document_masks": True, "answer_only": True, "whitening": "both", "kl_weight": 0.1, "horizon": 4, "stride": 4,
    },
}  # fmt: skip
LOGGED = ("reward", "reward_std", "ebft/alignment", "ebft/diversity", "ebft/cfm", "ebft/distinct", "ebft/anchors")
LOGGED += ("ebft/packed_tokens", "ebft/cross_entropy", "entropy", "kl", "num_tokens", "learning_rate")
VALIDATED = tuple(f"eval_{name}" for name in ("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy"))


def numbers_of(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a tiny model in a folder, and return what was logged at each step and the validation at the end."""
    model, rows, output = make_model(folder / "model"), write_rows(folder / "rows.jsonl", ROWS), folder / "out"
    given = {"model": str(model), "dataset": str(rows), "output_dir": str(output)}
    results = train(load_recipe(None, {**given, **SETTINGS, **settings}))
    return {
        "steps": [{name: e[name] for name in LOGGED if name in e} for e in metrics_of(output) if "reward" in e],
        "after": {name: results["after"][name] for name in VALIDATED},
    }


@pytest.mark.parametrize("name", RUNS)
def test_a_seeded_run_gives_the_committed_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBFT_CACHE", str(tmp_path / "cache"))
    expected, found = json.loads(GOLDEN.read_text())[name], numbers_of(tmp_path, RUNS[name])
    assert len(found["steps"]) == len(expected["steps"]) == SETTINGS["max_steps"]
    for step, (mine, committed) in enumerate(zip(found["steps"], expected["steps"], strict=True), start=1):
        assert mine == pytest.approx(committed, rel=1e-4, abs=1e-7), f"step {step}"
    assert found["after"] == pytest.approx(expected["after"], rel=1e-4)


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests: sums in the same order on any machine
    made = {}
    for name, settings in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["EBFT_CACHE"] = f"{folder}/cache"
            made[name] = numbers_of(Path(folder), settings)
    print(json.dumps(made, indent=1))
