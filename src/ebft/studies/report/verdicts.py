"""A plain sentence for each question, made from the tests and never stronger than they allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ebft.studies.metric_facts import facts
from ebft.studies.report.evidence import VALIDATION
from ebft.studies.report.study_tables import SIGNIFICANT, Ranking, p_text, summary_of
from ebft.studies.report.tables import digits_for, shown


@dataclass(frozen=True)
class Verdict:
    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question} {self.answer}"


def verdicts(ranked: Sequence[Ranking], of_kinds: Sequence[Ranking] = ()) -> list[Verdict]:
    return [
        *(Verdict(_question(one.metric), _answer(one, _tests(ranked)) + _head_starts(one)) for one in ranked),
        *(Verdict(_question_of_kinds(one), _answer(one, _tests(of_kinds)) + _head_starts(one)) for one in of_kinds),
    ]


def _tests(ranked: Sequence[Ranking]) -> int:
    return sum(not math.isnan(one.p) for one in ranked)


def _head_starts(one: Ranking) -> str:
    """What was trained before counts for a row that started from there, and not for the other."""
    if one.best.after == one.second.after:
        return ""
    warm = [row for row in (one.best, one.second) if row.after is not None]
    return "".join(
        f" {row.title} started from the final models of {row.after}, so it had more training." for row in warm
    )


def _question_of_kinds(one: Ranking) -> str:
    question = _question(one.metric).removesuffix("?").removeprefix("Which ")
    return f"Of {one.best.kind} and {one.second.kind}, each with its best row: which {question}?"


def _question(metric: str) -> str:
    about = facts(metric)
    where = "on validation data" if metric.startswith(f"{VALIDATION} ") else "on the test data"
    if about.is_rate:
        return f"Which solves the most problems, by {about.title}?"
    return f"Which has the {'lowest' if about.smaller_is_better else 'highest'} {about.title} {where}?"


def _answer(one: Ranking, tests: int) -> str:
    best, second = (summary_of(row, one.metric) for row in (one.best, one.second))
    assert best is not None
    assert second is not None
    values = f"{one.best.title} has {shown(best.value)}, {one.second.title} {shown(second.value)}"
    if one.test is None or math.isnan(one.p):
        return f"{values}. This cannot be tested here, so it is no ranking."
    if one.test.value == 0:
        return f"{values}: the same."
    interval = one.test.interval
    digits = 4 if interval is None else digits_for(interval.high - interval.low)
    gap = f"difference {shown(one.test.value, digits, sign=True)}"
    if interval is not None:
        gap += f", 95 % interval {shown(interval.low, digits, True)} to {shown(interval.high, digits, True)}"
    p = p_text(one.test.p)
    gap += f", p {p if p.startswith('<') else f'= {p}'}"
    if tests > 1:  # the interval is of this test alone, and may leave out 0 where the corrected p is not small
        gap += f" alone, {p_text(one.p)} after correction for {tests} tests"
    if not one.p < SIGNIFICANT:
        more = "more seeds or more test data" if one.test.seeds > 1 else "more seeds and more test data"
        return f"Not decided: {values} ({gap}). It would take {more}."
    won = f"{one.best.title}, with {shown(best.value)}; {one.second.title} has {shown(second.value)} ({gap})."
    if one.test.seeds > 1:
        return won
    return f"Of these very models {won} With one training run each, this says nothing about training again."
