"""Results of `ebft eval` as tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.method.measures import TOKENS, Estimate, metric_at, title, with_error
from ebft.runtime.files import read_json
from ebft.runtime.messages import plot_label

RESULTS_FILE = "results.json"
Results = dict[str, Any]  # as JSON has them: of a model, of one of its tasks, or a metric
Differences = dict[tuple[str, str], Estimate]  # by task and metric
Rows = list[tuple[str, ...]]


def read_results(folder: str | Path) -> Results:
    file = Path(folder).expanduser() / RESULTS_FILE
    found = read_json(file)
    if not isinstance(found, dict) or "tasks" not in found:
        raise ConfigError(f"{file} is not there, or holds no results of `ebft eval`; give folders that it wrote")
    return found


def parts_of(entry: Results) -> Sequence[Results]:
    """The sets of problems of a task, such as languages."""
    return entry.get("parts", [entry])


def is_scored(entry: Results) -> bool:
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


def table(results: Mapping[str, Results], differences: Mapping[str, Differences], temperatures: bool = False) -> Rows:
    """Rows of cells: task, metric, a column for each model, and one for differences of each from the first, if any.
    On request with cross-entropy at every temperature."""
    values = {label: _values(found, temperatures) for label, found in results.items()}
    moved = {label: found for label, found in differences.items() if found}
    rows: Rows = [("task", "metric", *values, *(f"{label} - {next(iter(values))}" for label in moved))]
    tasks = list(dict.fromkeys(task for found in results.values() for task in found["tasks"]))
    keys = dict.fromkeys(key for of_model in values.values() for key in of_model)
    for key in sorted(keys, key=lambda key: tasks.index(key[0])):
        found = [of_model.get(key) for of_model in moved.values()]
        of_first = ["" if one is None or math.isnan(one.mean) else with_error(*one, "+") for one in found]
        rows.append((key[0], title(key[1]), *(_cell(of_model.get(key)) for of_model in values.values()), *of_first))
    return rows


def _values(results: Results, temperatures: bool) -> dict[tuple[str, str], Results]:
    found: dict[tuple[str, str], Results] = {}
    for task, entry in results["tasks"].items():
        found |= {(task, name): value for name, value in entry["metrics"].items()}
        found |= {(task, f"cfm_at_{point['length']}"): point for point in entry.get("profile", ())}
        for tokens in TOKENS if temperatures else ():
            found |= {(task, metric_at(t, tokens)): value for t, value in _at_temperatures(entry, tokens)}
    for task, entry in results["tasks"].items():  # below the numbers
        found |= {(task, part["name"]): part for part in parts_of(entry) if part.get("skipped")}
    return found


def _at_temperatures(entry: Results, tokens: str) -> list[tuple[float, Results]]:
    points = [(point["temperature"], point[f"{tokens}cross_entropy"]) for point in entry.get("temperatures", ())]
    return [(temperature, value) for temperature, value in points if value is not None]


def _cell(entry: Results | None) -> str:
    if entry is None or "skipped" in entry:
        return f"skipped: {entry['skipped']}" if entry else ""
    known = with_error(entry["value"], entry.get("standard_error")) or "not a number"
    return f"{known} (n={entry['count']})"


def markdown(results: Mapping[str, Results], differences: Mapping[str, Differences]) -> str:
    lines = ["# Evaluation", "", "Values ± standard errors, with the number of problems or sequences."]
    if any(differences.values()):
        lines[-1] += " Differences are paired: by sequence, or by problem."
    rows = table(results, differences, temperatures=True)
    cells = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    lines += ["", cells[0], "|" + "---|" * len(rows[0]), *cells[1:]]
    for label, found in results.items():
        for task, entry in found["tasks"].items():
            lines += [f"\n{label}, {task}: {note}" for note in entry.get("notes", ())]
        lines += ["", f"{label}: `{found['model']}`, seed {found['seed']}, ebft {found['versions']['ebft']}."]
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
    `temperatures.png`, cross-entropy over temperature, dashed for answer tokens; a curve for each model, with bars of
    one standard error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for picture in ("profile", "temperatures"):
        figure, axis = plt.subplots(figsize=(5.2, 3.8))
        seen: set[float] = set()
        for number, (label, found) in enumerate(results.items()):
            entry = found["tasks"].get("calibration", {})
            curves = [("-", plot_label(label), [(point["length"], point) for point in entry.get("profile", ())])]
            if picture == "temperatures":
                names = {tokens: f"{plot_label(label)}, {name}" for tokens, name in TOKENS.items()}
                curves = [("--" if of else "-", name, _at_temperatures(entry, of)) for of, name in names.items()]
            for style, name, points in curves:
                known = [(x, y["value"], y["standard_error"] or 0.0) for x, y in points if y["value"] is not None]
                if known:
                    x, y, error = zip(*known, strict=True)
                    axis.errorbar(x, y, error, fmt=f"C{number}o{style}", markersize=3, label=name)
                    seen |= {*x}
        if seen:
            if picture == "profile":
                over_lengths(axis, seen)
                axis.set_ylabel("conditional feature-matching loss")
            else:
                axis.set(xlabel="temperature", ylabel="cross-entropy (nats per token)")
                axis.grid(alpha=0.3)
                axis.legend(fontsize=8)
            figure.tight_layout()
            figure.savefig(folder / f"{picture}.png", dpi=150)
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
