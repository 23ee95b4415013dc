"""What a run leaves for people: curves as a picture, and a model card."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

from ebft.config.recipe import Recipe
from ebft.method.measures import NAMES, along_training, smaller_is_better, with_error
from ebft.train import answers_before_after
from ebft.train.training_method import TrainingMethod
from ebft.version import __version__

CURVES = "curves.png"
PANELS = (
    ("eval_cfm", "feature-matching loss (validation)"),
    ("eval_cross_entropy", "cross-entropy (validation)"),
    ("reward", "reward"),
    ("ebft/cfm", "feature-matching loss (training)"),
    ("ebft/distinct", "share of distinct completions"),
    ("grad_norm", "gradient norm"),
)


SHARES = ("ebft/distinct",)
FEW_POINTS = 5
LEAST_SPAN = 0.5  # of the largest value


def vertical_range(values: Sequence[float], errors: Sequence[float], is_share: bool = False) -> tuple[float, float]:
    """Where an axis begins and ends: a share from 0 to 1; others so that a change of a few percent looks like one.

    Drawn from the smallest value to the largest, noise would fill the panel and look like a trend.
    """
    if is_share:
        return -0.02, 1.02
    low = min(v - e for v, e in zip(values, errors, strict=True))
    high = max(v + e for v, e in zip(values, errors, strict=True))
    span = max(high - low, LEAST_SPAN * max(abs(low), abs(high))) or 1.0
    middle = (low + high) / 2
    bottom, top = middle - 0.55 * span, middle + 0.55 * span
    return (0.0 if bottom < 0 <= low else bottom), top


def read_metrics(output: Path) -> list[dict[str, Any]]:
    file = output / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def curves(output: Path) -> Path | None:
    """`curves.png`, one panel per metric, with standard errors where there are any."""
    entries = read_metrics(output)
    panels = [(name, title, found) for name, title in PANELS if (found := along_training(entries, name))]
    if not panels:
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.1 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, title, found) in zip(axes.flat, panels, strict=False):
        points = [(step, e[name], e.get(f"{name}_se") or 0.0) for step, e in found.items()]
        steps, values, errors = zip(*points, strict=True)
        axis.plot(steps, values, marker="o" if len(points) < 20 else None, markersize=3)
        if any(errors):
            lower, upper = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            axis.fill_between(steps, lower, upper, alpha=0.2)
        few = f" (only {len(points)} point{'s' * (len(points) > 1)})" if len(points) < FEW_POINTS else ""
        axis.set_title(f"{title}{few}", fontsize=10)
        axis.set_xlabel("step")
        axis.set_xlim(left=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylim(*vertical_range(values, errors, is_share=name in SHARES))
        axis.grid(alpha=0.3)
    figure.tight_layout()
    file = output / CURVES
    figure.savefig(file, dpi=120)
    plt.close(figure)
    return file


TITLES = ("on held-out sequences", "before", "after", "change")


def before_and_after(results: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Rows under TITLES: the metrics that a table shows. The error of a change is that of the paired difference."""
    rows = []
    for key, name in NAMES.items():
        if f"eval_{key}" in results.get("after", {}):
            values = (results.get(when, {}) for when in ("before", "after", "change"))
            pairs = [(found.get(f"eval_{key}"), found.get(f"eval_{key}_se")) for found in values]
            rows.append((name, with_error(*pairs[0]), with_error(*pairs[1]), with_error(*pairs[2], "+")))
    return rows


def verdict(results: dict[str, Any]) -> list[str]:
    """What the paired changes are evidence of, in words: by Student's t, since sequences may be few.

    Nothing where no change was measured.
    """
    try:
        from scipy.stats import t
    except ImportError:  # training needs no more of scipy than this: the table stands without these words
        return []
    better, worse = (f"{word} by more than chance would explain (p < 0.05)" for word in ("better", "worse"))
    unclear = "no evidence of a change"
    found: dict[str, list[str]] = {better: [], worse: [], unclear: []}
    change, sequences = results.get("change", {}), (results.get("ruler") or {}).get("validation_sequences", 0)
    if sequences < 2:
        return []
    for key, name in NAMES.items():
        value, error = change.get(f"eval_{key}"), change.get(f"eval_{key}_se")
        if value is None or error is None or math.isnan(error):
            continue
        improved = (value < 0) == smaller_is_better(key)
        by_chance = 2 * t.sf(abs(value / error), sequences - 1) >= 0.05 if error else value == 0
        reading = unclear if by_chance else better if improved else worse
        found[reading].append(name.partition(" (")[0])
    return [f"{reading}: {'; '.join(names)}" for reading, names in found.items() if names]


def _header(key: str, names: Sequence[str]) -> list[str]:
    """Lines of the card's header that link to the hub: names there, not files and folders here."""
    hub = [name.partition(":")[0] for name in names if name.count("/") == 1 and not Path(name).expanduser().exists()]
    return [f"{key}: [{', '.join(hub)}]"] if hub else []


def of_checkpoint(title: str, source: str, recipe: Path) -> str:
    """The card of a model that no finished run has left: where it comes from, and the recipe if there is one."""
    settings = ["", "```yaml", recipe.read_text(encoding="utf-8").strip(), "```"] if recipe.is_file() else []
    lines = [
        "---",
        "library_name: transformers",
        "tags: [ebft]",
        "---",
        "",
        f"# {title}",
        "",
        f"Exported from `{source}`.",
    ]
    return "\n".join([*lines, *settings, "", _versions(), ""])


def _versions() -> str:
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"ebft {__version__}, {versions}, Python {platform.python_version()}."


def _answers(results: dict[str, Any]) -> list[str]:
    if "answers" not in results:
        return []
    title = "Held-out prompts, how their text goes on, and what the model wrote before and after training:"
    return [title, "", "```text", *answers_before_after.lines(results["answers"]), "```", ""]


def write(folder: Path, title: str, recipe: Recipe, results: dict[str, Any], method: TrainingMethod) -> Path:
    """`README.md` in the folder of a model: what it is, what it was measured at, and how it was made."""
    processes = recipe.training.world_size
    launch = f" --launch {processes}" if processes > 1 else ""
    table = [f"| {' | '.join(row)} |" for row in (TITLES, ("---",) * len(TITLES), *before_and_after(results))]
    text = "\n".join(
        [
            "---",
            "library_name: transformers" if not recipe.model.adapted else "library_name: peft",
            f"tags: {method.tags}",
            *_header("base_model", [recipe.model.model]),
            *_header("datasets", recipe.data.dataset),
            "---",
            "",
            f"# {title}",
            "",
            f"`{recipe.model.model}` fine-tuned with {method.title} on {', '.join(recipe.data.dataset)}.",
            "",
            *table,
            "",
            "± is the standard error over sequences; that of a change is of the differences sequence by sequence, "
            "which p tests by Student's t.",
            "",
            *(f"- {line}" for line in verdict(results)),
            "",
            *_answers(results),
            f"{results.get('steps')} steps of {method.details(recipe)}",
            f"Made by `ebft {recipe.command} --config recipe.yaml{launch}`, all other settings as they are by default:",
            "",
            "```yaml",
            yaml.safe_dump(recipe.given, sort_keys=False, allow_unicode=True).strip(),
            "```",
            "",
            "![curves](curves.png)",
            "",
            _versions(),
            "",
        ]
    )
    file = folder / "README.md"
    file.write_text(text, encoding="utf-8")
    return file
