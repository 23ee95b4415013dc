"""The folder of a study written by hand: three methods, two seeds, a base model, evaluations with answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

PROBLEMS = [f"problem/{number}" for number in range(12)]
NASTY = '</script><script>alert(1)</script> <b>bold</b> & "quotes" $x_1$ | `code`'


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_study(folder: Path, gammas: tuple[float, ...] = (), **levels: float) -> Path:
    """levels: the cross-entropy of each method; the feature-matching loss is half of it."""
    rows = [{"title": "base", "kind": "base", "models": [_model(folder, "base", None, 2.0)]}]
    for kind, level in (levels or {"sft": 1.0, "ebft": 0.5, "rlvr": 1.5}).items():
        for gamma in gammas if kind == "ebft" and gammas else (None,):
            values = {} if gamma is None else {"alpha": gamma, "gamma": gamma}
            name = ",".join([kind, *(f"{key}={value:g}" for key, value in values.items())])
            models = [_model(folder, name, seed, level + (gamma or 0), kind) for seed in (0, 1)]
            shown = ", ".join(f"{key} {value:g}" for key, value in values.items())
            rows.append({"title": f"{kind} ({shown})" if shown else kind, "kind": kind, "models": models})
    manifest = {"study": f"a study {NASTY}", "command": ["ebft", "study", "run", "study.yaml"], "rows": rows}
    (folder / "study.json").write_text(json.dumps(manifest))
    return folder


def _model(folder: Path, name: str, seed: int | None, level: float, kind: str = "base") -> dict[str, Any]:
    place = name if seed is None else f"{name},seed={seed}"
    draw = random.Random(place)
    if seed is not None:
        _make_trained(folder / "runs" / place, level, kind, draw)
    _make_evaluation(folder / "evaluations" / place, level, draw)
    return {"seed": seed, "run": seed if seed is None else f"runs/{place}", "evaluation": f"evaluations/{place}"}


def _make_trained(run: Path, level: float, kind: str, draw: random.Random) -> None:
    entries = []
    for step in (0, 10, 20):
        value = level + (20 - step) / 20 + draw.gauss(0, 0.02)
        entry = {"step": step, "eval_cross_entropy": value, "eval_cross_entropy_se": 0.05, "eval_cfm": value / 2}
        entry |= {"spent/tokens": 1000 * step, "spent/seconds": 2.0 * step, "spent/flops": 1e9 * step}
        entries.append(entry | {"eval_reward": 9.0} | ({"reward": step / 40} if kind == "rlvr" else {}))
    write_jsonl(run / "metrics.jsonl", entries)
    settings = {"learning_rate": level, "gamma": level, "context_length": 64, "output_dir": str(run)}  # gamma is EBFT's
    (run / "resolved.json").write_text(json.dumps(settings))
    results = {"method": kind, "steps": 20, "ruler": {"validation": "v", "network": "n"}}
    (run / "results.json").write_text(json.dumps(results))


def _make_evaluation(folder: Path, level: float, draw: random.Random) -> None:
    items = random.Random(7)  # the same sequences and problems are hard for all
    records = []
    for sequence in range(30):
        value = level + items.gauss(0, 0.3) + draw.gauss(0, 0.05)
        record = {"sequence": sequence, "tokens": 10, "log_probs": -10 * value}
        record |= {"answer_tokens": 5, "answer_log_probs": -5 * value}
        record |= {"contexts": 2, "cfm": value / 2, "whitened_proxy": -value, "reward": -value}
        records.append(record | {"profile_contexts": 1, "cfm_at_1": value / 4, "cfm_at_4": value / 2})
    write_jsonl(folder / "calibration.jsonl", records)
    passed = [items.random() > level / 2 for _ in PROBLEMS]
    for decoding, samples in ("greedy", 1), ("samples", 4):
        answers, scores = [], []
        for key, is_solved in zip(PROBLEMS, passed, strict=True):
            for sample in range(samples):
                right = is_solved if decoding == "greedy" else is_solved and draw.random() > 0.3
                of = {"task_id": key, "sample": sample}
                answers.append({**of, "completion": f"return {sample} # {folder.name} {NASTY}", "finish": "stop"})
                message = "" if right else f"AssertionError: {NASTY}"
                scores.append({**of, "status": "passed" if right else "failed", "message": message})
        write_jsonl(folder / f"humaneval.{decoding}.jsonl", answers)
        write_jsonl(folder / f"humaneval.{decoding}.scores.samples.jsonl", scores)
    prompts = [{"task_id": key, "prompt": f"def f{n}(x): needle{n} {NASTY}"} for n, key in enumerate(PROBLEMS)]
    write_jsonl(folder / "humaneval.prompts.jsonl", prompts)
    entry = {"value": level, "standard_error": 0.05, "count": 30}
    calibration = {
        "metrics": dict.fromkeys(("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy"), entry),
        "profile": [{"length": length, **entry, "value": level * length / 8} for length in (1, 4)],
        "sequences": 30,
        "features": {"weights": "w", "taps": [1], "pooling": "last", "normalize": "joint", "model": "base"},
        "text": "t",
        "settings": {"seed": 0, "horizon": 8},
    }
    rates = dict.fromkeys(("greedy_pass@1", "pass@1", "pass@4"), entry)
    humaneval = {"name": "humaneval", "metrics": rates, "settings": {"seed": 0}}
    (folder / "results.json").write_text(json.dumps({"tasks": {"calibration": calibration, "humaneval": humaneval}}))
