"""Problems of the tasks, how their answers are scored, and records on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError, DataError
from ebft.evaluate import scoring
from ebft.evaluate.tasks import ResumableRecords, problem_sets
from ebft.sandbox.box import Sandbox
from ebft.sandbox.python_tests import Outcome
from tests.problems.pairs import write
from tests.problems.rows import HUMANEVAL


def test_the_hub_is_asked_for_the_datasets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = [{**HUMANEVAL, "task_id": f"Test/{n}"} for n in range(3)]
    asked: list[Any] = []

    def load_dataset(name: str, configuration: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((name, configuration, split))
        return rows

    monkeypatch.setattr("ebft.data.rows.hub_unreachable", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(Sandbox, "check", lambda self: None)
    sets = problem_sets("humaneval", EvalOptions(limit=2))
    assert sets[0].keys == ["Test/0", "Test/1"]
    with pytest.raises(ValueError, match=r"test_list|text"):
        problem_sets("mbpp", EvalOptions())
    with pytest.raises(ValueError, match="head of a function"):
        problem_sets("multipl-e", EvalOptions(languages=["rs"]))
    assert asked == [
        ("openai/openai_humaneval", None, "test"),
        ("google-research-datasets/mbpp", "full", "test"),
        ("nuprl/MultiPL-E", "humaneval-rs", "test"),
    ]


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def run_many(attempts: Any, *rest: Any) -> Any:
        for attempt in attempts:
            yield attempt, Outcome("passed" if attempt.answer == "right" else "failed")

    monkeypatch.setattr(scoring, "run_many", run_many)
    monkeypatch.setattr(Sandbox, "check", lambda self: None)
    return write(tmp_path / "problems.jsonl", [{**HUMANEVAL, "task_id": name} for name in ("a", "b", "c")])


def test_completions_are_scored(problems: str, tmp_path: Path) -> None:
    [found] = problem_sets("humaneval", EvalOptions(humaneval=problems, limit=2, unsafe_exec=True, timeout=3))
    assert list(found.keys) == ["a", "b"]
    rows = [
        {"task_id": key, "sample": number, "completion": text, "finish": "length" if number == 1 else "end"}
        for key, texts in (("a", ["right", "wrong"] * 2), ("b", ["wrong"] * 4))
        for number, text in enumerate(texts)
    ]
    file = found.scores_file(tmp_path / "humaneval.samples.jsonl")
    scored = found.score(rows, file, (1, 4, 16))
    values = {name: entry["value"] for name, entry in scored["metrics"].items()}
    assert values == {"pass@1": 0.25, "pass@4": 0.5}
    assert scored["notes"] == [], "the problem beyond the limit was not asked for"
    assert scored["counts"]["problems"] == 2
    assert scored["settings"]["seconds"] == 3
    assert file.name == "humaneval.samples.scores.samples.jsonl"
    assert len(file.read_text().splitlines()) == 8


def test_mistakes_show_before_anything_is_generated(problems: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"humaneval-js\.jsonl: no such file"):
        problem_sets("multipl-e", EvalOptions(multipl_e=str(tmp_path), languages=["js"]))


def test_records_are_resumed_under_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"x.jsonl was made with another a; resume with the same settings"):
        ResumableRecords(tmp_path, "x", {"a": 1})  # nobody knows under which
    kept = ResumableRecords(tmp_path, "y", {"a": (1, 2)})
    kept.append([{"text": "one\u2028two"}])  # a line separator inside a text is not the end of a record
    assert ResumableRecords(tmp_path, "y", {"a": [1, 2]}).rows == [{"text": "one\u2028two"}]
    with pytest.raises(ConfigError, match="was made with another a, b; resume"):
        ResumableRecords(tmp_path, "y", {"b": 2})
    assert ResumableRecords(tmp_path, "y", {"a": [1, 2]}, replace_changed=True).rows, "nothing has changed"
    assert ResumableRecords(tmp_path, "y", {"a": 2}, replace_changed=True).rows == []
