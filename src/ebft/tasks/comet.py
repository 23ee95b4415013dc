"""COMET scores, computed by a process of their own.

unbabel-comet asks for older transformers and numpy than ebft does, so the two rarely live in one environment: the
interpreter of another one can be named. That one needs unbabel-comet and nothing of ebft's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ebft.errors import ConfigError

WORKER = Path(__file__).with_name("comet_worker.py")
NOT_INSTALLED = 3


def scores(triples: Sequence[tuple[str, str, str]], model: str, python: str | None = None) -> list[float]:
    """A score for each (source, translation, reference)."""
    interpreter = python or sys.executable
    if shutil.which(interpreter) is None:
        raise ConfigError(f"--comet-python {interpreter}: no such program")
    with tempfile.TemporaryDirectory(prefix="ebft-comet-") as folder:
        task, result = Path(folder) / "task.json", Path(folder) / "scores.json"
        rows = [{"src": source, "mt": translation, "ref": reference} for source, translation, reference in triples]
        task.write_text(json.dumps({"model": model, "rows": rows}), encoding="utf-8")
        # Its progress goes to standard error, where ours is; only that is kept for the message if it fails.
        done = subprocess.run([interpreter, str(WORKER), str(task), str(result)], stderr=subprocess.PIPE, text=True)
        if done.returncode == NOT_INSTALLED:
            raise ConfigError(
                f"COMET needs unbabel-comet, which {interpreter} does not have; make an environment for it (python -m "
                "venv comet && comet/bin/pip install unbabel-comet) and name it with --comet-python comet/bin/python"
            )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"COMET with the model {model!r} failed: {reason}")
        found = json.loads(result.read_text())
    if len(found) != len(triples):
        raise ConfigError(f"COMET gave {len(found)} scores for {len(triples)} translations")
    return found
