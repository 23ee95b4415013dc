"""`ebft generate` in this process, on tiny models: the texts are the generator's, and stand beside each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ebft import cli
from ebft.data.row_format import ALPACA, ALPACA_WITH_INPUT, RowFormat
from ebft.evaluate import generate_command
from ebft.evaluate.generate_command import LiveAnswer, PromptFormat, format_of_runs
from ebft.evaluate.generation import Completion, GenerationSettings, TransformersGenerator
from ebft.loading import Checkpoint
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model

SHORT = ["--max-new-tokens", "6", "--device", "cpu"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("one") / "one", byte_tokenizer(pad=END))


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("two") / "two", byte_tokenizer(pad=END, chat_template=None))


def generator(folder: Path) -> TransformersGenerator:
    found = Checkpoint.find(str(folder))
    tokenizer = found.load_tokenizer()
    return TransformersGenerator(found.load(tokenizer, torch.float32, torch.device("cpu")), tokenizer)


def rows_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_one_prompt_and_one_model_is_only_the_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--model", str(model), "--prompt", "2+2=", "--temperature", "0", *SHORT]) == 0
    expected = generator(model).generate(["2+2="], GenerationSettings(max_new_tokens=6))[0][0]
    printed = capsys.readouterr().out
    assert printed.encode("unicode_escape") == (cli.printable(expected) + "\n").encode("unicode_escape")


def test_answers_that_are_cut_or_empty_are_counted(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [[Completion(" \n", "end", 1)], [Completion("four, fi", "length", 6)]]
    monkeypatch.setattr(generate_command, "answer", lambda *given: made)
    assert cli.main(["generate", "--model", str(model), "--prompt", "2+2=", "--prompt", "1+1=", *SHORT]) == 0
    said = capsys.readouterr().err
    assert "1 of 2 answers are cut off, at 6 tokens" in said
    assert "1 of 2 answers are empty" in said
    assert "without their beginning" not in said


def test_a_prompt_that_leaves_no_room(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "answers.jsonl"
    flags = ["--prompt", "2+2=", "--prompt", "one " * 99, "--output", str(output), *SHORT]
    assert cli.main(["generate", "--model", str(short_context(model, tmp_path)), *flags]) == 2
    assert "prompt 1 has " in capsys.readouterr().err
    assert cli.main(["generate", "--model", str(tmp_path / "short"), "--too-long", "truncate", *flags]) == 0
    printed = capsys.readouterr()
    assert "1 of 2 answers are to prompts without their beginning" in printed.err
    assert f"> {('one ' * 20).strip()} ... {'one ' * 40}\n" in printed.out
    assert rows_of(output)[1]["prompt"] == "one " * 99, "shortened only on the screen"


def short_context(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder / "short")
    config = json.loads((folder / "short" / "config.json").read_text())
    (folder / "short" / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    return folder / "short"


def test_the_progress_of_each_model(model: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []

    @contextmanager
    def progress(title: str, total: int, leave: bool) -> Iterator[Callable[[int], None]]:
        made: list[int] = []
        yield made.append
        seen.append((title, total, sum(made)))

    monkeypatch.setattr(generate_command, "progress", progress)
    flags = ["--prompt", "a", "--prompt", "b", "--samples", "2"]
    assert cli.main(["generate", "--model", str(model), str(base_model), *flags, *SHORT]) == 0
    assert seen == [("one", 4, 4), ("two", 4, 4)]


def test_what_follows_a_prompt(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    flags = ["--prompt", "2+2", "--prompt-separator", " =\\n", "--output", str(output), *SHORT]
    assert cli.main(["generate", "--model", str(model), *flags]) == 0
    assert rows_of(output)[0]["prompt"] == "2+2 =\n"


def of_run(model: Path, folder: Path, **settings: object) -> Path:
    """A model as the final one of a run."""
    shutil.copytree(model, folder / "final")
    (folder / "resolved.json").write_text(json.dumps(settings))
    return folder


CHAT = "<user>hi</turn><assistant>"
FINE = Completion("fine", "end", 2)


@pytest.mark.parametrize(
    ("settings", "flags", "expected"),
    [
        ({"prompt_kinds": ["prompt"], "prompt_separator": "\n"}, [], "hi\n"),
        ({"prompt_kinds": ["prompt"], "prompt_separator": "\n"}, ["--prompt-style", "raw"], "hi"),
        ({"prompt_kinds": ["prompt"], "prompt_separator": "\n"}, ["--prompt-separator", ""], "hi"),
        ({"prompt_kinds": ["prompt"], "prompt_template": "Q: {q}\nA:", "prompt_separator": " "}, [], "Q: hi\nA:"),
        ({"prompt_kinds": ["prompt"], "prompt_template": "{a} {b}"}, [], "hi"),
        ({"prompt_kinds": ["alpaca"]}, [], ALPACA.format(instruction="hi")),
        ({"prompt_kinds": ["messages"]}, [], CHAT),
        ({"prompt_kinds": ["messages"]}, ["--prompt-style", "raw"], "hi"),
        ({"prompt_kinds": ["messages", "prompt"]}, [], "hi"),
        ({"prompt_kinds": ["text"]}, ["--prompt-style", "chat"], CHAT),
        ({"seed": 1}, [], "hi"),
    ],
    ids=str,
)
def test_prompts_are_made_as_in_the_run(
    settings: dict[str, object],
    flags: list[str],
    expected: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []

    def spy(
        self: TransformersGenerator, prompts: list[str], settings: GenerationSettings, **_: object
    ) -> list[list[Completion]]:
        seen.extend(prompts)
        return [[FINE] for _ in prompts]

    monkeypatch.setattr(TransformersGenerator, "complete", spy)
    run = of_run(model, tmp_path / "run", **settings)
    assert cli.main(["generate", "--model", str(run), "--prompt", "hi", *flags, *SHORT]) == 0
    assert seen == [expected]
    errors = capsys.readouterr().err
    assert ("--prompt-style raw leaves them as they are" in errors) == (
        not flags and settings.get("prompt_kinds", [1, 2]) != ["messages", "prompt"] and "seed" not in settings
    )


def test_a_typed_space_is_the_answers_and_indentation_is_not() -> None:
    made = PromptFormat("prompt", RowFormat(prompt_separator=" "))
    typed = ("Answer:", "Answer: ", "def f(a):\n    ", "line\n")
    assert [made.of_text(text) for text in typed] == ["Answer:", "Answer:", "def f(a):\n    ", "line\n"]
    assert PromptFormat().of_text("Answer: ") == "Answer: "


def test_prompts_of_rows_and_prompts_that_are_whole_already(tmp_path: Path) -> None:
    made = PromptFormat("prompt", RowFormat(prompt_template="Q: {q}\nA:", prompt_separator=" "))
    assert made.of_row({"q": "one", "completion": "two"}) == "Q: one\nA:"
    assert made.of_row({"prompt": "one"}) == "Q: one\nA:"
    alpaca = PromptFormat("alpaca")
    assert alpaca.of_row({"instruction": "add", "input": "1 2"}) == ALPACA_WITH_INPUT.format(
        instruction="add", input="1 2"
    )
    assert alpaca.of_row({"prompt": "add"}) == alpaca.of_row({"instruction": "add"}) == alpaca.of_text("add")


def test_runs_that_made_prompts_in_different_ways(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = []
    for kind in ("messages", "text"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "resolved.json").write_text(json.dumps({"prompt_kinds": [kind]}))
        runs.append(str(tmp_path / kind))
    assert format_of_runs(["base", runs[0]]).kind == "messages"
    assert format_of_runs(runs) == PromptFormat()
    assert "in different ways" in caplog.text


@pytest.mark.parametrize(("prompt", "noted"), [("2 + 2 = ", True), ("2 + 2 =", False), ("2 + 2 =\n  ", False)])
def test_a_space_at_the_end(prompt: str, noted: bool, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--model", str(model), "--prompt", prompt, *SHORT]) == 0
    assert ("a prompt ends with a space" in capsys.readouterr().err) == noted


def test_several_models_beside_each_other(
    model: Path, base_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a\nb\n\n")
    output = tmp_path / "answers.jsonl"
    models = ["--model", str(model), str(base_model)]
    assert cli.main(["generate", *models, "--file", str(file), "--samples", "2", "--output", str(output), *SHORT]) == 0
    printed = capsys.readouterr().out
    assert "> a" in printed
    heading = next(line for line in printed.splitlines() if "one" in line)
    assert heading.index("one") < heading.index("two")
    found = rows_of(output)
    assert [(row["prompt"], row["model"], row["sample"]) for row in found] == [
        (prompt, name, sample) for prompt in "ab" for name in ("one", "two") for sample in (0, 1)
    ]
    settings = GenerationSettings(max_new_tokens=6, temperature=0.6, samples=2)
    expected = generator(model).generate(["a", "b"], settings)
    assert [row["completion"] for row in found if row["model"] == "one"] == [text for two in expected for text in two]


def test_rows_of_messages_are_rendered(model: Path, tmp_path: Path) -> None:
    file, output = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "an answer that is not shown"}]
    file.write_text(json.dumps({"conversations": turns}) + "\n")
    assert cli.main(["generate", "--model", str(model), "--file", str(file), "--output", str(output), *SHORT]) == 0
    settings = GenerationSettings(max_new_tokens=6, temperature=0.6, prompt_style="chat")
    assert rows_of(output)[0]["completion"] == generator(model).generate(["hi"], settings)[0][0]


def test_a_chat_remembers(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    complete = TransformersGenerator.complete

    def spy(
        self: TransformersGenerator, prompts: list[str], settings: GenerationSettings, **_: object
    ) -> list[list[Completion]]:
        seen.extend(prompts)
        return [[FINE] for _ in complete(self, prompts, settings)]

    lines: Iterator[str] = iter(["hi", "again", "/reset", "anew"])

    def typed(question: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(TransformersGenerator, "complete", spy)
    monkeypatch.setattr("builtins.input", typed)
    assert cli.main(["generate", "--model", str(model), *SHORT]) == 0
    assert seen == [
        "<user>hi</turn><assistant>",
        "<user>hi</turn><assistant>fine</turn><user>again</turn><assistant>",
        "<user>anew</turn><assistant>",
    ]
    assert "remembers nothing" not in capsys.readouterr().out


def said(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    waiting = iter([*lines, ""])  # an empty line ends
    monkeypatch.setattr("builtins.input", lambda question: next(waiting))


def test_a_chat_with_a_model_that_was_not_trained_on_any(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although its tokenizer has a chat template."""
    seen: list[str] = []
    monkeypatch.setattr(
        TransformersGenerator, "complete", lambda self, prompts, settings, **_: seen.extend(prompts) or [[FINE]]
    )
    run = of_run(model, tmp_path / "run", prompt_kinds=["prompt"], prompt_separator="\n")
    said(monkeypatch, "hi", "again")
    assert cli.main(["generate", "--model", str(run), *SHORT]) == 0
    assert seen == ["hi\n", "again\n"]
    assert "Not trained on conversations" in capsys.readouterr().out


def test_a_chat_with_one_model_shows_tokens_as_they_come(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the model has made the last token, and in the end exactly its answer."""
    early: list[str] = []
    show = LiveAnswer.on_finalized_text

    def spy(self: LiveAnswer, text: str, stream_end: bool = False) -> None:
        early.append(text)
        show(self, text, stream_end)

    monkeypatch.setattr(LiveAnswer, "on_finalized_text", spy)
    said(monkeypatch, "hi", "hi")
    assert cli.main(["generate", "--model", str(model), "--max-new-tokens", "20", "--device", "cpu"]) == 0
    settings = GenerationSettings(max_new_tokens=20, temperature=0.6, prompt_style="chat")
    expected = generator(model).generate(["hi"], settings)[0][0]
    assert cli.printable(expected) + "\n" in capsys.readouterr().out
    assert len(early) > 20, "not token after token"


def test_a_chat_with_two_models_shows_them_beside_each_other(
    model: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said(monkeypatch, "hi")
    monkeypatch.setattr(LiveAnswer, "put", lambda *args: pytest.fail("shown too early"))
    assert cli.main(["generate", "--model", str(model), str(base_model), *SHORT]) == 0
    assert "one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "a", "--prompt-style", "chat"], "the tokenizer has no chat template"),
        (["--output", "o"], "--output and --samples need prompts"),
        (["--file", "{rows}"], "no prompts; rows need 'prompt' or 'messages'"),
    ],
)
def test_what_cannot_be(
    arguments: list[str], words: str, base_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "no prompt"}\n')
    arguments = [argument.format(rows=tmp_path / "rows.jsonl") for argument in arguments]
    assert cli.main(["generate", "--model", str(base_model), *arguments, *SHORT]) == 2
    assert words in capsys.readouterr().err


def test_long_words_are_not_cut_off_in_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    generate_command._show(None, {"one": ["x" * 100], "two": ["y" * 100]})
    shown = capsys.readouterr().out
    assert (shown.count("x"), shown.count("y")) == (100, 100)
