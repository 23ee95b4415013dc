"""Programs in the languages of MultiPL-E: right ones pass, hostile ones do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebft.problems.problem import run_tests
from ebft.sandbox.command import Limits
from ebft.sandbox.isolated_tests import Outcome
from tests.sandbox.attacks.others import ATTACKS, RIGHT, own_problem
from tests.sandbox.sandboxed import Background, in_background, many_files, needs_language, needs_sandbox


def cases(answers: dict[str, list[str]] | dict[str, dict[str, str]]) -> list[object]:
    return [
        pytest.param(language, answer, id=f"{language}-{place}", marks=[needs_sandbox, needs_language(language)])
        for language, of_language in answers.items()
        for place, answer in (of_language.items() if isinstance(of_language, dict) else enumerate(of_language))
    ]


@pytest.fixture(scope="module")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    def run(chosen: dict[str, str]) -> Outcome:
        right = chosen["answer"] in RIGHT[chosen["language"]]
        limits = Limits(seconds=30.0) if right else Limits(seconds=4.0, memory_mib=512, output_kib=64)
        return run_tests(own_problem(chosen["language"]), chosen["answer"], limits=limits)

    yield from in_background(request, run)


@pytest.mark.parametrize(("language", "answer"), cases(RIGHT))
def test_right_answers_pass(language: str, answer: str, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, _ = background[request.node.name].result()
    assert outcome.passed, outcome


@pytest.mark.parametrize(("language", "answer"), cases(ATTACKS))
def test_hostile_answers_do_not_pass(
    language: str, answer: str, background: Background, request: pytest.FixtureRequest
) -> None:
    outcome, seconds = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome
    assert seconds < 60
    # For the reason that is meant: it ran, and the tests found it wrong or were never finished.
    if answer == ATTACKS[language]["exits"]:
        assert "ended" in outcome.message
    if answer == ATTACKS[language]["wrong"]:
        assert "compile" not in outcome.message
        assert "ended" not in outcome.message


@pytest.mark.parametrize("files", [100, 498, 1100])  # beyond the program's limit, `seccomp.PROGRAM`, `select`'s limit
@pytest.mark.parametrize(("language", "answer"), cases({name: RIGHT[name][:1] for name in ("php", "js", "cpp")}))
def test_whoever_scores_may_have_many_files_open(language: str, answer: str, files: int) -> None:
    """PHP compares numbers of descriptors with its limit; the others do not."""
    with many_files(files):
        outcome = run_tests(own_problem(language), answer, limits=Limits(seconds=30.0))
    assert outcome.passed, outcome


@needs_sandbox
@needs_language("php")
def test_php_has_the_extensions_of_the_usual_builds() -> None:
    doubled = "[$start, ...array_map(fn($n) => 2 * $n, $numbers)]"
    answer = f"    return ctype_alpha('abc') && !ctype_digit('a') ? {doubled} : [];\n}}\n"
    outcome = run_tests(own_problem("php"), answer, limits=Limits(seconds=30.0))
    assert outcome.passed, outcome


# Each answers rightly only if it can start a process.
STARTS = {
    "js": "    const done = require('child_process').spawnSync('/usr/bin/true');\n"
    "    return done.status === 0 ? [start, ...numbers.map(n => 2 * n)] : [];\n}\n",
    "php": "    exec('/usr/bin/true', $said, $status);\n"
    "    return $status === 0 ? [$start, ...array_map(fn($n) => 2 * $n, $numbers)] : [];\n}\n",
}


@needs_sandbox
@pytest.mark.parametrize("language", [pytest.param(name, marks=needs_language(name)) for name in STARTS])
def test_scripts_start_no_processes(language: str) -> None:
    outcome = run_tests(own_problem(language), STARTS[language], limits=Limits(seconds=30.0))
    assert outcome.status == "failed", outcome
