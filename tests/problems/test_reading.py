"""Answers that are made to be slow to read: patterns are linear, and what is slow all the same holds up nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ebft.problems import reading
from ebft.problems.answers import python_variants
from ebft.problems.problem import Problem
from ebft.problems.reading import CannotRead, read_answer
from ebft.sandbox import bridges
from tests.sandbox.attacks.others import PROBLEMS, RIGHT, own_problem

LENGTH = 40_000  # at half of it, quadratic patterns took 16 s
PIECES = (
    "\n", "x\n", " ", "```\n", "static ", "join_numbers(", "joinNumbers(", "JoinNumbers (", "{", "}", "class A ", "=",
    "public static ", "namespace a {\n", "namespace a;\n", "import a\n", "using a = ", "package ", "struct A {",
    "static class A {\n", "a.",
)  # fmt: skip


@pytest.mark.parametrize("language", PROBLEMS)
def test_reading_takes_linear_time(language: str) -> None:
    """Twice as long may take twice as long; a quadratic pattern needs minutes for one of these."""
    problem = own_problem(language)
    name = bridges.signature(language, problem.head).name + "("
    for piece in PIECES:
        for before, after in (("", ""), ("```\n", ""), (f"```\nstatic void {name}", "\n) {"), ("using a =", "")):
            answer = (before + piece * (LENGTH // len(piece)))[: LENGTH - len(after)] + after
            started = time.process_time()
            problem.interpretations(answer)
            assert time.process_time() - started < 2, (piece, before)


@pytest.mark.parametrize("piece", ["\n", " ", "```\n", "def add(", "\ndef ", "[BEGIN]", "x = "])
def test_reading_python_takes_linear_time(piece: str) -> None:
    started = time.process_time()
    python_variants("def add(a, b):\n", piece * (LENGTH // len(piece)), "add")
    assert time.process_time() - started < 3


def test_an_answer_of_many_blocks_is_not_compiled_many_times() -> None:
    answer = "".join(f"```\nlong join_numbers(int a{n}) {{ return {n}; }}\n```\n" for n in range(1000))
    assert len(own_problem("cpp").interpretations(answer)) <= 8


@pytest.mark.parametrize("language", PROBLEMS)
def test_another_process_reads_the_same(language: str) -> None:
    problem = own_problem(language)
    for answer in [*RIGHT[language], "\ud800 \x00"]:
        assert read_answer(problem, answer) == list(problem.interpretations(answer))


@dataclass(frozen=True)
class Slow(Problem):
    def interpretations(self, answer: str) -> Sequence[Any]:
        if answer == "hang":
            time.sleep(60)
        if answer == "crash":
            os.abort()
        return [answer]


def test_a_reader_that_hangs_or_crashes_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 3.0)
    problem = Slow("slow")
    assert read_answer(problem, "fine") == ["fine"]
    with pytest.raises(CannotRead, match="could not be read within 3 s"):
        read_answer(problem, "hang")
    with pytest.raises(CannotRead, match="failed on this one"):
        read_answer(problem, "crash")
    assert read_answer(problem, "fine") == ["fine"]
