"""Whether calibration would measure a model on text that it was trained on, as its run's folder tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ebft.config.evaluation import EvalOptions
from ebft.runtime.files import read_json


def seen_in_training(model: str, options: EvalOptions) -> str | None:
    """A warning with the options that choose the documents a run held out; None if there is nothing to warn about."""
    settings = _settings_of_run(Path(model).expanduser())
    if options.calibration_data is None or options.held_out or options.data.test_split or settings is None:
        return None
    source = _place(options.calibration_data)
    if source not in [_place(dataset) for dataset in settings.get("dataset") or []]:
        return None
    warning = f"{model} was trained on {options.calibration_data}, so these numbers are of text that it has seen"
    held_out = settings.get("validation_split")
    if settings.get("validation_dataset") is not None or not held_out:
        return f"{warning}; give other --calibration-data"
    chosen = f"--held-out {held_out:g} --split-seed {settings.get('split_seed', 0)}"
    if test_split := settings.get("test_split"):
        chosen += f" --test-split {test_split:g}"
    if (limit := settings.get("limit_documents")) is not None:
        chosen += f" --limit-documents {limit}"
    return f"{warning}; for the documents that it held out add {chosen}"


def _settings_of_run(folder: Path) -> dict[str, Any] | None:
    """Of a run's folder, or of a model or checkpoint inside one."""
    for place in (folder, folder.parent):
        found = read_json(place / "resolved.json")
        if isinstance(found, dict):
            return found
    return None


def _place(source: str) -> str:
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source
