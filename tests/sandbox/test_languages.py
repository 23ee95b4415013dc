from __future__ import annotations

import pytest

from ebft.sandbox.languages import LANGUAGES
from tests.sandbox.attacks.others import own_problem


def test_a_missing_toolchain_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for language, package in (("cpp", "g++"), ("go", "golang-go"), ("php", "php-cli"), ("cs", "mono-mcs")):
        reason = LANGUAGES[language].missing()
        assert reason is not None
        assert f"apt install {package}" in reason
        assert own_problem(language).unavailable() == reason
