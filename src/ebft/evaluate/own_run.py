"""What the folder of a model's own run says about a calibration: on text that it has seen, or not as it validated."""

from __future__ import annotations

from pathlib import Path

from ebft.config.evaluation import BORROWED, EvalOptions
from ebft.config.like_run import place_of, settings_of_run, validation_options
from ebft.errors import ConfigError


def seen_in_training(model: str, options: EvalOptions) -> str | None:
    """A warning with the option that chooses the documents a run held out; None if there is nothing to warn about."""
    settings = settings_of_run(Path(model).expanduser())
    if options.calibration_data is None or options.held_out or options.data.test_split or settings is None:
        return None
    source = place_of(options.calibration_data)
    if source not in [place_of(dataset) for dataset in settings.get("dataset") or []]:
        return None
    warning = f"{model} was trained on {options.calibration_data}, so these numbers are of text that it has seen"
    held_out = settings.get("validation_split")
    if settings.get("validation_dataset") is not None or not held_out:
        return f"{warning}; give other --calibration-data"
    return f"{warning}; --like {model} measures on what it held out"


def measured_otherwise(model: str, options: EvalOptions) -> str | None:
    """A warning that these numbers are not those of the run; None if they are, or if there is no run."""
    try:
        theirs = validation_options(model, BORROWED)
    except ConfigError:
        return None
    ours = {name: value for name, value in options.values("calibration").items() if name in BORROWED}
    different = [
        f"{name} {ours[name]!r} instead of {theirs[name]!r}"
        for name in ours
        if theirs.get(name, ours[name]) != ours[name]
    ]
    if not different:
        return None
    return f"not measured as {model} validated: {', '.join(different)}; --like {model} measures the same way"
