"""Results of `ebft eval` as tables and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.evaluate.temperatures import TEMPERATURES, TOKENS, metric_at
from ebft.method.measures import Estimate, title, with_error
from ebft.runtime.messages import plot_label

RESULTS_FILE = "results.json"
Results = dict[str, Any]
Differences = dict[tuple[str, str], Estimate]  # by task and metric
Rows = list[tuple[str, ...]]


def read_results(folder: str | Path) -> Results:
    file = Path(folder).expanduser() / RESULTS_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); give folders that `ebft eval` wrote") from None
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


def table(results: Mapping[str, Results], differences: Mapping[str, Differences]) -> Rows:
    """Rows of cells: task, metric, a column for each model, and one for differences of each from the first, if any."""
    values = {label: _values(found) for label, found in results.items()}
    keys = list(dict.fromkeys(key for of_model in values.values() for key in of_model))
    tasks = list(dict.fromkeys(task for task, _ in keys))
    rows = _rows(("task", "metric"), results, differences)
    for task, name in sorted(keys, key=lambda key: tasks.index(key[0])):
        cells = [_cell(of_model.get((task, name))) for of_model in values.values()]
        rows.append((task, title(name), *cells, *_moved(differences, task, name)))
    skipped = {label: _skipped(found) for label, found in results.items()}
    for task, name in dict.fromkeys(key for reasons in skipped.values() for key in reasons):
        cells = [f"skipped: {reasons[task, name]}" if (task, name) in reasons else "" for reasons in skipped.values()]
        rows.append((task, name, *cells, *[""] * (len(rows[0]) - len(cells) - 2)))
    return rows


def temperature_table(results: Mapping[str, Results], differences: Mapping[str, Differences]) -> Rows:
    """Cross-entropy at each temperature, with columns as in `table`; empty without a calibration."""
    points = {label: {point["temperature"]: point for point in _temperatures(r)} for label, r in results.items()}
    rows = _rows(("metric", "temperature"), results, differences)
    for of, tokens in TOKENS.items():
        for temperature in TEMPERATURES:
            cells = [_cell(found.get(temperature, {}).get(f"{of}cross_entropy")) for found in points.values()]
            if any(cells):
                moved = _moved(differences, "calibration", metric_at(temperature, of))
                rows.append((f"cross-entropy, {tokens}", f"{temperature:g}", *cells, *moved))
    return rows if len(rows) > 1 else []


def _rows(names: tuple[str, str], results: Mapping[str, Results], differences: Mapping[str, Differences]) -> Rows:
    first = next(iter(results), "")
    return [(*names, *results, *(f"{label} - {first}" for label, found in differences.items() if found))]


def _values(found: Results) -> dict[tuple[str, str], Mapping[str, Any]]:
    """By task and metric."""
    values: dict[tuple[str, str], Mapping[str, Any]] = {}
    for task, entry in found["tasks"].items():
        values |= {(task, name): value for name, value in entry["metrics"].items()}
        values |= {(task, f"cfm_at_{point['length']}"): point for point in entry.get("profile", ())}
    return values


def _temperatures(found: Results) -> Sequence[Mapping[str, Any]]:
    return found["tasks"].get("calibration", {}).get("temperatures", ())


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


def _moved(differences: Mapping[str, Differences], task: str, name: str) -> list[str]:
    """Cells of the differences from the first model."""
    found = [of_model.get((task, name)) for of_model in differences.values() if of_model]
    return ["" if one is None or math.isnan(one.mean) else with_error(*one, "+") for one in found]


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


def profile_plot(results: Mapping[str, Results], file: Path) -> Path | None:
    """Conditional feature-matching loss over completion length, a curve per model (the paper's figure)."""
    profiles = {label: r["tasks"].get("calibration", {}).get("profile", ()) for label, r in results.items()}
    figure, axis = _figure()
    for label, points in profiles.items():
        if points:
            lengths, values = [p["length"] for p in points], [p["value"] for p in points]
            (line,) = axis.plot(lengths, values, marker="o", markersize=3, label=plot_label(label))
            errors = [p["standard_error"] or 0.0 for p in points]
            lower, upper = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            axis.fill_between(lengths, lower, upper, alpha=0.2, color=line.get_color())
    if axis.lines:
        over_lengths(axis, {p["length"] for points in profiles.values() for p in points})
    axis.set_ylabel("conditional feature-matching loss")
    return _saved(figure, file)


def temperatures_plot(results: Mapping[str, Results], file: Path) -> Path | None:
    """Cross-entropy over temperature, a curve per model: solid for all tokens, dashed for answer tokens."""
    figure, axis = _figure()
    for number, (label, found) in enumerate(results.items()):
        for (of, tokens), line in zip(TOKENS.items(), ("-", "--"), strict=True):
            points = [(p["temperature"], e["value"]) for p in _temperatures(found) if (e := p[f"{of}cross_entropy"])]
            if points:
                name = f"{plot_label(label)}, {tokens}"
                axis.plot(*zip(*points, strict=True), line, color=f"C{number}", marker="o", markersize=3, label=name)
    if axis.lines:
        axis.set(xlabel="temperature", ylabel="cross-entropy (nats per token)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return _saved(figure, file)


def _figure() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(5.2, 3.8))


def _saved(figure: Any, file: Path) -> Path | None:
    """The file, if anything was drawn."""
    import matplotlib.pyplot as plt

    drawn = bool(figure.axes[0].lines)
    if drawn:
        figure.tight_layout()
        figure.savefig(file, dpi=150)
    plt.close(figure)
    return file if drawn else None


def over_lengths(axis: Any, lengths: Iterable[float]) -> None:
    """Dress a plot whose curves go over completion lengths."""
    ticks = sorted(lengths)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("completion length (tokens)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
