"""What of a study's folder is kept here: its report, every validation of every run, and what each evaluation found.

    python results/replication/collect.py runs/replication/little-1000-gamma results/replication/little-1000-gamma

`validation.json` has the curves, `sequences.json` the sums of every test sequence, so that models of different studies
can be compared in pairs later; `problems.json` how many answers to each problem passed, and `how-answers-end.json` by
what they end: an end token, a stop string, or the limit. Paths of the machine that it ran on are left out.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ebft.runtime.files import read_jsonl

CURVES = ("cross_entropy", "answer_cross_entropy", "cfm")
SUMS = ("log_probs", "tokens", "answer_log_probs", "answer_tokens", "contexts", "cfm", "profile_contexts")
SCORES = ".scores.samples.jsonl"


def main(study: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    left_out = shutil.ignore_patterns("*.svg", "*.png", "*.html", "*.tex", "figures")
    shutil.copytree(study / "report", target, dirs_exist_ok=True, ignore=left_out)
    _write(target / "validation.json", {run.name: _curve(run) for run in sorted((study / "runs").iterdir())})
    evaluations = [e for e in sorted((study / "evaluations").iterdir()) if (e / "results.json").is_file()]
    for evaluation in evaluations:
        _write(target / "evaluations" / f"{evaluation.name}.json", _read(evaluation / "results.json"))
    measured = [e for e in evaluations if (e / "calibration.jsonl").is_file()]
    if measured:
        _write(target / "sequences.json", {e.name: _sequences(e / "calibration.jsonl") for e in measured})
    if ends := {f"{e.name} {file.stem}": _ends(file) for e in evaluations for file in _answers(e)}:
        _write(target / "how-answers-end.json", ends)
    if scores := {e.name: _passed(e) for e in evaluations if any(e.glob(f"*{SCORES}"))}:
        _write(target / "problems.json", scores)
    for file in target.rglob("*"):
        if file.suffix in (".json", ".md"):
            file.write_text(_without_machine(file.read_text()))


def _curve(run: Path) -> dict[str, Any]:
    """The last validation is that of the model that early stopping keeps, measured once more: it tells which one. A run
    that was stopped has none."""
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "eval_cross_entropy" in row]
    if not (run / "final").is_dir():
        return {"kept_step": None, "validations": [_point(row) for row in rows]}
    kept = rows.pop() if len(rows) > 1 and rows[-1]["step"] == rows[-2]["step"] else rows[-1]
    best = min(rows, key=lambda row: abs(row["eval_cross_entropy"] - kept["eval_cross_entropy"]))
    return {"kept_step": best["step"], "validations": [_point(row) for row in rows]}


def _point(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl, under shorter names."""
    point = {"epoch": round(row["epoch"], 3), "step": row["step"]}
    point |= {name: round(row[f"eval_{name}"], 5) for name in CURVES}
    spent = {name: row[f"spent/{name}"] for name in ("tokens", "flops", "seconds")}
    return point | {**spent, "tokens": int(spent["tokens"]), "seconds": round(spent["seconds"], 1)}


def _sequences(file: Path) -> dict[str, list[float | None]]:
    rows = sorted(read_jsonl(file), key=lambda row: row["sequence"])
    names = [*SUMS, *(name for name in rows[0] if name.startswith(("cfm_at_", "cfm_temperature_")))]
    return {name: [_rounded(row.get(name)) for row in rows] for name in names}


def _answers(evaluation: Path) -> list[Path]:
    files = [file for file in sorted(evaluation.glob("*.jsonl")) if not file.name.endswith(SCORES)]
    return [file for file in files if file.stem.endswith((".greedy", ".samples"))]


def _ends(file: Path) -> dict[str, int]:
    return dict(sorted(Counter(row["finish"] for row in read_jsonl(file)).items()))


def _passed(evaluation: Path) -> dict[str, dict[str, int]]:
    """By task and decoding, by problem: how many of its answers passed."""
    found: dict[str, dict[str, int]] = {}
    for file in sorted(evaluation.glob(f"*{SCORES}")):
        passed: Counter[str] = Counter()
        for row in read_jsonl(file):
            passed[row["task_id"]] += row["passed"]
        found[file.name.removesuffix(SCORES)] = dict(sorted(passed.items()))
    return found


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _without_machine(text: str) -> str:
    """Only whole paths: neither addresses nor what is relative."""
    return re.sub(r"""(?<![\w:/.])/[^\s"'`<>]*?/((?=runs/replication/|data/)|\.cache/ebft/models/)""", "", text)


def _read(file: Path) -> Any:
    return json.loads(file.read_text())


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    long = file.name in ("problems.json", "sequences.json", "validation.json")
    file.write_text(json.dumps(content, indent=None if long else 1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
