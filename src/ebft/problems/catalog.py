"""The benchmarks whose answers are programs, by name. A new one has a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable

from ebft.errors import DataError
from ebft.problems.multipl_e import multipl_e_problem
from ebft.problems.problem import Problem, Record, read_records
from ebft.problems.python_problems import humaneval_problem, mbpp_problem

BENCHMARKS: dict[str, Callable[[Record], Problem]] = {
    "humaneval": humaneval_problem,
    "mbpp": mbpp_problem,
    "multipl-e": multipl_e_problem,
}


def load_problems(benchmark: str, source: str) -> list[Problem]:
    """The problems of one of BENCHMARKS, from a JSONL file or a hub dataset (`name` or `name:configuration`)."""
    problems: dict[tuple[str, str], Problem] = {}
    for record in read_records(source):
        problem = BENCHMARKS[benchmark](record)
        if problems.setdefault((problem.task_id, problem.language), problem) is not problem:
            raise DataError(f"{record.where}: the task {problem.task_id!r} is there already")
    return [*problems.values()]
