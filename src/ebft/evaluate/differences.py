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
from typing import Any

from ebft.evaluate.scoring import KINDS, kinds_by_problem, outcomes_file, pass_at_k
from ebft.evaluate.tables import Differences, Results, parts_of
from ebft.method.measures import Estimate, Record, SumsAndCounts, differences, paired_difference
from ebft.runtime.files import read_jsonl
from ebft.sandbox.python_tests import PASSED

Evaluated = tuple[Results, Path]  # results, and the folder that they are in


def against_first(results: Mapping[str, Results], folders: Mapping[str, Path]) -> dict[str, Differences]:
    """For each model but the first, its differences from that one by (task, metric)."""
    first, *others = results
    found: dict[str, Differences] = {}
    for label in others:
        both = (results[label], folders[label]), (results[first], folders[first])
        found[label] = {
            (task, metric): difference
            for task in results[label]["tasks"]
            if task in results[first]["tasks"]
            for metric, difference in (_calibration(*both) if task == "calibration" else _code(task, *both)).items()
        }
    return found


def _calibration(mine: Evaluated, first: Evaluated) -> dict[str, Estimate]:
    if len({results["tasks"]["calibration"].get("text") for results, _ in (first, mine)}) > 1:
        return {}
    return differences(_sequences(mine), _sequences(first))  # nothing if these are other sequences


def _sequences(evaluated: Evaluated) -> list[Record]:
    """The sequences that count: an earlier evaluation in the same folder may have measured more."""
    results, folder = evaluated
    counted = results["tasks"]["calibration"]["sequences"]
    return [record for record in read_jsonl(folder / "calibration.jsonl") if record["sequence"] < counted]


def _code(task: str, mine: Evaluated, first: Evaluated) -> dict[str, Estimate]:
    """pass@k and shares of answers that are no programs, of each set of problems (each language), and of the plain mean
    over several, which are independent of each other."""
    by_set: dict[str, dict[str, Estimate]] = defaultdict(dict)  # by metric and set
    entry = mine[0]["tasks"][task]
    parts = [part for part in parts_of(entry) if part["metrics"]]
    for part in parts:
        for metric in part["metrics"]:
            ours, theirs = (by_problem(folder, part, metric) for _, folder in (mine, first))
            if ours and ours.keys() == theirs.keys():  # the same problems
                ones = [1] * len(ours)
                both = SumsAndCounts([*ours.values()], ones), SumsAndCounts([theirs[key] for key in ours], ones)
                by_set[metric][part["name"]] = paired_difference(*both)
    if "parts" not in entry:
        return {metric: found[entry["name"]] for metric, found in by_set.items()}
    means = {
        metric: Estimate(
            sum(estimate.mean for estimate in found.values()) / len(parts),
            math.hypot(*(estimate.standard_error for estimate in found.values())) / len(parts),
        )
        for metric, found in by_set.items()
        if len(found) == len(parts)
    }
    return means | {f"{name} {metric}": e for metric, found in by_set.items() for name, e in found.items()}


def by_problem(folder: Path, part: Mapping[str, Any], metric: str) -> dict[str, float]:
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
