"""The documentation says what the code does: settings, messages, recipes, studies, commands, links."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tools.commands_page import commands
from tools.settings_page import settings_page

from ebft import cli
from ebft.config.evaluation import EvalOptions
from ebft.config.method import settings_that_change
from ebft.config.recipe import RECIPES, TRAINING, load_recipe, read_values, training_parser
from ebft.studies.study import Plan, Study, read_study

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STUDIES = sorted(f for f in (RECIPES / "studies").rglob("*.yaml") if f.name != "recipe.yaml")


def test_settings_page_is_what_the_dataclasses_say() -> None:
    committed = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert committed == settings_page(), "run `python -m tools.settings_page > docs/settings.md`"


# ---- recipes of the paper (what each of them says is in tests/contracts) --------------------------------------------


def loaded(name: str, command: str) -> Any:
    return load_recipe(f"paper/{name}", {"output_dir": "o", "use_cpu": True}, command)


BASELINES = [file.stem for file in sorted((RECIPES / "paper").glob("*.yaml")) if file.stem.startswith(("sft", "rlvr"))]


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_measured_as_ebft_is(name: str) -> None:
    """The same validation text and the same measurement as the EBFT recipe of the same task."""
    task = next(t for t in ("qa_code", "unstructured_code", "translation") if t in name)
    mine, ebft = loaded(name, name.split("_")[0]), loaded(task, "train")
    same = settings_that_change("text", "features", "proxy")
    for setting in (*same, "bf16", "eval_steps", "eval_strategy", "seed"):
        assert getattr(mine.training, setting) == getattr(ebft.training, setting), setting
    assert (mine.data, mine.model.model) == (ebft.data, ebft.model.model)


def test_the_papers_commands_follow_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a command starts from or looks at is one that another command of the page makes."""
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "reproduce.md").read_text("utf-8"), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    runs, sweeps, used = set(), set(), set()
    for line in lines:
        _, name, *arguments = [*shlex.split(line, comments=True), "", ""]
        if name in TRAINING:
            chosen = training_parser(name).parse_args(arguments[:-2])
            runs.add({**read_values(chosen.config), **chosen.settings}["output_dir"])
        elif name == "sweep":
            sweeps.add(arguments[arguments.index("--output_dir") + 1])
        elif name == "study" and arguments[0] == "run":
            runs.add(str(read_study(arguments[1]).folder))
        used |= {word.removesuffix("/final") for word in arguments if word.startswith("runs/")}
    assert "runs/paper-qa-code" in runs
    assert not runs & sweeps, "a sweep's folder holds runs, it is none"
    assert used - sweeps <= runs


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


@pytest.mark.parametrize("task", ["qa_code", "unstructured_code", "translation"])
def test_main_studies_search_what_the_paper_did(task: str) -> None:
    study = read_study(f"studies/paper/{task}")

    def grid(method: str, of: Study = study) -> list[dict[str, Any]]:
        return [row.values for row in of.rows if row.method == method]

    gammas = [{"gamma": gamma} for gamma in (0.0, 0.03, 0.1)]
    assert grid("ebft") == grid("ebft-ws") == gammas
    assert grid("sft") == grid("sft-constant") == [{"num_train_epochs": epochs} for epochs in (2, 5)]
    batches = [{"gradient_accumulation_steps": n} for n in (16, 32)]  # of 4 documents
    assert all(row.candidates == batches for row in study.rows if row.method in ("sft", "sft-constant"))
    told = EvalOptions.from_values(study.evaluation)
    assert (told.samples, told.temperature, told.top_p, told.max_new_tokens) == (16, 0.6, 0.95, 512)
    suffix = "" if task == "qa_code" else f"_{task}"
    for method in ("ebft", "ebft-ws"):
        found = grid(method, read_study(f"studies/paper/alpha_gamma{suffix}"))
        assert found == [{"alpha": alpha, **gamma} for alpha in (0.0, 0.5, 1.0) for gamma in gammas]


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
    assert "codec can't decode byte" not in source


def test_the_page_of_commands_has_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--help"])
    assert {command.split()[0] for command in commands(capsys.readouterr().out)} == cli.COMMANDS.keys()
