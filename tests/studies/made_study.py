"""Runs written by hand, so that every number in a comparison is known, and the folder of a study: three methods, two
seeds, a base model, evaluations with answers."""

import json
import random
from pathlib import Path
from typing import Any

RULER = {"context_length": 48, "network": "aa", "validation": "bb", "samples": 4, "whitening": "reference"}
PROBLEMS = [f"problem/{number}" for number in range(12)]
NASTY = '</script><script>alert(1)</script> <b>bold</b> & "quotes" $x_1$ | `code`'


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(folder: Path, values: list[float], method: str = "ebft", finished: bool = True, **changes: Any) -> Path:
    """values: the feature-matching losses of its validations. changes: in how these measure."""
    lines: list[dict[str, Any]] = []
    for place, value in enumerate(values):
        entry: dict[str, Any] = {"step": 10 * place, "eval_cfm": value, "eval_cfm_se": 0.01}
        entry |= {"eval_cross_entropy": value + 1, "eval_cross_entropy_se": 0.02, "eval_whitened_proxy": -value}
        entry |= {"spent/seconds": 2.0 * place, "spent/tokens": 100 * place, "spent/flops": 1e9 * place}
        lines += [{"step": 10 * place, "loss": 0.1, "reward": 0.25}, {**entry, "eval_reward": 7.0}]
    write_jsonl(folder / "metrics.jsonl", lines)
    results: dict[str, Any] = {"method": method, "ruler": {**RULER, **changes}}
    if finished:
        results["steps"] = 10 * (len(values) - 1)
    if finished and values:
        last, results["after"] = values[-1], {"eval_cfm": values[-1]}
        # Three sequences of very different difficulty, and more so for a worse model.
        of_all = {"tokens": 10, "contexts": 2, "whitened_proxy": -last}
        found = [{"log_probs": -10 * (last + n), "cfm": last + (n - 1) * (1 + last / 10)} for n in range(3)]
        write_jsonl(folder / "validation-after.jsonl", [{"sequence": n, **of_all, **f} for n, f in enumerate(found)])
    (folder / "results.json").write_text(json.dumps(results))
    return folder


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
        run = make_run(folder / "runs" / place, [level / 2 + n / 4 + draw.gauss(0, 0.01) for n in (2, 1, 0)], kind)
        # gamma is EBFT's
        settings = {"learning_rate": level, "gamma": level, "context_length": 64, "output_dir": str(run)}
        (run / "resolved.json").write_text(json.dumps(settings))
    _make_evaluation(folder / "evaluations" / place, level, draw)
    return {"seed": seed, "run": seed if seed is None else f"runs/{place}", "evaluation": f"evaluations/{place}"}


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
