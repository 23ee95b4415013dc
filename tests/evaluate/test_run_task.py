from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.evaluate.generation import Completion, GenerationSettings
from ebft.evaluate.run_task import joined, run_task, with_prompt_style
from ebft.evaluate.tasks import Asked, ProblemSet


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
    folder: Path, answers: list[Completion], value: float, language: str | None = None, score: bool = True
) -> dict[str, Any]:
    """A set with these answers and this score."""

    class Generator:
        def stream(
            self, prompts: list[str], settings: GenerationSettings, wanted: list[tuple[int, int]], keys: list[str]
        ) -> Iterator[list[tuple[int, int, Completion]]]:
            yield [(place, sample, answers[place]) for place, sample in wanted]

    def scored(texts: list[list[str]], file: Path, finishes: list[list[str]]) -> dict[str, Any]:
        assert texts == [[answer.text] for answer in answers]
        assert finishes == [[answer.finish] for answer in answers]
        return {"metrics": {"bleu": {"value": value, "standard_error": 0.0, "count": len(answers)}}}

    keys = [f"task {place}" for place in range(len(answers))]
    asked = {"raw": Asked(["English:"] * len(answers))}
    problems = ProblemSet("translation", keys, asked, 10, scored if score else None, None, language)
    subject: Any = SimpleNamespace(identity="model", generator=Generator())
    return run_task("humaneval", EvalOptions(samples=0, prompt_style="raw"), subject, folder, [problems])


GOOD, EMPTY = Completion("a house", "stop", 3), Completion(" \n", "end", 1)


def test_empty_answers_are_counted_and_noted_when_they_are_many(tmp_path: Path) -> None:
    found = run(tmp_path / "few", [GOOD] * 19 + [EMPTY], 30.0)
    assert found["generations"]["greedy"]["empty"] == 1
    assert found["notes"] == []
    found = run(tmp_path / "many", [GOOD] * 18 + [EMPTY] * 2, 30.0)
    assert found["generations"]["greedy"]["empty"] == 2
    assert found["notes"] == ["translation, greedy: 2 of 20 answers are empty"]


def test_code_has_shares_of_answers_that_are_no_programs(tmp_path: Path) -> None:
    """Without scores too; each answer counts once."""
    good, talk = Completion("def f(x):\n    return x\n", "end", 5), Completion("I cannot help with that.", "end", 5)
    endless = Completion("def f(x):\n    return x\n" * 9, "length", 10)
    answers = [good, talk, endless, EMPTY, good]
    found = run(tmp_path, answers, 30.0, language="python", score=False)
    shares = {name: found["metrics"][f"greedy_{name}"]["value"] for name in ("empty", "cut", "no_code")}
    assert shares == {"empty": 0.2, "cut": 0.2, "no_code": 0.2}
    assert found["metrics"]["greedy_cut"]["standard_error"] == pytest.approx(0.2)
    assert found["unscored"]


@pytest.mark.parametrize(
    ("style", "template", "asked"),
    [("auto", "{}", "chat"), ("auto", None, "raw"), ("raw", "{}", "raw"), ("chat", None, "chat")],
)
def test_a_model_with_a_chat_template_is_asked_in_a_chat(style: Any, template: str | None, asked: str) -> None:
    subject: Any = SimpleNamespace(tokenizer=SimpleNamespace(chat_template=template))
    assert with_prompt_style(EvalOptions(prompt_style=style), subject).prompt_style == asked
