"""`ebft generate` in this process, on tiny models: the texts are the generator's, and stand beside each other."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft import cli
from ebft.data.row_format import ALPACA
from ebft.evaluate.generate_command import LiveAnswer
from ebft.evaluate.generation import Completion, GenerationSettings, TransformersGenerator
from ebft.loading import Checkpoint
from ebft.runtime.files import read_jsonl
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model

CHAT = "<user>hi</turn><assistant>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("one") / "one", byte_tokenizer(pad=END))


@pytest.fixture(scope="module")
def base_model(model: Path) -> Path:
    return save_tiny_model(model.with_name("two"), byte_tokenizer(pad=END, chat_template=None))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that models are given; all answers are fine."""
    found: list[str] = []

    def complete(self: Any, prompts: list[str], *_: Any) -> list[list[Completion]]:
        found.extend(prompts)
        return [[Completion("fine", "end", 2)] for _ in prompts]

    monkeypatch.setattr(TransformersGenerator, "complete", complete)
    return found


def generate(*arguments: object) -> int:
    return cli.main(["generate", "--max-new-tokens", "6", "--device", "cpu", "--model", *map(str, arguments)])


def texts_of(folder: Path, prompts: list[str], **settings: Any) -> list[list[str]]:
    found = Checkpoint.find(str(folder))
    tokenizer = found.load_tokenizer()
    generator = TransformersGenerator(found.load(tokenizer, torch.float32, torch.device("cpu")), tokenizer)
    found = generator.complete(prompts, GenerationSettings(**{"max_new_tokens": 6, "temperature": 0.6, **settings}))
    return [[one.text for one in samples] for samples in found]


def said(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    waiting = iter([*lines, ""])  # an empty line ends
    monkeypatch.setattr("builtins.input", lambda question: next(waiting))


def of_run(model: Path, folder: Path, **settings: object) -> Path:
    """A model as the final one of a run."""
    shutil.copytree(model, folder / "final")
    (folder / "resolved.json").write_text(json.dumps(settings))
    return folder


def test_one_model_and_several(model: Path, base_model: Path, tmp_path: Path, capsys: Any) -> None:
    """Of one there is only the text; several have names, and a file."""
    assert generate(model, "--prompt", "2+2=", "--temperature", "0") == 0
    [[expected]] = texts_of(model, ["2+2="], temperature=0)
    assert capsys.readouterr().out == cli.printable(expected) + "\n"
    file, output = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    file.write_text("a\nb\n\n")
    assert generate(model, base_model, "--file", file, "--samples", "2", "--output", output) == 0
    said = capsys.readouterr().out
    assert said.index("> a") < said.index("--- one") < said.index("--- two") < said.index("> b")
    found = read_jsonl(output)
    told = [(row["prompt"], row["model"], row["sample"]) for row in found]
    assert told == [*product("ab", ("one", "two"), (0, 1))]
    expected = texts_of(model, ["a", "b"], samples=2)
    assert [row["completion"] for row in found if row["model"] == "one"] == [text for two in expected for text in two]


GLUED = {"prompt_kinds": ["prompt"], "prompt_separator": "\n"}


@pytest.mark.parametrize(
    ("settings", "flags", "expected"),
    [
        (GLUED, [], "hi\n"),
        (GLUED, ["--prompt-style", "raw"], "hi"),
        (GLUED, ["--prompt-separator", " =\\n"], "hi =\n"),
        ({**GLUED, "prompt_template": "Q: {q}\nA:", "prompt_separator": " "}, [], "Q: hi\nA:"),
        ({"prompt_kinds": ["alpaca"]}, [], ALPACA.format(instruction="hi")),
        ({"prompt_kinds": ["messages"]}, [], CHAT),
        ({"prompt_kinds": ["text"]}, ["--prompt-style", "chat"], CHAT),
    ],
)
def test_prompts_are_made_as_in_the_run(
    settings: Any, flags: list[str], expected: str, model: Path, tmp_path: Path, seen: list[str]
) -> None:
    assert generate(of_run(model, tmp_path / "run", **settings), "--prompt", "hi", *flags) == 0
    assert seen == [expected]


def test_rows_of_a_file_are_read_as_training_reads_them(model: Path, tmp_path: Path, seen: list[str]) -> None:
    """Conversations are rendered, and texts beside them are turns."""
    rows = tmp_path / "rows.jsonl"
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "an answer that is not shown"}]
    rows.write_text(json.dumps({"conversations": turns}) + "\n")
    assert generate(model, "--file", rows, "--prompt", "hi") == 0
    assert seen == [CHAT] * 2


def test_a_chat_remembers(model: Path, tmp_path: Path, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the model was not trained on any."""
    said(monkeypatch, "hi", "again")
    assert generate(model) == 0
    assert seen == [CHAT, f"{CHAT}fine</turn><user>again</turn><assistant>"]
    said(monkeypatch, "hi", "again")
    assert generate(of_run(model, tmp_path / "run", prompt_kinds=["prompt"], prompt_separator="\n")) == 0
    assert seen[2:] == ["hi\n", "again\n"], "although its tokenizer has a chat template"


def test_a_chat_shows_tokens_as_they_come(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    early, shown = [], LiveAnswer.on_finalized_text
    monkeypatch.setattr(LiveAnswer, "on_finalized_text", lambda *given, **end: early.append(1) or shown(*given, **end))
    said(monkeypatch, "hi")
    assert generate(model, "--max-new-tokens", "20") == 0
    [[expected]] = texts_of(model, ["hi"], max_new_tokens=20, prompt_style="chat")
    assert cli.printable(expected) + "\n" in capsys.readouterr().out
    assert len(early) > 10, "not token after token"
