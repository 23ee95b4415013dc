"""Programs in the languages of MultiPL-E: right ones pass, hostile ones do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebft.problems.problem import Attempt, run_tests
from ebft.sandbox import other_languages
from ebft.sandbox.box import Command, Finished, Limits, Sandbox
from ebft.sandbox.other_languages import LANGUAGES, locate
from ebft.sandbox.python_tests import Outcome
from tests.hard.honest import attempts
from tests.sandbox.attacks.others import ATTACKS
from tests.sandbox.multipl_e import own_problem
from tests.sandbox.sandboxed import Background, in_background, many_files, needs_language, needs_sandbox

LONG = Limits(seconds=30.0)


def case(language: str, name: str, attempt: Attempt) -> object:
    return pytest.param(attempt, id=f"{language}-{name}", marks=[needs_sandbox, needs_language(language)])


# The first two of each language and all unusual shapes; `python -m tests.hard.honest` runs all.
HONEST = [
    case(language, attempt.tag[1], attempt)
    for language in LANGUAGES
    for place, attempt in enumerate(attempts(language))
    if place < 2 or "shapes" in attempt.tag[0]
]
HOSTILE = [
    case(language, name, Attempt(own_problem(language), answer, (language, name)))
    for language, answers in ATTACKS.items()
    for name, answer in answers.items()
]


@pytest.fixture(scope="module")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    def run(chosen: dict[str, Attempt]) -> Outcome:
        attempt = chosen["attempt"]
        hostile = attempt.tag[1] in ATTACKS.get(attempt.tag[0], ())
        limits = Limits(seconds=6.0, memory_mib=512, output_kib=64) if hostile else LONG
        return run_tests(attempt.problem, attempt.answer, limits=limits)

    yield from in_background(request, run)


@pytest.mark.parametrize("attempt", HONEST)
def test_right_answers_pass(attempt: Attempt, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, _ = background[request.node.name].result()
    assert outcome.passed, outcome


@pytest.mark.parametrize("attempt", HOSTILE)
def test_hostile_answers_do_not_pass(attempt: Attempt, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, _ = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome
    # For the reason that is meant: it ran, and the tests found it wrong or were never finished.
    name = attempt.tag[1]
    if name in ("exits", "exits early", "prints"):
        assert "ended before" in outcome.message
    elif name not in ("wrong types", "allocates forever", "prints forever"):
        assert outcome.message.startswith("exit code") or "ended before" in outcome.message, outcome


@needs_sandbox
@needs_language("cpp")
@pytest.mark.parametrize("files", [100, 498, 1100])  # beyond the program's limit, `seccomp.PROGRAM`, `select`'s limit
def test_whoever_scores_may_have_many_files_open(files: int) -> None:
    attempt = attempts("cpp")[0]
    with many_files(files):
        outcome = run_tests(attempt.problem, attempt.answer, limits=LONG)
    assert outcome.passed, outcome


@needs_sandbox
@needs_language("php")
def test_php_has_the_extensions_of_the_usual_builds() -> None:
    doubled = "[$start, ...array_map(fn($n) => 2 * $n, $numbers)]"
    answer = f"    return ctype_alpha('abc') && !ctype_digit('a') ? {doubled} : [];\n}}\n"
    outcome = run_tests(own_problem("php"), answer, limits=LONG)
    assert outcome.passed, outcome


def test_a_bomb_costs_one_limit_for_all_interpretations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each interpretation alone stays below it."""
    told, now = [], [0.0]

    class Slow(Sandbox):
        def run(self, command: Command) -> Finished:
            told.append(command.limits.seconds)
            now[0] += 12.0
            late = command.limits.seconds < 12.0
            return Finished("timeout" if late else "exited", 1, b"", b"error: no")

    monkeypatch.setattr(other_languages.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(other_languages, "locate", lambda program: (program, ()))
    programs = [(f"{n}", "") for n in range(9)]
    outcome = other_languages.run_program("cpp", "f", programs, "int main() {}", Slow(), LONG)
    assert told == [30.0, 18.0, 6.0]
    assert outcome == Outcome("failed", "does not compile within 30 s")


def test_a_missing_toolchain_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for language, package in (("cpp", "g++"), ("go", "golang-go"), ("php", "php-cli"), ("cs", "mono-mcs")):
        reason = LANGUAGES[language].missing()
        assert reason is not None
        assert f"apt install {package}" in reason
        assert own_problem(language).unavailable() == reason


def test_a_program_of_a_projects_folder_comes_with_the_packages_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "project" / "node_modules"
    program = packages / "typescript" / "bin" / "tsc"
    for folder in (program.parent, packages / ".bin"):
        folder.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (packages / ".bin" / "tsc").symlink_to("../typescript/bin/tsc")
    monkeypatch.setenv("PATH", f"{packages / '.bin'}:{os.defpath}")
    assert locate("tsc") == (str(program), (str(packages),))
