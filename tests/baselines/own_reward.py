"""Rewards of a user's own."""

from typing import Any


def length(completion: str, row: dict[str, Any]) -> float:
    if "a" in completion:
        raise RuntimeError("no a, please")
    return len(completion) + row["bonus"]


def nonsense(completion: str, row: dict[str, Any]) -> Any:
    return {"x": float("nan"), "y": None, "z": 2}[completion]
