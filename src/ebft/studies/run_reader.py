"""Output folders of training runs, finished or not: `metrics.jsonl`, `results.json`, records of sequences."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError, what_is_wrong
from ebft.method.measures import Record
from ebft.train import validation_records

METRICS_FILE = "metrics.jsonl"
# What a run has cost when a metric was measured: names in metrics.jsonl, and in compare.json.
COSTS = {"step": "steps", "spent/tokens": "tokens", "spent/seconds": "seconds", "spent/flops": "FLOPs"}


@dataclass(frozen=True)
class Measurement:
    """One value of a validation metric."""

    step: int
    value: float
    error: float | None  # standard error
    costs: dict[str, float]
    model_step: int  # of an earlier step where the best model was loaded after the last one


@dataclass
class Run:
    name: str
    folder: Path
    method: str  # ebft, sft or rlvr
    finished: bool
    validation: dict[str, Any] | None  # how its validation measures; unknown for runs of old versions
    entries: list[dict[str, Any]]  # lines of metrics.jsonl
    change: dict[str, float]  # of validation metrics from before to after training, `eval_<metric>` and `_se`
    records: list[Record]  # of single sequences after training; none for runs of old versions, and unfinished ones
    problems: list[str] = field(default_factory=list)  # what is broken in its folder

    def measurements(self, metric: str) -> list[Measurement]:
        """Values of a validation metric by step."""
        return self.logged(f"eval_{metric}")

    def logged(self, key: str) -> list[Measurement]:
        """Values of anything in metrics.jsonl by step; of two at one step, the later."""
        found: dict[int, Measurement] = {}
        for entry in self.entries:
            value = entry.get(key)
            if value is not None:
                costs = {name: float(entry[name]) for name in COSTS if entry.get(name) is not None}
                step = entry["step"]
                found[step] = Measurement(step, value, entry.get(f"{key}_se"), costs, entry.get("model_step", step))
        return [found[step] for step in sorted(found)]

    def metrics(self) -> set[str]:
        """Names of the validation metrics that have a value."""
        names = {key.removeprefix("eval_") for entry in self.entries for key in entry if key.startswith("eval_")}
        return {name for name in names if not name.endswith(("_se", "runtime")) and self.measurements(name)}

    def total_costs(self) -> dict[str, float]:
        """The last known value of `step` and of everything under `spent/`."""
        return {
            key: value
            for entry in self.entries
            for key, value in entry.items()
            if key == "step" or key.startswith("spent/")
        }


def read_run(folder: Path) -> Run:
    folder = folder.expanduser()
    if folder.name == "final" and not (folder / METRICS_FILE).exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such run")
    if not (folder / METRICS_FILE).is_file():
        raise ConfigError(
            f"{folder} is a study; look at it with `ebft study report {folder}`, or name its runs in {folder}/runs"
            if (folder / "study.json").is_file()
            else f"{folder} holds no {METRICS_FILE}, so it is not the output folder of a run, or nothing is logged yet"
        )
    results = {}
    if (folder / "results.json").is_file():
        try:
            results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{folder}/results.json is not valid JSON ({what_is_wrong(error)})") from None
    if not isinstance(results, dict):
        raise ConfigError(f"{folder}/results.json holds no results of a run")
    records, problems = _read_records(folder, results)
    return Run(
        name=folder.resolve().name,
        folder=folder,
        method=results.get("method", "ebft"),
        finished="steps" in results,
        validation=results.get("ruler"),
        entries=read_entries(folder / METRICS_FILE),
        change=results.get("change", {}),
        records=records,
        problems=problems,
    )


def _read_records(folder: Path, results: dict[str, Any]) -> tuple[list[Record], list[str]]:
    """Records of all sequences, or none and what is wrong: a part of them would be compared as if it were all."""
    if "after" not in results:
        return [], []
    try:
        records = validation_records.read(folder, "after")
    except (json.JSONDecodeError, UnicodeDecodeError):
        return [], ["validation-after.jsonl is not valid JSON, so it has no paired differences"]
    expected = (results.get("ruler") or {}).get("validation_sequences")
    if records and expected is not None and len(records) != expected:
        problem = f"validation-after.jsonl holds {len(records)} of {expected} sequences; it was cut off"
        return [], [f"{problem}, so it has no paired differences"]
    return records, []


def read_entries(file: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; none if it is not there yet."""
    entries: list[dict[str, Any]] = []
    if not file.is_file():
        return entries
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that is being written
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries
