"""Output folders of training runs, finished or not: `metrics.jsonl`, `results.json`, records of sequences. What their
metrics are called, and which numbers of two runs compare."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ebft.config.evaluation import NOT_SET
from ebft.config.method import settings_that_change
from ebft.errors import ConfigError
from ebft.method.measures import NAMES, Estimate, Record, differences, smaller_is_better, title
from ebft.runtime.files import Json, read_jsonl

METRICS_FILE = "metrics.jsonl"
_SHARES = ("empty", "cut", "no_code")  # of answers without a program: metrics of code tasks beside pass@k
_NO_METRICS = ("_se", "_runtime", "_per_second", "eval_reward")  # ends of keys; the last repeats the proxy
# What a run had cost when a metric was measured: horizontal axes of curves, in metrics.jsonl and in figures.
AXES = {
    "steps": ("step", "steps"),
    "tokens": ("spent/tokens", "tokens"),
    "seconds": ("spent/seconds", "seconds"),
    "flops": ("spent/flops", "FLOPs"),
}


@dataclass
class Run:
    name: str
    folder: Path
    method: str  # ebft, sft or rlvr
    finished: bool
    validation: Json | None  # how its validation measures
    entries: list[Json]  # lines of metrics.jsonl
    change: dict[str, Estimate]  # of validation metrics from before to after training
    records: list[Record] = field(default_factory=list)  # of single sequences after training, if it has finished

    def measured(self, key: str) -> list[Json]:
        """The entries with a value of this, by step; of two at one step, the later."""
        found = {entry["step"]: entry for entry in self.entries if entry.get(key) is not None}
        return [found[step] for step in sorted(found)]

    def rewards(self) -> list[Json]:
        """What RLVR itself is rewarded for, as training logged it. EBFT's on validation repeats the whitened proxy."""
        return self.measured("reward") if self.method == "rlvr" else []

    def total_costs(self) -> Json:
        """The last known value of `step` and of everything under `spent/`."""
        last = {key: value for entry in self.entries for key, value in entry.items()}
        return {key: value for key, value in last.items() if key == "step" or key.startswith("spent/")}


def read_run(folder: Path) -> Run:
    folder = folder.expanduser()
    if folder.name == "final" and not (folder / METRICS_FILE).exists():
        folder = folder.parent
    if not (folder / METRICS_FILE).is_file():
        raise ConfigError(f"{folder} is no output folder of a run, or nothing is logged yet: no {METRICS_FILE}")
    file = folder / "results.json"
    try:
        results: Json = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        entries = read_jsonl(folder / METRICS_FILE)
        records = read_jsonl(folder / "validation-after.jsonl") if "after" in results else []
    except ValueError as error:
        raise ConfigError(f"{folder} holds a file that is not valid JSON ({error})") from None
    ruler = results.get("ruler")
    expected = (ruler or {}).get("validation_sequences", len(records))
    if records and len(records) != expected:  # a part of them would be compared as if it were all
        raise ConfigError(f"{folder}: validation-after.jsonl holds {len(records)} of {expected} sequences: cut off")
    changed = {name.removeprefix("eval_"): value for name, value in results.get("change", {}).items()}
    change = {
        name: Estimate(value, changed.get(f"{name}_se") or math.nan)
        for name, value in changed.items()
        if value is not None and not name.endswith("_se")
    }
    method, finished = results.get("method", "ebft"), "steps" in results
    return Run(folder.resolve().name, folder, method, finished, ruler, entries, change, records)


def validation_metrics(runs: Iterable[Run]) -> list[str]:
    """Those that have a value, the usual ones first."""
    keys = {key for run in runs for entry in run.entries for key, value in entry.items() if value is not None}
    found = {key[5:] for key in keys if key.startswith("eval_") and not key.endswith(_NO_METRICS)}
    return [*(name for name in NAMES if name in found), *sorted(found - {*NAMES})]


# ---- what compares -------------------------------------------------------------------------------------------------


def validated_apart(run: Run, reference: Run | None) -> list[str]:
    """In what the validation of a run differs from that of another, by their `ruler`s: the settings that it depends
    on. If one says nothing, in `ruler` itself; nothing if they do not differ."""
    if reference is None or run is reference:
        return []
    mine, other = run.validation, reference.validation
    if mine is None or other is None:
        return ["ruler"]
    differ = {key for key in {**other, **mine} if other.get(key) != mine.get(key)}
    if mine.get("network") == "moving average":  # of the run's own weights: two runs never have the same
        differ.add("network")
    return sorted(differ)


def compares(metric: str, differ: Sequence[str]) -> bool:
    """Whether the values of a metric compare although these settings differ."""
    harmless: tuple[str, ...] = ()
    if metric not in ("whitened_proxy", "reward"):
        harmless += settings_that_change("proxy")
    if metric.endswith("cross_entropy"):
        harmless += ("network", *settings_that_change("features"))
    return all(key in harmless for key in differ)


def what_differs(run: Run, reference: Run | None) -> str | None:
    """How a run was validated differently, and what compares nevertheless: the end of a sentence that begins with its
    name."""
    if reference is None or not (differ := validated_apart(run, reference)):
        return None
    mine, other = run.validation or {}, reference.validation or {}
    values = [f"{key} {mine.get(key, NOT_SET)} and {other.get(key, NOT_SET)}" for key in differ]
    shown = ", ".join(values) if mine and other else "they do not both say how"
    left = ", ".join(title(name) for name in NAMES if compares(name, differ)) or "nothing"
    return f"and {reference.name} were validated differently ({shown}); what compares: {left}"


def against(first: Run, run: Run) -> dict[str, Estimate]:
    """`run` minus `first`, both after training, of the metrics that both measured in the same way. Taken sequence by
    sequence, a difference is usually known better than the standard errors of the two values suggest."""
    found = differences(run.records, first.records) if run is not first else {}
    return {metric: found[metric] for metric in found if compares(metric, validated_apart(run, first))}


# ---- metrics -------------------------------------------------------------------------------------------------------


class MetricFacts(NamedTuple):
    title: str
    smaller_is_better: bool
    is_rate: bool = False  # a share of problems, between 0 and 1
    is_ranked: bool = True  # whether one way is better, so that rows are ranked by it


def facts(metric: str) -> MetricFacts:
    """Of a validation metric, or of `<task> <metric>` as evaluation has it."""
    task, _, name = metric.rpartition(" ")
    if metric == "reward":  # RLVR's own, on training prompts: what was optimised
        return MetricFacts("training reward", False, is_ranked=False)
    if task in ("", "calibration", "validation"):
        return MetricFacts(title(name), smaller_is_better(name))
    is_share = name.endswith(_SHARES)  # what a difference in pass@k may come from
    words = name.replace("greedy_pass@1", "greedy").replace("_", " ").replace("bleu", "BLEU").replace("chrf", "chrF")
    shown = f"{task} {words.replace('comet', 'COMET')}"
    return MetricFacts(shown, smaller_is_better(name), is_share or "pass@" in name, not is_share)


def better(metric: str) -> Callable[..., Any]:
    """`min` or `max`: losses are better when smaller; rates, rewards and scores of tasks when larger."""
    return min if facts(metric).smaller_is_better else max
