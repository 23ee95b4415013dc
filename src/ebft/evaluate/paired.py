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
from typing import NamedTuple

from ebft.evaluate.tables import Differences, Results, is_scored, same_profile
from ebft.method.measures import Estimate, Record, differences, paired_difference, ratio_of_sums
from ebft.runtime.files import read_jsonl
from ebft.sandbox.python_tests import PASSED, SKIPPED
from ebft.tasks import temperatures
from ebft.tasks.answer_counts import kind_of_answer, of_means, shares
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
    if found:  # the same sequences
        found |= temperatures.differences(_sequences(mine), _sequences(first))
    if not same_profile(mine[0], first[0]):
        found = {metric: difference for metric, difference in found.items() if not metric.startswith("cfm_at_")}
    return found


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
    parts = [part for part in entry.get("parts", [entry]) if not part.get("skipped")]
    for part in parts:
        for metric in part["metrics"]:
            if match := re.fullmatch(r"(greedy_)?(?:pass@(\d+)|(.+))", metric):
                file = f"{part['name']}.{'greedy' if match[1] else 'samples'}"
                rates = [
                    pass_rates(folder, file, int(match[2]))
                    if match[2]
                    else shares(read_jsonl(folder / f"{file}.jsonl"), part["language"])[match[3]]
                    for _, folder in (mine, first)
                ]
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
    return paired_difference(of_means(mine), of_means({key: first[key] for key in mine}))


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
    by_problem: dict[str, list[int]] = defaultdict(list)
    for (task_id, _), change in moved.items():
        by_problem[task_id].append(change)
    difference = ratio_of_sums(*of_means({key: sum(of) / len(of) for key, of in by_problem.items()}))
    total = sum(moved.values())
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


def _mean(found: dict[str, Estimate]) -> Estimate:
    """Over sets of problems that are independent of each other."""
    n = len(found)
    mean = sum(e.mean for e in found.values()) / n
    return Estimate(mean, math.hypot(*(e.standard_error for e in found.values())) / n)
