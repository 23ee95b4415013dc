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

from ebft.evaluate.scoring import KINDS, Scored, kinds_by_problem, mean_of, outcomes_file, over_sets, pass_at_k
from ebft.evaluate.tables import Differences, Results, parts_of
from ebft.method.measures import Estimate, Record, differences
from ebft.runtime.files import read_jsonl
from ebft.sandbox.python_tests import PASSED


def against_first(results: Mapping[str, Results], folders: Mapping[str, Path]) -> dict[str, Differences]:
    """For each model but the first, its differences from that one by (task, metric)."""
    first, *others = results
    found: dict[str, Differences] = {label: {} for label in others}
    for label in others:
        both = folders[label], folders[first]
        for task in (task for task in results[label]["tasks"] if task in results[first]["tasks"]):
            mine, theirs = (results[of]["tasks"][task] for of in (label, first))
            if task != "calibration":
                moved = _of_problems(mine, *both)
            elif mine.get("text") == theirs.get("text"):  # and nothing if these are other sequences of it
                moved = differences(_sequences(mine, both[0]), _sequences(theirs, both[1]))
            else:
                moved = {}
            found[label] |= {(task, metric): difference for metric, difference in moved.items()}
    return found


def _sequences(entry: Scored, folder: Path) -> list[Record]:
    """The sequences that count: an earlier evaluation in the same folder may have measured more."""
    return [record for record in read_jsonl(folder / "calibration.jsonl") if record["sequence"] < entry["sequences"]]


def _of_problems(entry: Scored, mine: Path, first: Path) -> dict[str, Estimate]:
    """pass@k and shares of answers that are no programs, of each set of problems (each language), and of the plain mean
    over several, which are independent of each other."""
    parts = []
    for part in (part for part in parts_of(entry) if part["metrics"]):
        both = {metric: [by_problem(folder, part, metric) for folder in (mine, first)] for metric in part["metrics"]}
        same = {metric: values for metric, values in both.items() if values[0] and values[0].keys() == values[1].keys()}
        moved = {metric: mean_of([ours[key] - theirs[key] for key in ours]) for metric, (ours, theirs) in same.items()}
        parts.append({**part, "metrics": moved})
    if any(part["metrics"].keys() != parts[0]["metrics"].keys() for part in parts):
        return {}  # not of all sets: a mean over some would not be the difference of the values
    found = over_sets(parts) if "parts" in entry else parts[0]["metrics"] if parts else {}
    return {
        m: Estimate(one["value"], math.nan if (e := one["standard_error"]) is None else e) for m, one in found.items()
    }


def by_problem(folder: Path, part: Scored, metric: str) -> dict[str, float]:
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
