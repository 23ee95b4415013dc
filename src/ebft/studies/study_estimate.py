"""`ebft study run --dry-run`: how many runs, how long, how many gigabytes, and what each figure rests on.

Times come from FLOPs: the same counts as in `spent/flops`, and the speed of a matrix product measured here. Where a run
of the same settings is finished already, its own seconds are taken instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ebft.config.recipe import Recipe, known_settings
from ebft.errors import first_line
from ebft.plan import make_plan
from ebft.runtime.messages import duration
from ebft.studies.local_launcher import visible_gpus
from ebft.studies.points import load_for_elsewhere
from ebft.studies.study_file import Row, Study
from ebft.studies.study_jobs import StudyPlan, TrainingRun

# Of a matrix product's speed, that training reaches, counted without trees: SmolLM2-135M on an H200 and on two cores.
_SHARE_OF_PEAK = {"cuda": 0.3, "cpu": 0.8}


@dataclass(frozen=True)
class Estimate:
    """What the runs of a method, or of one row of it, need."""

    runs: int
    seconds: float  # of those that are not finished
    disk: float  # bytes, of all
    memory: float  # bytes, at the peak of one run
    unknown: str = ""  # why nothing could be said

    @classmethod
    def of_all(cls, rows: Sequence[Estimate]) -> Estimate:
        unknown = next((row.unknown for row in rows if row.unknown), "")
        totals = (sum(row.runs for row in rows), sum(row.seconds for row in rows), sum(row.disk for row in rows))
        return cls(*totals, max((row.memory for row in rows), default=0.0), unknown)

    def line(self, name: str) -> str:
        known = (duration(self.seconds), _gigabytes(self.disk), _gigabytes(self.memory))
        took, disk, memory = ("?", "?", "?") if self.unknown else known
        return f"{name:<16}{self.runs:>6}{took:>10}{disk:>10}{memory:>12}"


def estimate_lines(study: Study, jobs: int | None, per_gpu: int) -> list[str]:
    plan = StudyPlan(study)
    on_cpu = plan.runs[0].on_cpu if plan.runs else True
    speed, share = _speed(on_cpu)
    methods = {
        name: Estimate.of_all(
            [_estimate(study, plan, row, speed * share) for row in study.rows if row.method.name == name]
        )
        for name in study.methods
    }
    lines = [f"{'method':<16}{'runs':>6}{'time':>10}{'disk, GB':>10}{'memory, GB':>12}"]
    lines += [found.line(name) for name, found in methods.items()]
    whole = Estimate.of_all(list(methods.values()))
    gpus = [] if plan.runs and plan.runs[0].on_cpu else visible_gpus()
    places = min(jobs or 10**9, len(gpus) * per_gpu) if gpus else jobs or 1
    tests = _evaluations(study, plan)
    done = sum(plan.is_finished(run) for run in plan.runs)
    lines += [
        "",
        f"{whole.runs} training runs ({done} finished) and {tests} evaluations, {places} at once",
        f"{'at least' if whole.unknown else 'about'} {duration(whole.seconds / places)} of training to do and "
        f"{_gigabytes(whole.disk)} GB of disk in all, without evaluations",
        f"Times rest on {speed / 1e12:.3g} TFLOP/s, measured now with a matrix product, of which training is taken to "
        f"reach {share:.0%}; where a run of the same settings is finished, on its own seconds.",
    ]
    return lines + [f"not known: {name}: {found.unknown}" for name, found in methods.items() if found.unknown]


def _runs_of(study: Study, row: Row) -> int:
    method = row.method
    searched = len(method.candidates) if method.search else 0
    again = study.seed_of_search(method) in method.seeds and bool(method.search)
    return searched + len(method.seeds) - again


def _evaluations(study: Study, plan: StudyPlan) -> int:
    if not study.evaluation:
        return 0
    return len(plan.base_models()) + sum(len(row.method.seeds) for row in study.rows)


def _gigabytes(size: float) -> str:
    total = size / 1e9
    return f"{total:.3g}" if total < 1000 else f"{total:,.0f}"


def _estimate(study: Study, plan: StudyPlan, row: Row, speed: float) -> Estimate:
    """speed: FLOP/s of training."""
    method, runs = row.method, _runs_of(study, row)
    values = {**method.settings, **row.values, **method.candidates[0], "output_dir": "x"}
    if values.get("feature_model") in study.methods:
        values.pop("feature_model")
    recipe = load_for_elsewhere(values, method.command)
    try:
        # By `ebft plan`, on one GPU: it knows how EBFT trains, and baselines need less.
        known = known_settings()
        needs = make_plan({name: value for name, value in values.items() if name in known}, 1, 80.0).given
        steps, tokens = _steps_and_tokens(recipe, method.kind)
    except Exception as error:  # data or a model that is not here: the rest can still be said
        return Estimate(runs, 0.0, 0.0, 0.0, first_line(error))
    finished = [run for run in plan.runs if run.row == row and plan.is_finished(run)]
    seconds = _measured_seconds(finished)
    if seconds is None:
        seconds = steps * 2 * needs.shape.active * tokens / speed
    training = recipe.training
    kept = 0 if training.save_strategy == "no" else max(1, steps // max(1, int(training.save_steps)))
    kept = min(kept, training.save_total_limit or kept)
    # Weights in 4 bytes; a checkpoint also has the two moments of Adam.
    disk = needs.shape.parameters * 4 * (1 + 3 * kept)
    return Estimate(runs, (runs - len(finished)) * seconds, runs * disk, needs.peak)


def _measured_seconds(runs: Sequence[TrainingRun]) -> float | None:
    done = [float(run.results()["spent"]["seconds"]) for run in runs if run.results().get("spent")]
    return sum(done) / len(done) if done else None


def _steps_and_tokens(recipe: Recipe, kind: str) -> tuple[int, float]:
    """Steps of a run, and tokens of a step in forward passes: an update counts as three."""
    from ebft.data.packing import end_token_ids
    from ebft.loading import load_tokenizer
    from ebft.train.dry_run import anchors_per_sequence
    from ebft.train.sequences import load_data

    training: Any = recipe.training
    tokenizer = load_tokenizer(recipe)
    train_set, _ = load_data(recipe, tokenizer, needs_anchors=False)
    rows = training.rows_per_step
    documents = len(train_set.index)
    mean_length = train_set.total_tokens / max(1, documents)
    if kind == "ebft":
        anchors = anchors_per_sequence(train_set, training, end_token_ids(tokenizer, training.completions_end))
        packed = training.context_length + anchors * training.samples * training.horizon
        # Rollouts, features up to three quarters of the depth, and the update.
        an_epoch, tokens = math.ceil(len(train_set) / rows), rows * packed * (1 + 0.75 + 3)
    elif kind == "sft":
        length = training.max_length if training.pack_training else min(mean_length, training.max_length)
        packs = train_set.total_tokens / training.max_length if training.pack_training else documents
        an_epoch, tokens = math.ceil(packs / rows), min(rows * length, train_set.total_tokens) * 3
    else:
        an_epoch, tokens = documents * training.generations // rows, rows * (mean_length + training.max_new_tokens) * 4
    steps = training.max_steps if training.max_steps > 0 else math.ceil(an_epoch * training.num_train_epochs)
    return steps, tokens


def _speed(on_cpu: bool) -> tuple[float, float]:
    """FLOP/s of a matrix product on this machine, in bf16 on a GPU, and the share of it that training reaches."""
    import torch

    cuda = torch.cuda.is_available() and not on_cpu
    size = 8192 if cuda else 1024
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    a = torch.ones(size, size, device=device, dtype=dtype)
    best = math.inf
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best, _SHARE_OF_PEAK[device]
