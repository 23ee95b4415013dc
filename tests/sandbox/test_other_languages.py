"""Programs in the languages of MultiPL-E: right ones pass, hostile ones do not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebft.problems.problem import Attempt
from ebft.sandbox.box import Limits
from ebft.sandbox.other_languages import LANGUAGES, locate
from tests.hard.honest import attempts
from tests.sandbox.attacks.others import ATTACKS
from tests.sandbox.multipl_e import own_problem
from tests.sandbox.sandboxed import needs_language, needs_sandbox, not_passed

EVERY = [pytest.param(language, marks=[needs_sandbox, needs_language(language)]) for language in LANGUAGES]
# A compiler of C++ takes seconds for all that MultiPL-E includes: it gets less here, and of its unusual shapes two.
SHAPES = {"cpp": ("repeated and cut off", "[[nodiscard]]")}
HEADERS = "#include <vector>\n#include <csignal>\n#include <cstdlib>\n#include <cstdio>\n#include <cstring>\n"


def lighter(attempt: Attempt) -> Attempt:
    raw = attempt.problem.raw
    less = raw._replace(prompt=raw.prompt.replace("#include<bits/stdc++.h>", f"{HEADERS}#include <unistd.h>\n"))
    return replace(attempt, problem=replace(attempt.problem, raw=less))


@pytest.mark.parametrize("language", EVERY)
def test_right_answers_pass(language: str) -> None:
    """The first of each kind and unusual shapes; `python -m tests.hard.honest` runs all."""
    answers = attempts(language)
    shapes = [attempt for attempt in answers if "shapes" in attempt.tag[0]]
    chosen = [one for one in shapes if one.tag[1].endswith(SHAPES.get(language, ""))]
    assert not_passed(map(lighter, [*answers[: 1 if language in SHAPES else 2], *chosen])) == {}


@pytest.mark.parametrize("language", EVERY)
def test_hostile_answers_do_not_pass(language: str) -> None:
    attacks = [lighter(Attempt(own_problem(language), code, name)) for name, code in ATTACKS[language].items()]
    found = not_passed(attacks, Limits(seconds=6.0, memory_mib=512, output_kib=64))
    assert found.keys() == ATTACKS[language].keys()
    for name, outcome in found.items():  # for the reason that is meant: it ran, and the tests did not end well
        if name in ("exits", "exits early", "prints"):
            assert "ended before" in outcome.message, (name, outcome)
        elif name not in ("wrong types", "allocates forever"):
            assert outcome.message.startswith(("exit code", "the program ended before")), (name, outcome)


def test_a_missing_toolchain_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for language, package in (("cpp", "g++"), ("go", "golang-go"), ("php", "php-cli"), ("cs", "mono-mcs")):
        assert f"apt install {package}" in str(own_problem(language).unavailable())


def test_a_program_of_a_projects_folder_comes_with_the_packages_beside_it(tmp_path: Path, monkeypatch: Any) -> None:
    packages = tmp_path / "project" / "node_modules"
    program, link = packages / "typescript" / "bin" / "tsc", packages / ".bin" / "tsc"
    for file in (program, link):
        file.parent.mkdir(parents=True)
    program.touch(0o755)
    link.symlink_to("../typescript/bin/tsc")
    monkeypatch.setenv("PATH", f"{link.parent}:{os.defpath}")
    assert locate("tsc") == (str(program), (str(packages),))
