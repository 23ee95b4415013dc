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
from typing import Any, NamedTuple

from ebft.evaluate import temperatures
from ebft.evaluate.scoring import KINDS, kind_of_answer, kinds_by_problem, outcomes_file_of, pass_at_k
from ebft.evaluate.tables import Differences, Results
from ebft.method.measures import Estimate, Record, SumsAndCounts, differences, paired_difference
from ebft.runtime.files import read_jsonl
from ebft.sandbox.python_tests import PASSED, SKIPPED

Evaluated = tuple[Results, Path]  # results, and the folder that they are in
ByProblem = dict[str, float]


def against_first(results: Mapping[str, Results], folders: Mapping[str, Path]) -> dict[str, Differences]:
    """For each model but the first, its differences from that one by (task, metric)."""
    first, *others = results
    return {label: _against((results[first], folders[first]), (results[label], folders[label])) for label in others}


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
    ours, theirs = _sequences(mine), _sequences(first)
    found = differences(ours, theirs)
    return found | temperatures.differences(ours, theirs) if found else {}  # nothing if these are other sequences


def _sequences(evaluated: Evaluated) -> list[Record]:
    """The sequences that count: an earlier evaluation in the same folder may have measured more."""
    results, folder = evaluated
    counted = results["tasks"]["calibration"]["sequences"]
    return [record for record in read_jsonl(folder / "calibration.jsonl") if record["sequence"] < counted]


def _code(task: str, first: Evaluated, mine: Evaluated) -> dict[str, Estimate]:
    """pass@k and shares of answers that are no programs, of each set of problems (each language), and of the plain mean
    over several."""
    by_set: dict[str, dict[str, Estimate]] = defaultdict(dict)  # by metric and set
    entry = mine[0]["tasks"][task]
    parts = [part for part in entry.get("parts", [entry]) if not part.get("skipped") or part.get("unscored")]
    for part in parts:
        for metric in part["metrics"]:
            ours, theirs = (by_problem(folder, part, metric) for _, folder in (mine, first))
            if ours and ours.keys() == theirs.keys():  # the same problems
                by_set[metric][part["name"]] = _difference_of_means(ours, theirs)
    if "parts" not in entry:
        return {metric: found[entry["name"]] for metric, found in by_set.items()}
    named = {f"{name} {metric}": e for metric, found in by_set.items() for name, e in found.items()}
    return {metric: _mean(found) for metric, found in by_set.items() if len(found) == len(parts)} | named


def by_problem(folder: Path, part: Mapping[str, Any], metric: str) -> ByProblem:
    found = re.fullmatch(rf"(greedy_)?(?:pass@(\d+)|({'|'.join(KINDS)}))", metric)
    if found is None:
        return {}
    name = f"{part['name']}.{'greedy' if found[1] else 'samples'}"
    if found[2]:
        return pass_rates(folder, name, int(found[2]))
    rows = read_jsonl(folder / f"{name}.jsonl")
    answers = [(part["language"], row["task_id"], row["completion"], row["finish"]) for row in rows]
    return {task_id: float(share) for (_, task_id), share in kinds_by_problem(answers)[found[3]].items()}


def pass_rates(folder: Path, name: str, k: int) -> ByProblem:
    """pass@k of each problem; empty if its outcomes are not there, or too few."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in read_jsonl(outcomes_file_of(folder / f"{name}.scores.json")):
        if row["status"] != SKIPPED:
            counts[row["task_id"]][0] += 1
            counts[row["task_id"]][1] += row["status"] == PASSED
    if any(samples < k for samples, _ in counts.values()):
        return {}
    return {task_id: float(pass_at_k(samples, passed, k)) for task_id, (samples, passed) in counts.items()}


def _difference_of_means(mine: ByProblem, first: ByProblem) -> Estimate:
    ones = [1] * len(mine)
    return paired_difference(
        SumsAndCounts(list(mine.values()), ones), SumsAndCounts([first[key] for key in mine], ones)
    )


def _mean(found: dict[str, Estimate]) -> Estimate:
    """Over sets of problems that are independent of each other."""
    n = len(found)
    mean = sum(e.mean for e in found.values()) / n
    return Estimate(mean, math.hypot(*(e.standard_error for e in found.values())) / n)


class _Outcome(NamedTuple):
    passed: bool
    is_program: bool  # neither empty, nor cut off, nor without code


def of_answers_that_are_none(results: Mapping[str, Results], folders: Mapping[str, Path]) -> list[str]:
    """A note on each difference in pass@1, beyond its standard error, of which more than half is from pairs of answers
    where one is empty, cut off or without code: the programs of that model need not be better or worse then."""
    first, *others = results
    notes = []
    for label, decoding in product(others, ("greedy", "samples")):
        theirs = _languages(results[first])
        for name, language in _languages(results[label]).items():
            if name in theirs:
                files = [(folders[of], f"{name}.{decoding}", language) for of in (label, first)]
                found = _mostly_not_of_programs(_outcomes(*files[0]), _outcomes(*files[1]))
                metric = "greedy_pass@1" if decoding == "greedy" else "pass@1"
                notes += [f"{name}, {metric}, {label} - {first}: {found}"] if found else []
    return notes


def _languages(results: Results) -> dict[str, str]:
    """Of the sets of problems whose answers are programs."""
    parts = [part for entry in results["tasks"].values() for part in entry.get("parts", [entry])]
    return {part["name"]: part["language"] for part in parts if part.get("language")}


def _mostly_not_of_programs(
    mine: Mapping[tuple[str, int], _Outcome], theirs: Mapping[tuple[str, int], _Outcome]
) -> str | None:
    if not mine or mine.keys() != theirs.keys():
        return None
    moved = {key: mine[key].passed - theirs[key].passed for key in mine}
    programs = [moved[key] for key in mine if mine[key].is_program and theirs[key].is_program]
    rates: list[dict[str, list[int]]] = [defaultdict(list), defaultdict(list)]
    for by_problem, of_model in zip(rates, (mine, theirs), strict=True):
        for (task_id, _), outcome in of_model.items():
            by_problem[task_id].append(outcome.passed)
    ours, others = ({key: sum(of) / len(of) for key, of in by_problem.items()} for by_problem in rates)
    difference, total = _difference_of_means(ours, others), sum(moved.values())
    if not abs(difference.mean) > difference.standard_error or sum(programs) / total >= 0.5:
        return None
    return (
        f"most of the difference is from answers that are empty, cut off or without code; where neither is "
        f"({len(programs)} of {len(moved)} pairs of answers) it is {sum(programs) / max(len(programs), 1):+.4f}"
    )


def _outcomes(folder: Path, name: str, language: str) -> dict[tuple[str, int], _Outcome]:
    """Of each answer that was run, by problem and sample."""
    are_programs = {
        (row["task_id"], row["sample"]): kind_of_answer(row["completion"], row["finish"], language) is None
        for row in read_jsonl(folder / f"{name}.jsonl")
    }
    return {
        key: _Outcome(row["status"] == PASSED, are_programs[key])
        for row in read_jsonl(outcomes_file_of(folder / f"{name}.scores.json"))
        if row["status"] != SKIPPED and (key := (row["task_id"], row["sample"])) in are_programs
    }
