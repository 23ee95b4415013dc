"""What a run's folder says: how it validated, as options of `ebft eval`, and what continues it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.runtime.files import read_json
from ebft.runtime.launch import LAUNCHED


def settings_of_run(folder: Path) -> dict[str, Any] | None:
    """Of a run's folder, or of a model or checkpoint inside one."""
    for place in (folder, folder.parent):
        found = read_json(place / "resolved.json")
        if isinstance(found, dict):
            return found
    return None


def how_to_resume(folder: Path, processes: int | None = None) -> str:
    """What continues a run: a command to paste, unless another launcher than ours started its processes.

    processes: of the run, where this process is none of them.
    """
    if "WORLD_SIZE" in os.environ and LAUNCHED not in os.environ:
        return "the same command and --resume"
    number = processes or int(os.environ.get("WORLD_SIZE") or 1)
    method = (read_json(folder / "results.json") or {}).get("method", "ebft")
    launch = ["--launch", str(number)] if number > 1 else []
    command = ["ebft", "train" if method == "ebft" else method, "--config", str(folder / "recipe.yaml")]
    return shlex.join([*command, *launch, "--resume"])


# What a run says about its text, and nothing about another one.
_OF_THE_TEXT = ("limit_documents", "test_split", "split_seed")


def place_of(source: str) -> str:
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def validation_options(
    folder: str, borrowed: Mapping[str, tuple[str, type]], text: str | None = None
) -> dict[str, Any]:
    """The options that measure what the run measured, on the same text.

    borrowed: names of options that are settings of training, and the names they have there.
    text: measure on this instead, which is looked at as a whole.
    """
    settings = settings_of_run(Path(folder).expanduser())
    if settings is None:
        raise ConfigError(f"like={folder}: no run is there; give its output folder, which has a resolved.json")
    try:
        return _options(folder, settings, borrowed, text)
    except KeyError as missing:
        raise ConfigError(
            f"like={folder}: its resolved.json has no {missing}, as that of a run by the Python trainer or by another "
            "version; give the options themselves"
        ) from None


def _options(
    folder: str, settings: dict[str, Any], borrowed: Mapping[str, tuple[str, type]], text: str | None
) -> dict[str, Any]:
    found = {name: settings[inner] for name, (inner, _) in borrowed.items() if inner in settings}
    found |= {
        "model": [folder],
        "rollouts": settings.get("eval_samples") or settings["samples"],
        "seed": settings["eval_seed"],
        "feature_model": settings.get("feature_model") or settings["model"],
    }
    theirs = settings.get("validation_dataset") or (settings["dataset"][0] if len(settings["dataset"]) == 1 else None)
    if text is not None and (theirs is None or place_of(text) != place_of(theirs)):
        return {name: value for name, value in found.items() if name not in _OF_THE_TEXT}
    found["sequences"] = settings["validation_sequences"]
    if settings.get("validation_dataset") is not None:
        of_text = (settings["validation_dataset"], settings["validation_dataset_split"], 0.0)
        found["test_split"] = 0.0  # of the other dataset
    elif not settings["validation_split"]:
        raise ConfigError(f"like={folder}: that run held no text out; give --calibration-data instead")
    elif len(settings["dataset"]) > 1:
        raise ConfigError(
            f"like={folder}: that run held out text of {len(settings['dataset'])} datasets, mixed; `ebft eval` "
            "takes one: give --calibration-data instead"
        )
    else:
        of_text = (settings["dataset"][0], settings["dataset_split"], settings["validation_split"])
    return found | dict(zip(("calibration_data", "calibration_split", "held_out"), of_text, strict=True))
