"""What the tests of the baselines share: a tiny model with its tokenizer, rows, and runs through the command."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft import cli
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model

needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="needs trl")

ROWS = [{"prompt": f"{a}+{b}=", "completion": f"{a + b}, and that is all"} for a in range(6) for b in range(6)]
SETTINGS: dict[str, Any] = dict(context_length=48, answer_only=False, horizon=4, stride=4, samples=3, samples_every=2)
SETTINGS |= dict(per_device_train_batch_size=4, max_steps=4, learning_rate=1e-3, warmup_steps=0, logging_steps=1)
SETTINGS |= dict(save_steps=2, eval_strategy="steps", eval_steps=2, validation_split=0.2, validation_sequences=4)
SETTINGS |= dict(prompt_separator="", use_cpu=True, disable_tqdm=True)


def write_rows(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_model(folder: Path, **sizes: int) -> Path:
    return save_tiny_model(folder, byte_tokenizer(pad=END), **sizes)


def write_recipe(folder: Path, model: Path, rows: Path, **changes: Any) -> Path:
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "model": str(model), "dataset": str(rows), **changes}))
    return file


def run(command: str, recipe: Path, output: Path, *arguments: object) -> int:
    return cli.main([command, "--config", str(recipe), "--output_dir", str(output), *map(str, arguments)])


def metrics_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def results_of(output: Path) -> dict[str, Any]:
    return json.loads((output / "results.json").read_text())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def make_trainers(tiny: Path, rows: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """The three trainers, built as the commands build them."""
    from ebft import EBFTTrainer
    from ebft.baselines import trl_trainers
    from ebft.config.recipe import load_recipe
    from ebft.runtime import processes
    from ebft.train.sequences import load

    file = write_recipe(folder, tiny, rows, **changes)
    made: dict[str, Any] = {}
    for name in ("train", "sft", "rlvr"):
        own = {"rewards": "bleu", "generations": 4, "max_new_tokens": 5} if name == "rlvr" else {}
        recipe = load_recipe(file, {"output_dir": str(folder / name), **own}, name)
        processes.start(recipe.training)
        method = EBFTTrainer if name == "train" else trl_trainers.method(name)
        made[method.method] = method.prepare(load(recipe))[1]()
    return made
