from __future__ import annotations

import sys
from pathlib import Path

import pytest

OWN = """
def length(completion, row):
    if "a" in completion:
        raise RuntimeError("no a, please")
    return len(completion) + row["bonus"]

def nonsense(completion, row):
    return {"x": float("nan"), "y": None, "z": 2}[completion]
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_reward.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("own_reward", None)
