"""The code in README.md and docs/ is run or, where that takes a machine of its own, read by the command's parser.

- Python blocks run, all of a page in one namespace, in a folder that holds what pages talk about: `my.jsonl`,
  `recipe.yaml`, `HumanEval.jsonl`, and tiny models under the names of large ones. A block that cannot run here has
  `<!-- not run: why -->` in the line before the blank line above it.
- Bash blocks: every line that starts with `ebft` must be a command that ebft takes. In tutorials, of which notebooks
  are made, these lines also run, at a tiny size.
- YAML blocks hold settings.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import notebooks

import ebft
from ebft import cli
from ebft.config import evaluation
from ebft.config.recipe import TRAINING, field_types
from ebft.config.settings import Parser, typed
from ebft.config.training import EBFTConfig
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
