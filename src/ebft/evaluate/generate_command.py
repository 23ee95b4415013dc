"""`ebft generate`: what models write, side by side: to one prompt, to a file of them, or in a chat in the terminal.

All models draw with the same random numbers, so that what differs is the models'. Prompts are made as in the run behind
a model, so that it sees what it was trained on.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from transformers import TextStreamer

from ebft.config import evaluation
from ebft.config.data import DataConfig
from ebft.config.evaluation import BORROWED, EvalOptions, settings_of_run
from ebft.config.settings import Parser
from ebft.data.row_format import RowFormat, fields_of
from ebft.data.rows import TEXT_FILES, read_rows
from ebft.errors import ConfigError, DataError
from ebft.evaluate.generation import Completion, GenerationSettings, Generator, chat_text
from ebft.evaluate.subject import CheckpointSubject
from ebft.evaluate.tables import labels
from ebft.runtime.files import write_jsonl
from ebft.runtime.messages import printable, quiet_libraries

logger = logging.getLogger(__name__)

OF_SAMPLING = ("temperature", "top_p", "system_prompt", "seed", "too_long")
OF_EVAL = {"model", "limit", *OF_SAMPLING, "batch_size", "dtype", "device", "trust_remote_code"}
OF_EVAL |= {"prompt_column", "prompt_separator"}
Turns = list[dict[str, str]]
Prompt = str | Turns  # a text to continue, or a conversation to answer
SHOWN = 240  # characters of a prompt above its answers: its end, since many begin alike


@dataclass(frozen=True)
class PromptFormat:
    kind: str | None = None  # as `RowFormat.prompt_kind` has it; None: not known, or several
    rows: RowFormat = RowFormat()

    def of_text(self, text: str) -> Prompt:
        """The prompt of what somebody types."""
        column = "instruction" if self.kind == "alpaca" else self.rows.prompt
        columns = fields_of(self.rows.prompt_template) if self.rows.prompt_template else [column]
        return self.rows.prompt_of({columns[0]: text})

    def prompts(self, typed: Sequence[str], name: str | None, limit: int | None) -> Sequence[Prompt]:
        """Of typed texts and of a file's; conversations, if any of them is one."""
        found: list[Prompt] = []
        if name is not None and Path(name).suffix in TEXT_FILES and Path(name).is_file():
            found = [self.of_text(line) for line in Path(name).read_text("utf-8").splitlines() if line]
        elif name is not None:
            found = [prompt for prompt in map(self.rows.prompt_of, read_rows(name)) if prompt]
        if name is not None and not found:
            raise DataError(f"{name}: no prompts; rows need {self.rows.prompt!r} or 'messages', or --prompt-column")
        found = [*map(self.of_text, typed), *found[:limit]]
        chats = self.kind == "messages" or any(isinstance(prompt, list) for prompt in found)
        return [[{"role": "user", "content": p}] if chats and isinstance(p, str) else p for p in found]


def chosen(given: argparse.Namespace) -> tuple[EvalOptions, PromptFormat]:
    """Prompts are made as in the first of the runs behind the models, but for what flags say."""
    kind = {"raw": "text", "chat": "messages"}.get(given.prompt_style)
    values = {**given.settings, "max_new_tokens": given.max_new_tokens, "samples": given.samples}
    if given.prompt_template is not None:
        values["calibration_prompt_template"] = given.prompt_template
    runs = ((model, settings_of_run(Path(model).expanduser())) for model in values.get("model", []))
    model, run = next((found for found in runs if found[1] is not None), ("", None))
    if run is not None and kind is None:
        logger.info(f"prompts are made as in the run of {model}; --prompt-style raw leaves them as they are")
        kinds = run.get("prompt_kinds") or []
        kind = kinds[0] if len(kinds) == 1 else None
        of_run = {name: run[inner] for name, (inner, owner) in BORROWED.items() if owner is DataConfig and inner in run}
        if "prompt_column" in values:
            of_run.pop("calibration_prompt_template", None)  # it would win over the column
        values = of_run | values
    options = EvalOptions.from_values(values)
    return options, PromptFormat(kind, options.data.row_format)


def load(name: str, options: EvalOptions) -> Generator:
    quiet_libraries()
    return CheckpointSubject(name, options).generator


def answer(generator: Generator, prompts: Sequence[Prompt], options: EvalOptions) -> list[list[Completion]]:
    """`options.samples` answers to every prompt; all of them are texts, or all conversations."""
    given = {name: getattr(options, name) for name in (*OF_SAMPLING, "samples", "max_new_tokens")}
    settings = GenerationSettings(**given, prompt_style="raw" if isinstance(prompts[0], str) else "rendered")
    texts = [p if isinstance(p, str) else chat_text(p, generator.tokenizer, settings.system_prompt) for p in prompts]
    return generator.complete(texts, settings)


def answer_prompts(prompts: Sequence[Prompt], options: EvalOptions, output: str | None) -> None:
    models = zip(labels(options.model), options.model, strict=True)
    answers = {label: answer(load(name, options), prompts, options) for label, name in models}  # one at a time
    if output:
        rows = [
            {"prompt": prompt, "model": label, "sample": sample, "completion": one.text, "finish": one.finish}
            for place, prompt in enumerate(prompts)
            for label, found in answers.items()
            for sample, one in enumerate(found[place])
        ]
        write_jsonl(Path(output).expanduser(), rows)
    for place, prompt in enumerate(prompts):
        if len(prompts) > 1:
            text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            print(f"\n> {'... ' * (len(text) > SHOWN)}{printable(text[-SHOWN:])}")
        show({label: [one.text for one in found[place]] for label, found in answers.items()})


def chat(made: PromptFormat, options: EvalOptions) -> None:
    """Turn by turn, with every model's own answers in what it sees; a base model continues each text by itself."""
    speakers = {label: load(name, options) for label, name in zip(labels(options.model), options.model, strict=True)}
    turns: dict[str, Turns] = {label: [] for label in speakers}
    print("An empty line ends. A model that is not for conversations continues what you type, and remembers nothing.")
    while said := input("\nyou> ").strip():
        answers = {}
        for label, generator in speakers.items():
            talks = made.kind in (None, "messages") and getattr(generator.tokenizer, "chat_template", None) is not None
            turns[label] += [{"role": "user", "content": said}]
            if len(speakers) == 1:  # several stand beside each other when all are there
                generator.streamer = LiveAnswer(generator.tokenizer, skip_special_tokens=True)
            [[found]] = answer(generator, [turns[label] if talks else made.of_text(said)], options)
            answers[label] = [found.text]
            turns[label] += [{"role": "assistant", "content": found.text}]
        if len(speakers) > 1:
            show(answers)


class LiveAnswer(TextStreamer):
    """An answer in the terminal while the model writes it."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        print(printable(text), end="\n" if stream_end else "", flush=True)


def show(answers: Mapping[str, Sequence[str]]) -> None:
    """One model's answers as they are; those of several as columns of a table."""
    if len(answers) == 1:
        print("\n---\n".join(map(printable, next(iter(answers.values())))))
        return
    columns = [Column(Text(printable(label)), ratio=1, overflow="fold") for label in answers]
    table = Table(*columns, show_lines=True, expand=True)
    for samples in zip(*answers.values(), strict=True):
        table.add_row(*(Text(printable(text)) for text in samples))
    Console(highlight=False).print(table)


def command(arguments: list[str]) -> int:
    text = "What models write, side by side; without a prompt, a chat in the terminal."
    parser = Parser("generate", text, "--model M [M ...] [--prompt TEXT | --file F] [options]")
    add = parser.add_argument
    add("--prompt", action="append", default=[], help="as often as you like; none: a chat. Line breaks: $'one\\ntwo'")
    add("--file", help="prompts in a file: a line each in .txt, else rows as training takes them")
    add("--prompt-style", choices=("raw", "chat"), help="raw: as given; chat: a user's turn; default: the run's")
    add("--prompt-template", help="prompts of columns: 'Q: {question}\\nA:'; default: the run's")
    add("--max-new-tokens", default=128, help="longest answer in tokens [128]")
    add("--samples", default=1, help="answers to each prompt [1]")
    add("--output", help="also write the answers to this JSONL file")
    parser.add_settings("As in `ebft eval`", [(name, f) for name, f, _ in evaluation.options() if name in OF_EVAL])
    given = parser.parse_args(arguments)
    options, made = chosen(given)
    if not options.model:
        raise ConfigError("no model: give --model, folders of runs, models or hub names")
    if given.prompt or given.file is not None:
        answer_prompts(made.prompts(given.prompt, given.file, options.limit), options, given.output)
    elif given.output or options.samples != 1:
        raise ConfigError("--output and --samples need prompts: give --prompt or --file")
    else:
        with suppress(EOFError, KeyboardInterrupt):
            chat(made, replace(options, too_long="truncate"))  # a long chat loses its beginning
    return 0
