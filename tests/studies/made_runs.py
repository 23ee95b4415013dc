"""Run folders written by hand, so that every number in a comparison is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VALIDATION = {"context_length": 48, "network": "aa", "validation": "bb", "samples": 4, "whitening": "reference"}


def sequences(cfm: float, tilt: float = 0.0) -> list[dict[str, Any]]:
    """Records of three sequences of very different difficulty: `tilt` makes the first easier and the last harder."""
    return [
        {
            "sequence": number,
            "tokens": 10,
            "log_probs": -10 * (cfm + 1 + offset),
            "contexts": 2,
            "cfm": cfm + offset + tilt * offset,
            "whitened_proxy": -cfm,
        }
        for number, offset in enumerate((-1.0, 0.0, 1.0))
    ]


def make_run(
    folder: Path,
    values: list[float],
    method: str = "ebft",
    finished: bool = True,
    spent: bool = True,
    records: bool = True,
    tilt: float = 0.0,
    **changes: Any,
) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for place, value in enumerate(values):
        entry: dict[str, Any] = {"step": 10 * place, "eval_cfm": value, "eval_cfm_se": 0.01}
        entry |= {"eval_cross_entropy": value + 1, "eval_cross_entropy_se": 0.02, "eval_whitened_proxy": -value}
        if spent:
            entry |= {"spent/seconds": 2.0 * place, "spent/tokens": 100 * place, "spent/flops": 1e9 * place}
        lines += [json.dumps({"step": 10 * place, "loss": 0.1}), json.dumps(entry)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    results: dict[str, Any] = {"method": method, "ruler": {**VALIDATION, **changes}}
    if finished:
        results["steps"] = 10 * (len(values) - 1)
    if finished and values and records:
        results["after"] = {"eval_cfm": values[-1]}
        lines = [json.dumps(record) for record in sequences(values[-1], tilt)]
        (folder / "validation-after.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "results.json").write_text(json.dumps(results))
    return folder
