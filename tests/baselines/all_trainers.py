"""The three trainers, built as the commands build them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ebft.baselines import rlvr, sft
from ebft.config.recipe import load_recipe
from ebft.runtime import processes
from ebft.train.sequences import load
from ebft.train.trainer import EBFTTrainer
from tests.baselines.runs import write_recipe


def make_trainers(tiny: Path, rows: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    file = write_recipe(folder, tiny, rows, **changes)
    made: dict[str, Any] = {}
    for name, method in {"ebft": EBFTTrainer, "sft": sft.TRAINER, "rlvr": rlvr.TRAINER}.items():
        own = {"rewards": "bleu", "generations": 4, "max_new_tokens": 5} if name == "rlvr" else {}
        recipe = load_recipe(file, {"output_dir": str(folder / name), **own}, "train" if name == "ebft" else name)
        processes.start(recipe.training)
        made[name] = method.prepare(load(recipe))[1]()
    return made
