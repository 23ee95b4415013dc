from __future__ import annotations

from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.sandbox.box import Sandbox
from ebft.tasks.registry import problem_sets
from tests.problems.rows import HUMANEVAL


def test_the_hub_is_asked_for_the_datasets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = [{**HUMANEVAL, "task_id": f"Test/{n}"} for n in range(3)]
    asked: list[Any] = []

    def load_dataset(name: str, configuration: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((name, configuration, split))
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(Sandbox, "check", lambda self: None)
    sets = problem_sets("humaneval", EvalOptions(limit=2))
    assert sets[0].keys == ["Test/0", "Test/1"]
    with pytest.raises(ValueError, match=r"test_list|text"):
        problem_sets("mbpp", EvalOptions())
    with pytest.raises(ValueError, match="field"):
        problem_sets("multipl-e", EvalOptions(languages=["rs"]))
    assert asked == [
        ("openai/openai_humaneval", None, "test"),
        ("google-research-datasets/mbpp", "full", "test"),
        ("nuprl/MultiPL-E", "humaneval-rs", "test"),
    ]
