"""The documentation says what the code does: settings, messages, recipes, studies, commands, links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tools.commands_page import commands
from tools.settings_page import settings_page

from ebft import cli
from ebft.config.recipe import RECIPES
from ebft.studies.study import Plan, read_study

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STUDIES = sorted(f for f in (RECIPES / "studies").rglob("*.yaml") if f.name != "recipe.yaml")


def test_settings_page_is_what_the_dataclasses_say() -> None:
    committed = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert committed == settings_page(), "run `python -m tools.settings_page > docs/settings.md`"


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_studies_are_valid(file: Path) -> None:
    """Every run and every option of its evaluation; of the paper's, as many as the page says."""
    study = read_study(file)
    plan = Plan(study)
    assert "calibration" in study.evaluation["tasks"]
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    if file.parent.name == "paper":
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{file.name}`" in line]
        runs, evaluations = (int(cell) for cell in row.split("|")[3:5])
        assert len(plan.jobs) + plan.unknown == runs + evaluations
        assert f"study run studies/paper/{file.stem}" in page


# ---- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if heading and file.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}  # as GitHub names them
            assert heading in anchors, f"{page.name} links to {target}, a heading that is not there"


def texts_of_source() -> str:
    """All texts in the source, those in several pieces put together; a line break where a value is filled in."""
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\n" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_the_messages_of_troubleshooting_are_in_the_source() -> None:
    """The code in the first column of its tables, without what is in brackets behind it."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    quoted = [re.findall(r"``(.+?)``|`([^`]+)`", re.sub(r"(?<=`) \(.*", "", cell)) for cell in cells]
    messages = ["".join(groups) for of_cell in quoted for groups in of_cell if "load_best_model" not in "".join(groups)]
    assert len(messages) > 20, "the tables are not read as they should be"
    depends = r"\.\.\.|'[^']*'|=\S*|\b\d+\b|\bnan\b"  # on the case
    pieces = [piece.strip(" ,;:()?") for message in messages for piece in re.split(depends, message)]
    source = texts_of_source()
    # A single word is in some text or other, and may be a value.
    assert [piece for piece in pieces if " " in piece and piece not in source] == []


def test_the_page_of_commands_has_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--help"])
    assert {command.split()[0] for command in commands(capsys.readouterr().out)} == cli.COMMANDS.keys()
