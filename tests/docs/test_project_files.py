"""What a contributor reads says what the project does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from tools.commands_page import commands

from ebft import cli
from ebft.version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_dependency_has_its_reason() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = [*PROJECT["project"]["dependencies"], *(requirement for extra in extras for requirement in extra)]
    names = {re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in wanted}
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Dependencies")[1].split("### Written by hand")[0]
    reasons = re.findall(r"^\| ([^|]+) \|", table, flags=re.MULTILINE)
    explained = {name for cell in reasons for name in re.split(r", | \(", cell)}
    assert {"torch", "trl"} <= names, "pyproject.toml is not read as it should be"
    assert names <= explained, "without a line in CONTRIBUTING.md"


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ebft.version.__version__"}
    for name in ("pyproject.toml", "mkdocs.yml", "CITATION.cff", "README.md"):
        assert __version__ not in (ROOT / name).read_text("utf-8"), name


def test_the_page_of_commands_has_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["no-such-command"]) == cli.BAD_INPUT
    known = capsys.readouterr().err.split("there is ")[1].split("; ")[0].strip().split(", ")
    assert {"train", "eval"} <= set(known)
    cli.main(["--help"])
    assert set(known) == {command.split()[0] for command in commands(capsys.readouterr().out)}


def test_workflows_test_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"
    assert len(tested) >= 3
