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
    levels = levels or {"sft": 1.0, "ebft": 0.5, "rlvr": 1.5}
    rows: list[dict[str, Any]] = [_row("base", "base", [_model(folder, "base", None, 2.0)])]
    for name, level in levels.items():
        for gamma in gammas if name == "ebft" and gammas else (None,):
            values = {} if gamma is None else {"alpha": gamma, "gamma": gamma}
            row_name = name if gamma is None else f"{name},alpha={gamma:g},gamma={gamma:g}"
            models = [_model(folder, row_name, seed, level + (gamma or 0), name) for seed in (0, 1)]
            rows.append(_row(row_name, name, models, values))
    manifest = {
        "study": f"a study {NASTY}",
        "command": ["ebft", "study", "run", "study.yaml"],
        "started": "2026-01-01T00:00:00",
        "code": {"ebft": "0.0"},
        "machine": {"platform": "none"},
        "paper": None,
        "rows": rows,
        "jobs": {},
    }
    (folder / "study.json").write_text(json.dumps(manifest))
    return folder


def _row(name: str, kind: str, models: list[dict[str, Any]], values: dict[str, Any] | None = None) -> dict[str, Any]:
    title = kind if not values else f"{kind} ({', '.join(f'{k} {v:g}' for k, v in values.items())})"
    return {
        "name": name,
        "title": title,
        "kind": kind,
        "method": kind,
        "values": values or {},
        "chosen": {},
        "choose_by": "cross_entropy",
        "searched": [],
        "models": models,
    }


def _model(folder: Path, name: str, seed: int | None, level: float, kind: str = "base") -> dict[str, Any]:
    place = name if seed is None else f"{name},seed={seed}"
    draw = random.Random(place)
    if seed is not None:
        make_trained(folder / "runs" / place, level, kind, draw)
    make_evaluation(folder / "evaluations" / place, level, draw)
    return {
        "seed": seed,
        "run": None if seed is None else f"runs/{place}",
        "log": None if seed is None else f"logs/{place}.log",
        "evaluation": f"evaluations/{place}",
        "evaluation_log": f"logs/evaluate-{place}.log",
    }


def make_trained(run: Path, level: float, kind: str, draw: random.Random) -> None:
    entries = []
    for step in (0, 10, 20):
        value = level + (20 - step) / 20 + draw.gauss(0, 0.02)
        entry = {
            "step": step,
            "eval_cross_entropy": value,
            "eval_cross_entropy_se": 0.05,
            "eval_cfm": value / 2,
            "eval_reward": 9.0,
            "spent/tokens": 1000 * step,
            "spent/seconds": 2.0 * step,
            "spent/flops": 1e9 * step,
        }
        if kind == "rlvr":
            entry |= {"reward": step / 40, "a/very/long/name/of/something/that/training/logs/now/and/then": 1.0}
        entries.append(entry)
    write_jsonl(run / "metrics.jsonl", entries)
    settings = {"learning_rate": level, "context_length": 64, "output_dir": str(run)}
    (run / "resolved.json").write_text(json.dumps(settings))
    (run / "recipe.yaml").write_text(f"learning_rate: {level}\ncontext_length: 64\n")
    results = {"method": kind, "steps": 20, "ruler": {"validation": "v", "network": "n"}, "spent": {"seconds": 40.0}}
    (run / "results.json").write_text(json.dumps(results))


def make_evaluation(folder: Path, level: float, draw: random.Random) -> None:
    items = random.Random(7)  # the same sequences are hard for all
    records = []
    for sequence in range(30):
        hard = items.gauss(0, 0.3)
        value = level + hard + draw.gauss(0, 0.05)
        records.append(
            {
                "sequence": sequence,
                "tokens": 10,
                "log_probs": -10 * value,
                "answer_tokens": 5,
                "answer_log_probs": -5 * value,
                "contexts": 2,
                "cfm": value / 2,
                "whitened_proxy": -value,
                "reward": -value,
                "profile_contexts": 1,
                "cfm_at_1": value / 4,
                "cfm_at_4": value / 2,
            }
        )
    write_jsonl(folder / "calibration.jsonl", records)
    entry = {"value": level, "standard_error": 0.05, "count": 30}
    profile = [{"length": length, **entry, "value": level * length / 8} for length in (1, 4)]
    passed = [items.random() > level / 2 for _ in PROBLEMS]
    for decoding, samples in ("greedy", 1), ("samples", 4):
        rows = [
            (key, s, p if decoding == "greedy" else p and draw.random() > 0.3)
            for key, p in zip(PROBLEMS, passed, strict=True)
            for s in range(samples)
        ]
        write_jsonl(
            folder / f"humaneval.{decoding}.jsonl",
            [{"task_id": key, "sample": s, "completion": f"return {s} # {folder.name} {NASTY}"} for key, s, _ in rows],
        )
        write_jsonl(
            folder / f"humaneval.{decoding}.scores.samples.jsonl",
            [
                {
                    "task_id": key,
                    "sample": s,
                    "status": "passed" if p else "failed",
                    "message": "" if p else f"AssertionError: {NASTY}",
                }
                for key, s, p in rows
            ],
        )
    write_jsonl(
        folder / "humaneval.prompts.jsonl",
        [{"task_id": key, "prompt": f"def f{n}(x): needle{n} {NASTY}"} for n, key in enumerate(PROBLEMS)],
    )
    metrics = {"cross_entropy": entry, "answer_cross_entropy": entry, "cfm": entry, "whitened_proxy": entry}
    rates = {"greedy_pass@1": entry, "pass@1": entry, "pass@4": entry}
    features = {"weights": "w", "taps": [1], "pooling": "last", "normalize": "joint", "model": "base"}
    results = {
        "tasks": {
            "calibration": {
                "metrics": metrics,
                "profile": profile,
                "sequences": 30,
                "features": features,
                "text": "t",
                "settings": {"seed": 0, "horizon": 8},
            },
            "humaneval": {"name": "humaneval", "metrics": rates, "settings": {"seed": 0}},
        }
    }
    (folder / "results.json").write_text(json.dumps(results))
