"""Paired differences of evaluated models from the first: on the same sequences, or over the same problems.

Results hold means; what each sequence and each program gave is in the files beside them. A corpus score is no mean over
sentences, so translations have no differences here.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from ebft.evaluate.tables import Differences, Results, is_scored, same_profile
from ebft.method.ratios import Estimate, SumsAndCounts, paired_difference
from ebft.method.sequence_records import Record, differences
from ebft.runtime.files import read_jsonl
from ebft.sandbox.isolated_tests import PASSED, SKIPPED
from ebft.tasks.pass_at_k import pass_at_k
from ebft.tasks.scoring import outcomes_file_of

Evaluated = tuple[Results, Path]  # results, and the folder that they are in


def against_first(results: Mapping[str, Results], folders: Mapping[str, Path]) -> dict[str, Differences]:
    """For each model but the first, its differences from that one by (task, metric)."""
    first, *others = results
    return {label: _against((results[first], folders[first]), (results[label], folders[label])) for label in others}


def without(results: Mapping[str, Results], found: Mapping[str, Differences]) -> list[str]:
    """A note on each task of which there should be differences and are none."""
    first = next(iter(results))
    return [
        f"{task}: no paired differences of {label} from {first}; {_why(task, results[label], results[first])}"
        for label, of_model in found.items()
        for task in results[label]["tasks"]
        if task in results[first]["tasks"] and task != "translation" and not any(key[0] == task for key in of_model)
    ]


def _why(task: str, *results: Results) -> str:
    if not all(is_scored(found["tasks"][task]) for found in results):
        return "not both are scored yet"
    return f"the folders do not hold records of the same {'sequences' if task == 'calibration' else 'problems'}"


def _against(first: Evaluated, mine: Evaluated) -> Differences:
    found: Differences = {}
    for task in mine[0]["tasks"]:
        if task in first[0]["tasks"]:
            of_task = _calibration(first, mine) if task == "calibration" else _code(task, first, mine)
            found |= {(task, metric): difference for metric, difference in of_task.items()}
    return found


def _calibration(first: Evaluated, mine: Evaluated) -> dict[str, Estimate]:
    if len({results["tasks"]["calibration"].get("text") for results, _ in (first, mine)}) > 1:
        return {}
    found = differences(_sequences(mine), _sequences(first))
    if not same_profile(mine[0], first[0]):
        found = {metric: difference for metric, difference in found.items() if not metric.startswith("cfm_at_")}
    return found


def _sequences(evaluated: Evaluated) -> list[Record]:
    """The sequences that count: an earlier evaluation in the same folder may have measured more."""
    results, folder = evaluated
    counted = results["tasks"]["calibration"]["sequences"]
    return [record for record in read_jsonl(folder / "calibration.jsonl") if record["sequence"] < counted]


def _code(task: str, first: Evaluated, mine: Evaluated) -> dict[str, Estimate]:
    """pass@k of each set of problems (each language), and of the plain mean over several."""
    by_set: dict[str, dict[str, Estimate]] = defaultdict(dict)  # by metric and set
    entry = mine[0]["tasks"][task]
    parts = [part for part in entry.get("parts", [entry]) if not part.get("skipped")]
    for part in parts:
        for metric in part["metrics"]:
            if match := re.fullmatch(r"(greedy_)?pass@(\d+)", metric):
                decoding, k = "greedy" if match[1] else "samples", int(match[2])
                rates = [pass_rates(folder, f"{part['name']}.{decoding}", k) for _, folder in (mine, first)]
                if rates[0].keys() == rates[1].keys() and rates[0]:  # the same problems
                    by_set[metric][part["name"]] = _difference_of_means(*rates)
    if "parts" not in entry:
        return {metric: found[entry["name"]] for metric, found in by_set.items()}
    named = {f"{name} {metric}": e for metric, found in by_set.items() for name, e in found.items()}
    return {metric: _mean(found) for metric, found in by_set.items() if len(found) == len(parts)} | named


def pass_rates(folder: Path, name: str, k: int) -> dict[str, float]:
    """pass@k of each problem; empty if its outcomes are not there, or too few."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in read_jsonl(outcomes_file_of(folder / f"{name}.scores.json")):
        if row["status"] != SKIPPED:
            counts[row["task_id"]][0] += 1
            counts[row["task_id"]][1] += row["status"] == PASSED
    if any(samples < k for samples, _ in counts.values()):
        return {}
    return {task_id: float(pass_at_k(samples, passed, k)) for task_id, (samples, passed) in counts.items()}


def _difference_of_means(mine: dict[str, float], first: dict[str, float]) -> Estimate:
    ones = [1] * len(mine)
    return paired_difference(
        SumsAndCounts(list(mine.values()), ones), SumsAndCounts([first[key] for key in mine], ones)
    )


def _mean(found: dict[str, Estimate]) -> Estimate:
    """Over sets of problems that are independent of each other."""
    n = len(found)
    mean = sum(e.mean for e in found.values()) / n
    return Estimate(mean, math.hypot(*(e.standard_error for e in found.values())) / n)
