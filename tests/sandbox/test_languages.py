from __future__ import annotations

import os
from pathlib import Path

import pytest

from ebft.sandbox import self_tests
from ebft.sandbox.isolation import Sandbox
from ebft.sandbox.languages import LANGUAGES, locate
from ebft.sandbox.self_tests import broken_toolchain
from tests.sandbox.attacks.others import PROBLEMS, own_problem
from tests.sandbox.sandboxed import needs_language, needs_sandbox


def test_a_missing_toolchain_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for language, package in (("cpp", "g++"), ("go", "golang-go"), ("php", "php-cli"), ("cs", "mono-mcs")):
        reason = LANGUAGES[language].missing()
        assert reason is not None
        assert f"apt install {package}" in reason
        assert own_problem(language).unavailable() == reason


@needs_sandbox
@pytest.mark.parametrize("language", [pytest.param(name, marks=needs_language(name)) for name in PROBLEMS])
def test_installed_toolchains_work(language: str) -> None:
    assert broken_toolchain(language, Sandbox()) is None


@needs_sandbox
def test_a_toolchain_that_compiles_nothing_is_no_failure_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A g++ of its own folder that is found, says its version, and refuses everything."""
    program = tmp_path / "toolchain" / "bin" / "g++"
    program.parent.mkdir(parents=True)
    says_version = '[ "$1" = --version ] && { echo "g++ 99"; exit 0; }'
    program.write_text(f'#!/bin/sh\n{says_version}\necho "error: no such option" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(self_tests, "_found", {})
    locate.cache_clear()
    try:
        problem = own_problem("cpp")
        assert problem.unavailable() is None, "it is installed"
        reason = problem.unavailable(Sandbox())
    finally:
        locate.cache_clear()
    assert reason is not None
    assert "fails on a program that is right (does not compile: error: no such option); repair" in reason


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
    monkeypatch.setenv("PATH", f"{packages / '.bin'}:/usr/bin:/bin")
    locate.cache_clear()
    try:
        assert locate("tsc") == (str(program), (str(packages),))
    finally:
        locate.cache_clear()
