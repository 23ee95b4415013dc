"""Results of `ebft eval`, of one model or several beside each other: tables, a picture, and paired differences.

Results hold means; what each sequence and each program gave is in the files beside them. A corpus score is no mean over
sentences, so translations have no differences here.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ebft.config.evaluation import HARMLESS
from ebft.errors import ConfigError
from ebft.evaluate.scoring import KINDS, Results, kinds_by_problem, mean_of, outcomes_file, over_sets, pass_at_k
from ebft.method import measures
from ebft.method.measures import TOKENS, Estimate, metric_at, title, with_error
from ebft.runtime.files import read_json, read_jsonl
from ebft.runtime.messages import plot_label
from ebft.sandbox.python_tests import PASSED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS_FILE = "results.json"
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
    """Short names that tell models apart. The final model of a run has the run's name."""
    paths = ((name, Path(name)) for name in names)
    short = [(path.parent if path.name == "final" else path).name or name for name, path in paths]
    return short if len({*short}) == len(short) else [f"{name} ({number})" for number, name in enumerate(names, 1)]


def table(results: Mapping[str, Results], differences: Mapping[str, Differences], temperatures: bool = False) -> Rows:
    """Rows of cells: task, metric, a column for each model, and one for differences of each from the first, if any.
    On request with cross-entropy at every temperature."""
    values = {label: _values(found, temperatures) for label, found in results.items()}
    moved = {label: found for label, found in differences.items() if found}
    rows: Rows = [("task", "metric", *values, *(f"{label} - {next(iter(values))}" for label in moved))]
    tasks = list(dict.fromkeys(task for found in results.values() for task in found["tasks"]))
    keys = dict.fromkeys(key for of_model in values.values() for key in of_model)
    for key in sorted(keys, key=lambda key: tasks.index(key[0])):
        found = [of_model.get(key, Estimate(math.nan, math.nan)) for of_model in moved.values()]
        of_first = ["" if math.isnan(one.mean) else with_error(*one, "+") for one in found]
        rows.append((key[0], title(key[1]), *(_cell(of_model.get(key)) for of_model in values.values()), *of_first))
    return rows


def _values(results: Results, temperatures: bool) -> dict[tuple[str, str], Results]:
    found: dict[tuple[str, str], Results] = {}
    for task, entry in results["tasks"].items():
        found |= {(task, name): value for name, value in entry["metrics"].items()}
        found |= {(task, f"cfm_at_{point['length']}"): point for point in entry.get("profile", ())}
        for of, point in product(TOKENS, entry.get("temperatures", ()) if temperatures else ()):
            if (value := point[f"{of}cross_entropy"]) is not None:
                found[task, metric_at(point["temperature"], of)] = value
    for task, entry in results["tasks"].items():  # below the numbers
        found |= {(task, part["name"]): part for part in parts_of(entry) if part.get("skipped")}
    return found


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
    found = [(label, r["tasks"]["calibration"]) for label, r in results.items() if "calibration" in r["tasks"]]
    for label, entry in found[1:]:
        mine, theirs = ({**e["settings"], **e["features"], "model": None} for e in (entry, found[0][1]))
        differ = [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n) and n not in HARMLESS]
        if differ:
            shown = ", ".join(f"{name}: {theirs.get(name)} and {mine.get(name)}" for name in differ)
            what = f"{found[0][0]} and {label} were calibrated differently ({shown}), so their losses do not compare"
            raise ConfigError(f"{what}; evaluate both with the same settings and --feature-model")


def draw(results: Mapping[str, Results], folder: Path) -> None:
    """`profile.png`, conditional feature-matching loss over completion length (the paper's figure), and
    `temperatures.png`, cross-entropy over temperature, dashed for answer tokens; bars of one standard error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    measured = [(label, r["tasks"]["calibration"]) for label, r in results.items() if "calibration" in r["tasks"]]
    for picture in ("profile", "temperatures") if measured else ():
        figure, axis = plt.subplots(figsize=(5.2, 3.8))
        for number, (label, entry) in enumerate(measured):
            curves = {of: [(p["temperature"], p[f"{of}cross_entropy"]) for p in entry["temperatures"]] for of in TOKENS}
            curves = {"": [(p["length"], p) for p in entry["profile"]]} if picture == "profile" else curves
            for of, points in curves.items():
                known = [(x, y["value"], y["standard_error"] or 0.0) for x, y in points if y and y["value"] is not None]
                if known:
                    name, look = plot_label(f"{label}, answer tokens" if of else label), "--" if of else "-"
                    x, y, error = zip(*known, strict=True)
                    axis.errorbar(x, y, error, fmt=f"C{number}o{look}", markersize=3, label=name)
        if axis.has_data():
            axis.set(xlabel="temperature", ylabel="cross-entropy (nats per token)")
            if picture == "profile":
                axis.set_ylabel("conditional feature-matching loss")
                over_lengths(axis, {point["length"] for _, entry in measured for point in entry["profile"]})
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
            figure.tight_layout()
            figure.savefig(folder / f"{picture}.png", dpi=150)
        plt.close(figure)


def over_lengths(axis: Axes, lengths: Iterable[float]) -> None:
    """Dress a plot whose curves go over completion lengths."""
    ticks = sorted(lengths)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("completion length (tokens)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


# ---- differences -----------------------------------------------------------------------------------------------------


def against_first(results: Mapping[str, Results], folders: Mapping[str, Path]) -> dict[str, Differences]:
    """For each model but the first, its differences from that one by (task, metric)."""
    first, *others = results
    found: dict[str, Differences] = {label: {} for label in others}
    for label in others:
        for task in (task for task in results[label]["tasks"] if task in results[first]["tasks"]):
            mine, theirs = (results[of]["tasks"][task] for of in (label, first))
            moved: Mapping[str, Estimate] = {}
            if task != "calibration":
                moved = _of_problems(mine, folders[label], folders[first])
            elif mine.get("text") == theirs.get("text"):  # and nothing if these are other sequences of it
                moved = measures.differences(_sequences(mine, folders[label]), _sequences(theirs, folders[first]))
            found[label] |= {(task, metric): difference for metric, difference in moved.items()}
    return found


def _sequences(entry: Results, folder: Path) -> list[measures.Record]:
    """The sequences that count: an earlier evaluation in the same folder may have measured more."""
    return [record for record in read_jsonl(folder / "calibration.jsonl") if record["sequence"] < entry["sequences"]]


def _of_problems(entry: Results, mine: Path, first: Path) -> dict[str, Estimate]:
    """pass@k and shares of answers that are no programs, of each set of problems (each language), and of the plain mean
    over several, which are independent of each other."""
    parts = []
    for part in (part for part in parts_of(entry) if part["metrics"]):
        both = {metric: [by_problem(folder, part, metric) for folder in (mine, first)] for metric in part["metrics"]}
        paired = {metric: (a, b) for metric, (a, b) in both.items() if a and a.keys() == b.keys()}
        parts.append({**part, "metrics": {m: mean_of([a[key] - b[key] for key in a]) for m, (a, b) in paired.items()}})
    if any(part["metrics"].keys() != parts[0]["metrics"].keys() for part in parts):
        return {}  # not of all sets: a mean over some would not be the difference of the values
    found = over_sets(parts) if "parts" in entry else parts[0]["metrics"] if parts else {}
    errors = {metric: one["standard_error"] for metric, one in found.items()}
    return {m: Estimate(found[m]["value"], math.nan if error is None else error) for m, error in errors.items()}


def by_problem(folder: Path, part: Results, metric: str) -> dict[str, float]:
    """What each problem of a set gives to a metric; empty if its files are not there, or hold too few samples."""
    found = re.fullmatch(rf"(greedy_)?(?:pass@(\d+)|({'|'.join(KINDS)}))", metric)
    if found is None:
        return {}
    file = folder / f"{part['name']}.{'greedy' if found[1] else 'samples'}.jsonl"
    if found[3]:
        shares = kinds_by_problem(read_jsonl(file), part.get("language"))[found[3]]
        return {task_id: float(share) for task_id, share in shares.items()}
    k, passed = int(found[2]), defaultdict[str, list[bool]](list)
    for outcome in read_jsonl(outcomes_file(file)):
        passed[outcome["task_id"]].append(outcome["status"] == PASSED)
    if any(len(of) < k for of in passed.values()):
        return {}
    return {task_id: float(pass_at_k(len(of), sum(of), k)) for task_id, of in passed.items()}
