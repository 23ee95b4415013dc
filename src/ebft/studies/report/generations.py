"""Answers to the same prompt side by side for all rows: what each wrote, whether it passed, and what the test said."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from ebft.runtime.files import read_jsonl
from ebft.studies.report.evidence import Evidence, Model

MOST_PROBLEMS = 200  # of a task
_LONGEST = 4000  # characters of a text: the page must stay a page


def generations(evidence: Evidence) -> tuple[list[dict[str, Any]], list[str]]:
    """For each set of problems its name and problems, each with an answer by row; and notes on what is left out.

    The greedy answer, or the first sample where there is none, of the first seed that was evaluated.
    """
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in evidence.rows:
        model = next((model for model in row.models if model.evaluation is not None), None)
        if model is None:
            continue
        for name in _sets(model):
            prompts = {str(asked["task_id"]): asked["prompt"] for asked in _read(model, f"{name}.prompts.jsonl")}
            answers = _answers(model, name)
            for key in (*(key for key in prompts if key in answers), *answers):  # in the order of the problems
                asked = _cut(prompts[key]) if key in prompts else None
                problem = found[name].setdefault(key, {"id": key, "prompt": asked, "answers": {}})
                problem["answers"][row.title] = answers[key]
    notes = [
        f"{name}: the first {MOST_PROBLEMS} of {len(problems)} problems are shown"
        for name, problems in found.items()
        if len(problems) > MOST_PROBLEMS
    ]
    return [
        {"name": name, "problems": list(problems.values())[:MOST_PROBLEMS]} for name, problems in found.items()
    ], notes


def _sets(model: Model) -> list[str]:
    """Names of the sets of problems that were answered."""
    assert model.evaluation is not None
    endings = (".greedy.jsonl", ".samples.jsonl")
    files = sorted(p.name for p in model.evaluation.glob("*.jsonl") if p.name.endswith(endings))
    names = [name.removesuffix(ending) for name in files for ending in endings if name.endswith(ending)]
    return [name for name in dict.fromkeys(names) if ".scores" not in name]


def _answers(model: Model, name: str) -> dict[str, dict[str, Any]]:
    rows = {decoding: _read(model, f"{name}.{decoding}.jsonl") for decoding in ("greedy", "samples")}
    decoding = "greedy" if rows["greedy"] else "samples"
    outcomes = {(o["task_id"], o["sample"]): o for o in _read(model, f"{name}.{decoding}.scores.samples.jsonl")}
    scores = {(o["task_id"], o["sample"]): o for o in _read(model, f"{name}.{decoding}.scores.jsonl")}
    passed: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for outcome in _read(model, f"{name}.samples.scores.samples.jsonl"):
        passed[outcome["task_id"]][0] += outcome["status"] == "passed"
        passed[outcome["task_id"]][1] += 1
    found = {}
    for row in rows[decoding]:
        key = row["task_id"]
        if row["sample"] != 0:
            continue
        outcome = outcomes.get((key, 0), {})
        score = scores.get((key, 0), {})
        said = outcome.get("message") or ""
        if score:
            said = ", ".join(f"{n.replace('_', ' ')} {v:.1f}" for n, v in score.items() if isinstance(v, float))
        found[str(key)] = {
            "text": _cut(row["completion"]),
            "status": outcome.get("status", ""),
            "message": _cut(said),
            "samples": f"{passed[key][0]} of {passed[key][1]} samples pass" if passed.get(key) else "",
        }
    return found


def _read(model: Model, name: str) -> list[dict[str, Any]]:
    assert model.evaluation is not None
    file: Path = model.evaluation / name
    try:
        return read_jsonl(file)
    except ValueError:  # broken; what the tables say of it is said there
        return []


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n... ({len(text) - _LONGEST:,} more characters)"
