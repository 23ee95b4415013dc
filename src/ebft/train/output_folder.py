"""Whether a run may begin in a folder: answered before torch is imported, which takes seconds."""

from __future__ import annotations

from pathlib import Path

from ebft.config.like_run import how_to_resume
from ebft.train import checkpoints

RECIPE_FILE = "recipe.yaml"  # what was set, by file and flags
LOCK_FILE = "run.lock"  # while a process writes here


def holds_run(folder: Path) -> bool:
    return (folder / RECIPE_FILE).exists() or bool(checkpoints.all_checkpoints(folder))


def refusal(folder: Path, resume: bool) -> str | None:
    """Why a run cannot begin in this folder; None if it can."""
    if holds_run(folder):
        if resume:
            return None
        known = (folder / RECIPE_FILE).exists()  # else a program has left its checkpoints here
        way = f": {how_to_resume(folder)}" if known else " --resume"
        return f"output_dir={folder} already holds a run; choose another folder, or continue it with{way}"
    if folder.is_dir() and any(file.name != LOCK_FILE for file in folder.iterdir()):
        return f"output_dir={folder} is not empty and holds no run; choose another folder"
    return None
