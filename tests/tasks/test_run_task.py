from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.errors import ConfigError
from ebft.tasks.generation import Completion, GenerationSettings
from ebft.tasks.problem_set import ProblemSet
from ebft.tasks.resumable_records import ResumableRecords
from ebft.tasks.run_task import joined, run_set


def part(name: str, value: float, error: float | None) -> dict[str, Any]:
    metrics = {"pass@1": {"value": value, "standard_error": error, "count": 10}}
    return {"name": name, "metrics": metrics, "problems": 10, "notes": [f"a note on {name}"]}


def test_languages_are_averaged_and_kept() -> None:
    skipped = {"name": "go", "metrics": {}, "problems": 10, "notes": ["go is skipped"], "skipped": "no compiler"}
    found = joined([part("cpp", 0.5, 0.3), skipped, part("js", 0.7, 0.4)])
    mean = found["metrics"]["pass@1"]
    assert (mean["value"], mean["standard_error"], mean["count"]) == (pytest.approx(0.6), pytest.approx(0.25), 20)
    assert found["metrics"]["js pass@1"]["value"] == 0.7
    assert found["problems"] == 20, "a skipped language has no answers"
    assert [p["name"] for p in found["parts"]] == ["cpp", "js", "go"]
    assert len(found["notes"]) == 3


def test_an_unknown_error_leaves_the_mean_without_one() -> None:
    assert joined([part("cpp", 0.5, None), part("js", 0.7, 0.4)])["metrics"]["pass@1"]["standard_error"] is None


def run(
    folder: Path, answers: list[Completion], value: float, prompt: str = "English:", **options: Any
) -> dict[str, Any]:
    """A set with these answers and this score."""

    class Generator:
        def stream(
            self, prompts: list[str], settings: GenerationSettings, wanted: list[tuple[int, int]], keys: list[str]
        ) -> Iterator[list[tuple[int, int, Completion]]]:
            yield [(place, sample, answers[place]) for place, sample in wanted]

    def score(texts: list[list[str]], file: Path, finishes: list[list[str]]) -> dict[str, Any]:
        assert texts == [[answer.text] for answer in answers]
        assert finishes == [[answer.finish] for answer in answers]
        return {"metrics": {"bleu": {"value": value, "standard_error": 0.0, "count": len(answers)}}}

    keys = [f"task {place}" for place in range(len(answers))]
    problems = ProblemSet("translation", keys, [prompt] * len(answers), (), 10, score)
    subject: Any = SimpleNamespace(identity="model", generator=Generator())
    return run_set(problems, EvalOptions(samples=0, **options), subject, folder)


GOOD, EMPTY, CUT = Completion("a house", "stop", 3), Completion(" \n", "end", 1), Completion("a a a", "length", 10)


def test_empty_answers_are_counted_and_noted_when_they_are_many(tmp_path: Path) -> None:
    found = run(tmp_path / "few", [GOOD] * 19 + [EMPTY], 30.0)
    assert found["generations"]["greedy"]["empty"] == 1
    assert found["notes"] == []
    found = run(tmp_path / "many", [GOOD] * 18 + [EMPTY] * 2, 30.0)
    assert found["generations"]["greedy"]["empty"] == 2
    assert found["notes"] == ["translation, greedy: 2 of 20 answers are empty"]


def test_a_score_of_zero_says_why_and_shows_an_answer(tmp_path: Path) -> None:
    found = run(tmp_path, [CUT, EMPTY, EMPTY], 0.0)
    why = (
        "translation, greedy: the score is zero: of 3 answers 2 empty, 1 cut off. For example task 1: after the prompt "
        "'English:' the answer is ' \\n' (end)"
    )
    assert why in found["notes"]
    example = {"task_id": "task 1", "prompt": "English:", "completion": " \n", "finish": "end"}
    assert found["greedy"]["example"] == example
    assert "example" not in run(tmp_path / "good", [GOOD], 1.0)["greedy"]


def test_completions_of_unstripped_prompts_are_not_mixed_with_others(tmp_path: Path) -> None:
    run(tmp_path / "plain", [GOOD], 1.0)
    run(tmp_path / "plain", [GOOD], 1.0)
    run(tmp_path / "spaced", [GOOD], 1.0, prompt="English: ")
    settings = (tmp_path / "spaced" / "translation.greedy.settings.json").read_text()
    assert "trailing_whitespace" in settings
    before = ResumableRecords.__init__

    def as_before(self: ResumableRecords, folder: Path, name: str, settings: dict[str, Any], *rest: Any) -> None:
        before(self, folder, name, {k: v for k, v in settings.items() if k != "trailing_whitespace"}, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResumableRecords, "__init__", as_before)
        run(tmp_path / "old", [GOOD], 1.0, prompt="English: ")
    with pytest.raises(ConfigError, match="was made with trailing_whitespace=null"):
        run(tmp_path / "old", [GOOD], 1.0, prompt="English: ")
