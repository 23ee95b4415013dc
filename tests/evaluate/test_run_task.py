from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebft.config.evaluation import EvalOptions
from ebft.evaluate.generation import Completion
from ebft.evaluate.run_task import run_task, with_prompt_style
from ebft.evaluate.scoring import over_sets
from ebft.evaluate.tasks import ProblemSet
from ebft.problems.problem import Question


def test_languages_are_averaged_and_kept() -> None:
    def part(name: str, value: float, error: float | None) -> dict[str, Any]:
        return {"name": name, "metrics": {"pass@1": {"value": value, "standard_error": error, "count": 10}}}

    found = over_sets([part("cpp", 0.5, 0.3), part("js", 0.7, 0.4)])
    mean = found["pass@1"]
    assert (mean["value"], mean["standard_error"], mean["count"]) == (pytest.approx(0.6), pytest.approx(0.25), 20)
    assert found["js pass@1"]["value"] == 0.7
    assert over_sets([part("cpp", 0.5, None), part("js", 0.7, 0.4)])["pass@1"]["standard_error"] is None


GOOD, EMPTY = Completion("def f(x):\n    return x\n", "stop", 3), Completion(" \n", "end", 1)


def run(folder: Path, answers: list[Completion], language: str | None = None) -> dict[str, Any]:
    """A set with these answers: programs that are not scored yet, or texts that all score 30."""
    keys = [f"task {place}" for place in range(len(answers))]

    def stream(prompts: Any, settings: Any, wanted: Any, keys: Any) -> Iterator[list[tuple[int, int, Completion]]]:
        yield [(place, sample, answers[place]) for place, sample in wanted[::-1]]

    def score(rows: Sequence[dict[str, Any]], file: Path, ks: Any) -> dict[str, Any]:
        found = [(row["task_id"], row["completion"], row["finish"]) for row in rows]
        assert found == [(key, answer.text, answer.finish) for key, answer in zip(keys, answers, strict=True)]
        assert file == folder / "set.greedy.scores.jsonl"
        return {"metrics": {"bleu": {"value": 30.0, "standard_error": 0.0, "count": len(answers)}}}

    problems = ProblemSet("set", keys, {"raw": [Question("English:")] * len(answers)}, 10, score, None, language)
    subject: Any = SimpleNamespace(identity="model", generator=SimpleNamespace(stream=stream))
    options = EvalOptions(samples=0, prompt_style="raw", score=language is None)
    return run_task("humaneval", options, subject, folder, [problems])


def test_answers_of_any_kind_that_are_none_are_counted(tmp_path: Path) -> None:
    found = run(tmp_path, [GOOD, Completion("An endless answer", "context", 9), EMPTY, GOOD])
    values = {name: entry["value"] for name, entry in found["metrics"].items()}
    assert values == {"greedy_bleu": 30.0, "greedy_empty": 0.25, "greedy_cut": 0.25}
    assert found["generations"]["greedy"]["mean_tokens"] == 4


def test_code_has_shares_of_answers_that_are_no_programs(tmp_path: Path) -> None:
    """Without scores too; each answer counts once."""
    talk, endless = Completion("I cannot help with that.", "end", 5), Completion(GOOD.text * 9, "length", 10)
    found = run(tmp_path, [GOOD, talk, endless, EMPTY, GOOD], language="python")
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
