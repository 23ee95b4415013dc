"""Paired differences of evaluated models from the first: on the same sequences, or over the same problems.

Results hold means; what each sequence and each program gave is in the files beside them. A corpus score is no mean over
sentences, so translations have no differences here.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ebft.evaluate.scoring import KINDS, kind_of_answer, kinds_by_problem, outcomes_file_of, pass_at_k
from ebft.evaluate.tables import Differences, Results, parts_of
from ebft.method.measures import Estimate, Record, SumsAndCounts, differences, paired_difference
from ebft.runtime.files import read_jsonl
from ebft.sandbox.python_tests import PASSED, SKIPPED

Evaluated = tuple[Results, Path]  # results, and the folder that they are in
ByProblem = dict[str, float]


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
    ours, theirs = _sequences(mine), _sequences(first)
    if len({results["tasks"]["calibration"].get("text") for results, _ in (first, mine)}) > 1:
        return {}
    return differences(ours, theirs)


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
    parts = [part for part in parts_of(entry) if not part.get("skipped") or part.get("unscored")]
    for part in parts:
        for metric in part["metrics"]:
            ours, theirs = (by_problem(folder, part, metric) for _, folder in (mine, first))
            if ours and ours.keys() == theirs.keys():  # the same problems
                by_set[metric][part["name"]] = _difference_of_means(ours, theirs)
    if "parts" not in entry:
        return {metric: found[entry["name"]] for metric, found in by_set.items()}
    together: dict[str, Estimate] = {}
    for metric, found in by_set.items():
        if (n := len(found)) == len(parts):
            error = math.hypot(*(e.standard_error for e in found.values())) / n
            together[metric] = Estimate(sum(e.mean for e in found.values()) / n, error)
    return together | {f"{name} {metric}": e for metric, found in by_set.items() for name, e in found.items()}


def by_problem(folder: Path, part: Mapping[str, Any], metric: str) -> ByProblem:
    """What each problem of a set gives to a metric; empty if its files are not there, or hold too few samples."""
    found = re.fullmatch(rf"(greedy_)?(?:pass@(\d+)|({'|'.join(KINDS)}))", metric)
    if found is None:
        return {}
    file = folder / f"{part['name']}.{'greedy' if found[1] else 'samples'}.jsonl"
    if found[2]:
        return _pass_rates(file, int(found[2]))
    answers = [(part["language"], row["task_id"], row["completion"], row["finish"]) for row in read_jsonl(file)]
    return {task_id: float(share) for (_, task_id), share in kinds_by_problem(answers)[found[3]].items()}


def _outcomes(file: Path) -> list[dict[str, Any]]:
    """Of the programs among the completions of a file that could be run."""
    return [row for row in read_jsonl(outcomes_file_of(file.with_suffix(".scores.json"))) if row["status"] != SKIPPED]


def _pass_rates(file: Path, k: int) -> ByProblem:
    passed: dict[str, list[bool]] = defaultdict(list)
    for row in _outcomes(file):
        passed[row["task_id"]].append(row["status"] == PASSED)
    if any(len(of) < k for of in passed.values()):
        return {}
    return {task_id: float(pass_at_k(len(of), sum(of), k)) for task_id, of in passed.items()}


def _difference_of_means(mine: ByProblem, first: ByProblem) -> Estimate:
    ones = [1] * len(mine)
    return paired_difference(SumsAndCounts([*mine.values()], ones), SumsAndCounts([first[key] for key in mine], ones))


def of_answers_that_are_none(results: Mapping[str, Results], folders: Mapping[str, Path]) -> list[str]:
    """A note on each difference in pass@1, beyond its standard error, of which more than half is from pairs of answers
    where one is empty, cut off or without code: the programs of that model need not be better or worse then."""
    first, *others = results
    parts = [part for entry in results[first]["tasks"].values() for part in parts_of(entry)]
    languages = {part["name"]: part["language"] for part in parts if part.get("language")}
    notes = []
    for label, decoding, (name, language) in product(others, ("greedy", "samples"), languages.items()):
        files = [folders[of] / f"{name}.{decoding}.jsonl" for of in (label, first)]
        mine, theirs = (
            {(row["task_id"], row["sample"]): row["status"] == PASSED for row in _outcomes(file)} for file in files
        )
        if not mine or mine.keys() != theirs.keys():
            continue
        programs = set(mine)
        for row in (row for file in files for row in read_jsonl(file)):
            if kind_of_answer(row["completion"], row["finish"], language) is not None:
                programs.discard((row["task_id"], row["sample"]))
        difference = _difference_of_means(_pass_rates(files[0], 1), _pass_rates(files[1], 1))
        total, of_programs = (sum(mine[key] - theirs[key] for key in keys) for keys in (mine, programs))
        if total and abs(difference.mean) > difference.standard_error and of_programs / total < 0.5:
            notes.append(
                f"{name}, {'greedy_' if decoding == 'greedy' else ''}pass@1, {label} - {first}: most of the difference "
                f"is from answers that are empty, cut off or without code; where neither is ({len(programs)} of "
                f"{len(mine)} pairs of answers) it is {of_programs / max(len(programs), 1):+.4f}"
            )
    return notes
