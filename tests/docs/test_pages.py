"""The documentation says what the code does: settings, messages, recipes, studies, commands, links. The code in
README.md and docs/ is run or, where that takes a machine of its own, read by the command's parser.

- Python blocks run, all of a page in one namespace, in a folder that holds what pages talk about: `my.jsonl`,
  `recipe.yaml`, `HumanEval.jsonl`, and tiny models under the names of large ones. A block that cannot run here has
  `<!-- not run: why -->` in the line before the blank line above it.
- Bash blocks: every line that starts with `ebft` must be a command that ebft takes. In tutorials, of which notebooks
  are made, these lines also run, at a tiny size.
- YAML blocks hold settings.
"""

import ast
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import notebooks
from tools.settings_page import settings_page

import ebft
from ebft import cli
from ebft.config import evaluation
from ebft.config.recipe import RECIPES, TRAINING, field_types
from ebft.config.settings import Parser, typed
from ebft.config.training import EBFTConfig
from ebft.studies.study import Plan, read_study
from tests.baselines.runs import write_rows
from tests.problems.rows import HUMANEVAL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ANSWER = "all together, as anybody can count on two hands or more."
ROWS = [{"prompt": f"{n // 9} and {n % 9} are ", "completion": f"{n // 9 + n % 9}, {ANSWER}"} for n in range(81)]
# What a page's Python may take for granted.
GIVEN = """
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (c.from_pretrained("path/or/name") for c in (AutoModelForCausalLM, AutoTokenizer))
prompts = ["1 and 1 are", "2 and 2 are"]
"""
# Added to the runs of tutorials, to make them quick.
TINY = "--limit_documents 120 --validation_split 20 --validation_sequences 2"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The lines that start with `ebft`, as words."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("ebft ")]


def blocks(page: Path, *languages: str) -> list[Block]:
    """Without those that are not run."""
    text, fence = page.read_text("utf-8"), r"(<!-- not run: \w.*? -->\n\n)?^```(\w+)\n(.*?)^```$"
    found = [m for m in re.finditer(fence, text, re.MULTILINE | re.DOTALL) if m[1] is None and m[2] in languages]
    return [Block(page, text.count("\n", 0, m.start(3)), m[2], m[3]) for m in found]


PYTHON = [page for page in PAGES if page.parent.name == "tutorials" or blocks(page, "python")]
COMMANDS = [block for page in PAGES for block in blocks(page, "bash") if block.commands]
SETTINGS = [block for page in PAGES for block in blocks(page, "yaml")]
STUDIES = sorted(f for f in (RECIPES / "studies").rglob("*.yaml") if f.name != "recipe.yaml")
OF_TRAINING = {**field_types("sft"), **field_types("rlvr")}


@pytest.fixture
def workshop(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None) -> Path:
    """A folder with the files that pages talk about. Models of the hub are folders of that name, and tiny. No run makes
    more than one step, whatever a page says."""
    complete = EBFTConfig.__post_init__

    def cut(config: EBFTConfig) -> None:
        config.max_steps, config.per_device_train_batch_size = 1, min(config.per_device_train_batch_size, 4)
        complete(config)

    monkeypatch.setattr(EBFTConfig, "__post_init__", cut)
    monkeypatch.chdir(tmp_path)
    for name in ("path/or/name", "HuggingFaceTB/SmolLM2-135M-Instruct", "cache/models/smollm2-135m", "runs/mine/final"):
        shutil.copytree(tiny, tmp_path / name)
    write_rows(tmp_path / "my.jsonl", ROWS)
    write_rows(tmp_path / "HumanEval.jsonl", [HUMANEVAL])
    return tmp_path


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.stem)
def test_what_pages_say_runs(page: Path, workshop: Path) -> None:
    if page.name == "sandbox.md" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    names: dict[str, Any] = {"__name__": "__main__"}
    is_tutorial = page in notebooks.TUTORIALS.values()
    if is_tutorial:
        shutil.rmtree(workshop / "runs")
    else:
        exec(GIVEN, names)
    for block in blocks(page, "python", *(["bash"] if is_tutorial else [])):
        if block.language == "python":  # so that errors name the line of the page
            exec(compile("\n" * block.line + block.code, str(block), "exec"), names)
        for command in block.commands if block.language == "bash" else []:
            more = TINY.split() if command[0] in TRAINING else []
            assert cli.main([*command, *more]) == 0, f"{block}: ebft {' '.join(command)}"


@pytest.mark.parametrize("name", notebooks.TUTORIALS)
def test_notebooks_are_the_tutorials(name: str) -> None:
    written = notebooks.notebook_of(name).read_text("utf-8")
    assert written == notebooks.notebook(notebooks.TUTORIALS[name]), "run `python -m tools.notebooks`"


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_commands_are_taken(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and values of options and settings, as the command itself reads them; nothing is loaded or run."""
    parse, taken = Parser.parse_args, list[Any]()

    def parse_and_stop(parser: Parser, arguments: list[str]) -> None:
        taken.append(parse(parser, arguments))
        raise SystemExit

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Parser, "parse_args", parse_and_stop)
    monkeypatch.setattr(cli, "check_early", lambda _: {})  # the files are not there
    of_eval = {option: evaluation.types_of(owner)[f.name] for option, f, owner in evaluation.options()}
    for name, *arguments in block.commands:
        words = [word for word in arguments if word not in ("...", "&")]
        if "--launch" in words:
            at = words.index("--launch")
            del words[at : at + 2]
        assert cli.main([name, *words]) == 0
        options = taken.pop()
        types = of_eval if name in ("eval", "score", "generate") else OF_TRAINING
        assert {setting.partition("=")[0] for setting in getattr(options, "set", [])} <= types.keys()
        for setting, value in options.settings.items():
            typed(setting, value, types[setting])


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_settings_are_known(block: Block) -> None:
    for name, value in yaml.safe_load(block.code).items():
        assert name in OF_TRAINING, f"{block}: no setting is called {name}"
        typed(name, value, OF_TRAINING[name])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_closed(page: Path) -> None:
    """Also one that text was wrapped around: no other test reads a block that has no end."""
    fences = [line for line in page.read_text("utf-8").splitlines() if line.startswith("```") or line.endswith("```")]
    assert all(re.fullmatch(r"```\w*", fence) for fence in fences), fences
    assert len(fences) % 2 == 0
    assert set(fences[1::2]) <= {"```"}


def test_every_public_name_has_an_example() -> None:
    code = "\n".join(block.code for block in blocks(ROOT / "docs" / "python.md", "python"))
    assert [name for name in ebft.__all__ if not name.startswith("_") and not re.search(rf"\b{name}\b", code)] == []


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
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "\n" for part in parts))
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
