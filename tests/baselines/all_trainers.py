"""The three trainers, built as the commands build them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ebft.baselines import rlvr, sft
from ebft.config.recipe import Recipe, load_recipe
from ebft.loading import load_model, load_tokenizer
from ebft.train.sequences import load_data
from ebft.train.training_method import EBFT, Loaded
from tests.baselines.runs import write_recipe


def load_all(recipe: Recipe) -> Loaded:
    tokenizer = load_tokenizer(recipe)
    return Loaded(recipe, *load_data(recipe, tokenizer), load_model(recipe), tokenizer)


def make_trainers(tiny: Path, rows: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    file = write_recipe(folder, tiny, rows, **changes)
    made: dict[str, Any] = {}
    for name, method in {"ebft": EBFT, "sft": sft.METHOD, "rlvr": rlvr.METHOD}.items():
        own = {"rewards": "bleu", "generations": 4, "max_new_tokens": 5} if name == "rlvr" else {}
        recipe = load_recipe(file, {"output_dir": str(folder / name), **own}, "train" if name == "ebft" else name)
        made[name] = method.build(load_all(recipe))
    return made
