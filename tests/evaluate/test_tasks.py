"""Problems of the tasks, how their answers are scored, and records on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.evaluate.generation import Completion
from ebft.evaluate.run_task import run_task
from ebft.evaluate.tasks import ProblemSet, ResumableRecords, problem_sets
from ebft.problems.problem import Question
from ebft.sandbox.box import Sandbox
from tests.problems.rows import HUMANEVAL


def test_the_hub_is_asked_for_the_datasets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(name: str, configuration: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((name, configuration, split))
        return [{**HUMANEVAL, "task_id": f"Test/{n}"} for n in range(3)]

    monkeypatch.setattr("ebft.data.rows.hub_unreachable", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(Sandbox, "check", lambda self: None)
    assert problem_sets("humaneval", EvalOptions(limit=2))[0].keys == ["Test/0", "Test/1"]
    with pytest.raises(ValueError, match="head of a function"):
        problem_sets("multipl-e", EvalOptions(languages=["rs"]))
    assert asked == [("openai/openai_humaneval", None, "test"), ("nuprl/MultiPL-E", "humaneval-rs", "test")]


GOOD, EMPTY = Completion("def f(x):\n    return x\n", "stop", 3), Completion(" \n", "end", 1)
TALK, ENDLESS = Completion("I cannot help with that.", "end", 5), Completion(GOOD.text * 9, "length", 10)


@pytest.mark.parametrize("language", [None, "python"])
def test_answers_of_any_kind_that_are_none_are_counted_once(language: str | None, tmp_path: Path) -> None:
    """Of texts that all score 30, and of programs that are not scored yet."""
    answers = [GOOD, TALK, ENDLESS, EMPTY, GOOD]
    keys = [f"task {place}" for place in range(len(answers))]

    def stream(prompts: Any, settings: Any, wanted: Any, keys: Any) -> Iterator[list[tuple[int, int, Completion]]]:
        yield [(place, sample, answers[place]) for place, sample in wanted[::-1]]

    def score(rows: Sequence[dict[str, Any]], file: Path, ks: Any) -> dict[str, Any]:
        assert [(row["completion"], row["finish"]) for row in rows] == [(one.text, one.finish) for one in answers]
        return {"metrics": {"bleu": {"value": 30.0, "standard_error": 0.0, "count": 5}}}

    problems = ProblemSet("set", keys, {"raw": [Question("English:")] * 5}, 10, score, None, language)
    subject: Any = SimpleNamespace(identity="model", generator=SimpleNamespace(stream=stream))
    options = EvalOptions(samples=0, prompt_style="raw", score=language is None)
    found = run_task("humaneval", options, subject, tmp_path, [problems])
    values = {name: entry["value"] for name, entry in found["metrics"].items()}
    shares = {"greedy_empty": 0.2, "greedy_cut": 0.2}
    assert values == shares | ({"greedy_no_code": 0.2} if language else {"greedy_bleu": 30.0})
    assert found["metrics"]["greedy_cut"]["standard_error"] == pytest.approx(0.2)
    assert found.get("unscored", False) == (language is not None)
    assert found["generations"]["greedy"]["mean_tokens"] == 4.4
    subject.generator.stream = lambda *_: pytest.fail("there is nothing to run its answers")
    found = run_task("humaneval", options, subject, tmp_path, [replace(problems, skipped="no compiler")])
    assert (found["metrics"], found["notes"]) == ({}, ["set is skipped: no compiler"])


def test_records_are_resumed_under_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"x.jsonl was made with another a; resume with the same settings"):
        ResumableRecords(tmp_path, "x", {"a": 1}, EvalOptions())  # nobody knows under which
    kept = ResumableRecords(tmp_path, "y", {"a": (1, 2)}, EvalOptions())
    kept.append([{"text": "one\u2028two"}])  # a line separator inside a text is not the end of a record
    assert ResumableRecords(tmp_path, "y", {"a": [1, 2]}, EvalOptions()).rows == [{"text": "one\u2028two"}]
    with pytest.raises(ConfigError, match="was made with another a, b; resume"):
        ResumableRecords(tmp_path, "y", {"b": 2}, EvalOptions())
    assert ResumableRecords(tmp_path, "y", {"a": [1, 2]}, EvalOptions(replace_changed=True)).rows, "nothing has changed"
    assert ResumableRecords(tmp_path, "y", {"a": 2}, EvalOptions(replace_changed=True)).rows == []
