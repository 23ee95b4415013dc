"""Results of `ebft eval` as tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.method.measures import TEMPERATURES, TOKENS, Estimate, metric_at, title, with_error
from ebft.runtime.files import read_json
from ebft.runtime.messages import plot_label

RESULTS_FILE = "results.json"
Results = dict[str, Any]
Key = tuple[str, str]  # task and metric
Differences = dict[Key, Estimate]
Rows = list[tuple[str, ...]]


def read_results(folder: str | Path) -> Results:
    file = Path(folder).expanduser() / RESULTS_FILE
    found = read_json(file)
    if not isinstance(found, dict) or "tasks" not in found:
        raise ConfigError(f"{file} is not there, or holds no results of `ebft eval`; give folders that it wrote")
    return found


def parts_of(entry: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The sets of problems of a task, such as languages."""
    return entry.get("parts", [entry])


def is_scored(entry: Mapping[str, Any]) -> bool:
    """Whether a task has its scores: `ebft eval --no-score` leaves them for later."""
    return not any(part.get("unscored") for part in parts_of(entry))


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


def table(results: Mapping[str, Results], differences: Mapping[str, Differences]) -> Rows:
    """Rows of cells: task, metric, a column for each model, and one for differences of each from the first, if any."""
    values: dict[str, dict[Key, Mapping[str, Any]]] = {label: {} for label in results}
    for label, found in results.items():
        for task, entry in found["tasks"].items():
            values[label] |= {(task, name): value for name, value in entry["metrics"].items()}
            values[label] |= {(task, f"cfm_at_{point['length']}"): point for point in entry.get("profile", ())}
    for label, found in results.items():  # below the numbers
        for task, entry in found["tasks"].items():
            values[label] |= {(task, part["name"]): part for part in parts_of(entry) if part.get("skipped")}
    keys = list(dict.fromkeys(key for of_model in values.values() for key in of_model))
    tasks = list(dict.fromkeys(task for task, _ in keys))
    keys.sort(key=lambda key: tasks.index(key[0]))
    return _rows(("task", "metric"), {key: (key[0], title(key[1])) for key in keys}, values, differences)


def temperature_table(results: Mapping[str, Results], differences: Mapping[str, Differences]) -> Rows:
    """Cross-entropy at each temperature, with columns as in `table`; empty without a calibration."""
    values = {label: {key: entry for _, key, entry in _temperatures(found)} for label, found in results.items()}
    named = {
        key: (f"cross-entropy, {tokens}", f"{temperature:g}")
        for of, tokens in TOKENS.items()
        for temperature in TEMPERATURES
        if any((key := ("calibration", metric_at(temperature, of))) in found for found in values.values())
    }
    return _rows(("metric", "temperature"), named, values, differences) if named else []


def _temperatures(found: Results, of: Iterable[str] = tuple(TOKENS)) -> list[tuple[float, Key, Mapping[str, Any]]]:
    points = found["tasks"].get("calibration", {}).get("temperatures", ())
    return [
        (point["temperature"], ("calibration", metric_at(point["temperature"], tokens)), entry)
        for tokens in of
        for point in points
        if (entry := point[f"{tokens}cross_entropy"]) is not None
    ]


def _rows(
    head: tuple[str, str],
    named: Mapping[Key, tuple[str, str]],
    values: Mapping[str, Mapping[Key, Mapping[str, Any]]],
    differences: Mapping[str, Differences],
) -> Rows:
    moved = {label: found for label, found in differences.items() if found}
    rows: Rows = [(*head, *values, *(f"{label} - {next(iter(values))}" for label in moved))]
    for key, names in named.items():
        cells = [_cell(of_model.get(key)) for of_model in values.values()]
        found = [of_model.get(key) for of_model in moved.values()]
        of_first = ["" if one is None or math.isnan(one.mean) else with_error(*one, "+") for one in found]
        rows.append((*names, *cells, *of_first))
    return rows


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    if "skipped" in entry:
        return f"skipped: {entry['skipped']}"
    if entry["value"] is None:
        return "not a number"
    return f"{with_error(entry['value'], entry.get('standard_error'))} (n={entry['count']})"


def markdown(
    results: Mapping[str, Results], differences: Mapping[str, Differences], comparison_notes: Sequence[str] = ()
) -> str:
    lines = ["# Evaluation", "", "Values ± standard errors, with the number of problems or sequences."]
    if any(differences.values()):
        lines[-1] += " Differences are paired: by sequence, or by problem."
    for rows in (table(results, differences), temperature_table(results, differences)):
        cells = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
        lines += ["", *cells[:1], *["|" + "---|" * len(row) for row in rows[:1]], *cells[1:]]
    lines += [f"\n{note}" for note in comparison_notes]
    for label, found in results.items():
        for task, entry in found["tasks"].items():
            lines += [f"\n{label}, {task}: {note}" for note in entry.get("notes", ())]
        versions = found.get("versions", {})
        lines += ["", f"{label}: `{found.get('model')}`, seed {found.get('seed')}, ebft {versions.get('ebft')}, "]
        lines[-1] += f"torch {versions.get('torch')}, transformers {versions.get('transformers')}."
    return "\n".join(lines) + "\n"


def check_same_space(results: Mapping[str, Results]) -> None:
    """Feature-matching losses compare only under one feature network, on the same sequences and anchors."""
    found = {label: r["tasks"]["calibration"] for label, r in results.items() if "calibration" in r["tasks"]}
    first = next(iter(found), "")
    for label, entry in found.items():
        mine, theirs = ({**e["settings"], **e["features"], "model": None} for e in (entry, found[first]))
        differ = [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n) and n not in HARMLESS]
        if differ:
            shown = ", ".join(f"{name}: {theirs.get(name)} and {mine.get(name)}" for name in differ)
            raise ConfigError(
                f"{first} and {label} were calibrated differently ({shown}), so their losses do not compare; evaluate "
                "both with the same settings and --feature-model"
            )


def draw(results: Mapping[str, Results], folder: Path) -> None:
    """`profile.png`, conditional feature-matching loss over completion length (the paper's figure), and
    `temperatures.png`, cross-entropy over temperature, dashed for answer tokens; a curve for each model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    profile, axis = plt.subplots(figsize=(5.2, 3.8))
    seen: set[float] = set()
    for label, found in results.items():
        if points := found["tasks"].get("calibration", {}).get("profile"):
            lengths, values = [p["length"] for p in points], [p["value"] for p in points]
            seen |= {*lengths}
            (line,) = axis.plot(lengths, values, marker="o", markersize=3, label=plot_label(label))
            errors = [p["standard_error"] or 0.0 for p in points]
            lower, upper = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            axis.fill_between(lengths, lower, upper, alpha=0.2, color=line.get_color())
    if seen:
        over_lengths(axis, seen)
    axis.set_ylabel("conditional feature-matching loss")
    temperatures, axis = plt.subplots(figsize=(5.2, 3.8))
    for number, (label, found) in enumerate(results.items()):
        for (of, tokens), style in zip(TOKENS.items(), ("-", "--"), strict=True):
            if found_points := [(temperature, entry["value"]) for temperature, _, entry in _temperatures(found, [of])]:
                name = f"{plot_label(label)}, {tokens}"
                axis.plot(*zip(*found_points, strict=True), style, color=f"C{number}", marker="o", ms=3, label=name)
    if axis.lines:
        axis.set(xlabel="temperature", ylabel="cross-entropy (nats per token)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for name, figure in (("profile", profile), ("temperatures", temperatures)):
        if figure.axes[0].lines:
            figure.tight_layout()
            figure.savefig(folder / f"{name}.png", dpi=150)
        plt.close(figure)


def over_lengths(axis: Any, lengths: Iterable[float]) -> None:
    """Dress a plot whose curves go over completion lengths."""
    ticks = sorted(lengths)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("completion length (tokens)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
