"""Runs of the command `ebft`, for the tests of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = [{"prompt": f"{a}+{b}=", "completion": f"{a + b}, that is all"} for a in range(6) for b in range(6)]


SETTINGS = {
    "context_length": 48,
    "answer_only": False,
    "horizon": 4,
    "stride": 4,
    "samples": 2,
    "per_device_train_batch_size": 2,
    "max_steps": 3,
    "logging_steps": 1,
    "save_steps": 2,
    "samples_every": 2,
    "validation_split": 0.2,
    "prompt_separator": "",
    "validation_sequences": 4,
    "learning_rate": 1e-4,
    "use_cpu": True,
}


def write_rows(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def ebft(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    command = [sys.executable, "-m", "ebft", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150)


@dataclass
class Finished:
    arguments: list[str]
    output: Path
    done: subprocess.CompletedProcess[str]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


Refused = Callable[..., str]
