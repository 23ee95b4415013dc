"""Results of `ebft eval` as a table, and the profile of the feature-matching loss as a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebft.config.evaluation import HARMLESS, NOT_SET
from ebft.errors import ConfigError
from ebft.method.measures import Estimate, title, with_error
from ebft.runtime.messages import plot_label
from ebft.tasks.temperatures import TEMPERATURES, TOKENS, metric_at

RESULTS_FILE = "results.json"
Results = dict[str, Any]
Differences = dict[tuple[str, str], Estimate]  # by task and metric


def read_results(folder: str | Path) -> Results:
    file = Path(folder).expanduser() / RESULTS_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{file}: no such file; give folders that `ebft eval` wrote") from None
    except json.JSONDecodeError:
        raise ConfigError(f"{file} is not valid JSON") from None
    if not isinstance(found, dict) or "tasks" not in found:
        raise ConfigError(f"{file} holds no results of `ebft eval`")
    return found


def is_scored(entry: Mapping[str, Any]) -> bool:
    """Whether a task has its scores: `ebft eval --no-score` leaves them for later."""
    return not any(part.get("unscored") for part in entry.get("parts", [entry]))


def labels(names: Sequence[str]) -> list[str]:
    """Short names that tell models apart: as many last parts of their paths as it takes. The final model of a run has
    the run's name."""
    parts = [Path(name).parts or (name,) for name in names]
    parts = [p[:-1] if len(p) > 1 and p[-1] == "final" else p for p in parts]
    for count in range(1, max(map(len, parts), default=1) + 1):
        short = ["/".join(p[-count:]) for p in parts]
        if len(set(short)) == len(short):
            return short
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def table(results: Mapping[str, Results], differences: Mapping[str, Differences]) -> list[tuple[str, ...]]:
    """Rows of cells: task, metric, a column for each model, and one for differences of each from the first.

    Models without any difference have no such column.
    """
    differences = {label: found for label, found in differences.items() if found}
    first = next(iter(results), "")
    metrics: dict[tuple[str, str], None] = {}
    for found in results.values():
        for task, entry in found["tasks"].items():
            metrics |= {(task, name): None for name in entry["metrics"]}
            metrics |= {(task, f"cfm_at_{point['length']}"): None for point in entry.get("profile", ())}
    rows: list[tuple[str, ...]] = [("task", "metric", *results, *(f"{label} - {first}" for label in differences))]
    for task, name in sorted(metrics, key=lambda row: list(dict.fromkeys(t for t, _ in metrics)).index(row[0])):
        cells = []
        for found in results.values():
            entry = found["tasks"].get(task, {"metrics": {}})
            values = dict(entry["metrics"])
            values |= {f"cfm_at_{point['length']}": point for point in entry.get("profile", ())}
            cells.append(_cell(values.get(name)))
        cells += [_difference_cell(found.get((task, name))) for found in differences.values()]
        rows.append((task, title(name), *cells))
    skipped = {label: _skipped(found) for label, found in results.items()}
    for task, name in dict.fromkeys(key for reasons in skipped.values() for key in reasons):
        cells = [f"skipped: {reasons[task, name]}" if (task, name) in reasons else "" for reasons in skipped.values()]
        rows.append((task, name, *cells, *[""] * len(differences)))
    return rows


def temperature_table(results: Mapping[str, Results], differences: Mapping[str, Differences]) -> list[tuple[str, ...]]:
    """Cross-entropy at each temperature, with columns as in `table`; empty without a calibration."""
    first = next(iter(results), "")
    differences = {label: found for label, found in differences.items() if found}
    points = {
        label: {point["temperature"]: point for point in found["tasks"].get("calibration", {}).get("temperatures", ())}
        for label, found in results.items()
    }
    rows = []
    for of, tokens in TOKENS.items():
        for temperature in TEMPERATURES:
            cells = [_cell(found.get(temperature, {}).get(f"{of}cross_entropy")) for found in points.values()]
            key = ("calibration", metric_at(temperature, of))
            moved = [_difference_cell(found.get(key)) for found in differences.values()]
            if any(cells):
                rows.append((f"cross-entropy, {tokens}", f"{temperature:g}", *cells, *moved))
    return (
        [("metric", "temperature", *results, *(f"{label} - {first}" for label in differences)), *rows] if rows else []
    )


def _skipped(found: Results) -> dict[tuple[str, str], str]:
    """Why sets of problems (languages) could not be scored, by task and set."""
    parts = [(task, part) for task, entry in found["tasks"].items() for part in entry.get("parts", [entry])]
    return {(task, part["name"]): part["skipped"] for task, part in parts if part.get("skipped")}


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    if entry["value"] is None:
        return "not a number"
    return f"{with_error(entry['value'], entry.get('standard_error'))} (n={entry['count']})"


def _difference_cell(difference: Estimate | None) -> str:
    if difference is None or math.isnan(difference.mean):
        return ""
    return with_error(*difference, "+")


def markdown(
    results: Mapping[str, Results], differences: Mapping[str, Differences], comparison_notes: Sequence[str] = ()
) -> str:
    rows = table(results, differences)
    lines = ["# Evaluation", "", "Values ± standard errors, with the number of problems or sequences.", ""]
    if any(differences.values()):
        lines[-2] += " Differences are paired: by sequence, or by problem."
    lines += _rows_of_markdown(rows)
    if at_temperatures := temperature_table(results, differences):
        lines += ["", *_rows_of_markdown(at_temperatures)]
    lines += [f"\n{note}" for note in comparison_notes]
    for label, found in results.items():
        for task, entry in found["tasks"].items():
            lines += [f"\n{label}, {task}: {note}" for note in entry.get("notes", ())]
        versions = found.get("versions", {})
        lines += ["", f"{label}: `{found.get('model')}`, seed {found.get('seed')}, ebft {versions.get('ebft')}, "]
        lines[-1] += f"torch {versions.get('torch')}, transformers {versions.get('transformers')}."
    return "\n".join(lines) + "\n"


def _rows_of_markdown(rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


# Settings that only the profile depends on.
_PROFILE = ("profile_lengths", "profile_stride")


def check_same_space(results: Mapping[str, Results]) -> list[str]:
    """Feature-matching losses compare only under one feature network, on the same sequences and anchors.

    Returns notes on models whose profile alone was measured differently; everything else of them compares.
    """
    found = {label: r["tasks"]["calibration"] for label, r in results.items() if "calibration" in r["tasks"]}
    first = next(iter(found), "")
    notes = []
    for label, entry in found.items():
        mine, theirs = entry["features"], found[first]["features"]
        spaces = [name for name in ("weights", "taps", "pooling", "normalize") if mine[name] != theirs[name]]
        if spaces:
            differ = ", ".join(f"{name}: {theirs[name]} and {mine[name]}" for name in spaces)
            raise ConfigError(
                f"{first} and {label} were measured in different feature spaces ({differ}; of {theirs['model']} and "
                f"{mine['model']}); evaluate both with the same --feature-model"
            )
        pairs = [found[one]["settings"] for one in (first, label)]
        settings = {name: tuple(one.get(name, NOT_SET) for one in pairs) for name in {**pairs[0], **pairs[1]}}
        differ_in = {
            n: (other, value) for n, (other, value) in settings.items() if other != value and n not in HARMLESS
        }
        shown = ", ".join(f"{name}: {other} and {value}" for name, (other, value) in differ_in.items())
        if any(name not in _PROFILE for name in differ_in):
            raise ConfigError(
                f"{first} and {label} were calibrated with different settings ({shown}), so their losses do not "
                "compare; evaluate both with the same"
            )
        if differ_in:
            notes.append(
                f"calibration: the profiles of {first} and {label} were measured differently ({shown}) and do not "
                "compare; all else does"
            )
    return notes


def same_profile(one: Results, other: Results) -> bool:
    """Whether two models' profiles were measured in the same way."""
    settings = [results["tasks"].get("calibration", {}).get("settings", {}) for results in (one, other)]
    return all(settings[0].get(name) == settings[1].get(name) for name in _PROFILE)


def profile_plot(results: Mapping[str, Results], file: Path) -> Path | None:
    """Conditional feature-matching loss over completion length, a curve per model that was measured as the first
    was (the paper's figure)."""
    none: Results = {"tasks": {}}
    first = next((r for r in results.values() if r["tasks"].get("calibration", {}).get("profile")), none)
    curves = {
        label: found["tasks"]["calibration"]["profile"]
        for label, found in results.items()
        if found["tasks"].get("calibration", {}).get("profile") and same_profile(found, first)
    }
    if not curves:
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.2, 3.8))
    for label, points in curves.items():
        lengths = [point["length"] for point in points]
        values = [point["value"] for point in points]
        errors = [point["standard_error"] or 0.0 for point in points]
        (line,) = axis.plot(lengths, values, marker="o", markersize=3, label=plot_label(label))
        lower, upper = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
        axis.fill_between(lengths, lower, upper, alpha=0.2, color=line.get_color())
    over_lengths(axis, {point["length"] for points in curves.values() for point in points})
    axis.set_ylabel("conditional feature-matching loss")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return file


def temperatures_plot(results: Mapping[str, Results], file: Path) -> Path | None:
    """Cross-entropy over temperature, a curve per model: solid for all tokens, dashed for answer tokens."""
    curves = {label: r["tasks"].get("calibration", {}).get("temperatures", ()) for label, r in results.items()}
    if not any(curves.values()):
        return None
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.2, 3.8))
    for number, (label, points) in enumerate(curves.items()):
        for (of, tokens), line in zip(TOKENS.items(), ("-", "--"), strict=True):
            found = [(p["temperature"], e["value"]) for p in points if (e := p[f"{of}cross_entropy"]) is not None]
            if found:
                name = f"{plot_label(label)}, {tokens}"
                axis.plot(*zip(*found, strict=True), line, color=f"C{number}", marker="o", markersize=3, label=name)
    axis.set_xlabel("temperature")
    axis.set_ylabel("cross-entropy (nats per token)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return file


def over_lengths(axis: Any, lengths: Iterable[float]) -> None:
    """Dress a plot whose curves go over completion lengths."""
    ticks = sorted(lengths)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("completion length (tokens)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
