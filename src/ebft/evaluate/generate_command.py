"""`ebft generate`: what models write, side by side: to one prompt, to a file of them, or in a chat in the terminal.

All models draw with the same random numbers, so that what differs is the models'. Prompts are made as in the run behind
a model, so that it sees what it was trained on.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from transformers import TextStreamer

from ebft import fetch
from ebft.config.evaluation import settings_of_run
from ebft.config.settings import Parser
from ebft.data.row_format import ALPACA, Row, RowFormat, ends_with_space, fields_of, with_escapes
from ebft.data.rows import TEXT_FILES, read_rows
from ebft.errors import ConfigError, DataError
from ebft.evaluate.generation import Completion, GenerationSettings, TransformersGenerator, chat_text
from ebft.evaluate.subject import device_and_dtype
from ebft.evaluate.tables import labels
from ebft.loading import DTYPES, Checkpoint
from ebft.runtime.files import write_jsonl
from ebft.runtime.messages import printable, progress

logger = logging.getLogger(__name__)

Prompt = str | list[dict[str, str]]  # a text to continue, or the turns of a conversation
LONGEST_SHOWN, BEGINNING = 240, 80  # characters of a prompt above its answers; the rest of it is its end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model", nargs="+", action="extend", required=True, metavar="MODEL", help="folders of runs, models, hub names"
    )
    add(
        "--prompt",
        action="append",
        default=[],
        help="a prompt, as often as you like; none: a chat. Line breaks: $'one\\ntwo' in bash, or rows by --file",
    )
    add("--file", default=None, help="prompts in a file: a line each in .txt, else rows with prompt or messages")
    add("--prompt-column", default=None, help="column of prompts [as in the model's run, else prompt]")
    add(
        "--prompt-template",
        default=None,
        help="prompts made of columns, or of one text, such as 'Q: {question}\\nA:' [as in the model's run]",
    )
    add(
        "--prompt-separator",
        default=None,
        help="what follows a prompt without whitespace at its end: ' ' or '\\n' [as in the model's run]",
    )
    add("--limit", type=int, default=None, help="use only the first N prompts of the file")
    add(
        "--prompt-style",
        choices=("raw", "chat"),
        default=None,
        help="raw: as given; chat: a user's turn by the tokenizer's template [as in the model's run, else raw]",
    )
    add("--system-prompt", default=None, help="what a chat begins with")
    add("--max-new-tokens", type=int, default=128, help="longest answer in tokens [128]")
    add("--temperature", type=float, default=0.6, help="0 is greedy [0.6]")
    add("--top-p", type=float, default=None, help="sample from the smallest set of tokens with this probability")
    add("--samples", type=int, default=1, help="answers to each prompt [1]")
    add("--seed", type=int, default=0, help="of all samples [0]")
    add("--batch-size", type=int, default=8, help="answers generated at once [8]")
    add("--dtype", choices=("auto", *DTYPES), default="auto", help="auto: float32 on a CPU, bfloat16 on a GPU")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... [auto]")
    add("--trust-remote-code", action="store_true", help="run code that comes with a model from the hub")
    add(
        "--too-long",
        choices=("error", "truncate"),
        default="error",
        help="a prompt longer than the model's context [error]",
    )
    add("--output", default=None, help="also write the answers to this JSONL file")


@dataclass(frozen=True)
class PromptFormat:
    """How a run made its prompts."""

    kind: str | None = None  # as `RowFormat.prompt_kind` has it; None: not known, or several
    rows: RowFormat = RowFormat()

    def of_text(self, text: str) -> str:
        """A text that somebody typed, as the prompt of a row; put into the template, if that takes one text."""
        template = self.rows.prompt_template or (ALPACA if self.kind == "alpaca" else "{prompt}")
        names = fields_of(template)
        if self.rows.answers_begin_with and ends_with_space(text):
            text = text.removesuffix(self.rows.answers_begin_with)
        row, template = ({names[0]: text}, template) if len(names) == 1 else ({"prompt": text}, "{prompt}")
        return replace(self.rows, prompt_template=template).prompt_of(row)

    def of_row(self, row: Row) -> Any:
        """The prompt of a row like those of training, or of one that has nothing but a prompt."""
        prompt = row.get(self.rows.prompt)
        if isinstance(prompt, str) and any(name not in row for name in fields_of(self.rows.prompt_template or "")):
            return self.of_text(prompt)
        return self.of_text(prompt) if isinstance(prompt, str) and self.kind == "alpaca" else self.rows.prompt_of(row)


def format_of_runs(models: Sequence[str]) -> PromptFormat:
    """How the runs behind these models made their prompts; as they are, if there are none or they differ."""
    found = set()
    for settings in (settings_of_run(Path(name).expanduser()) for name in models):
        if settings is not None:
            kinds = settings.get("prompt_kinds") or []
            names = {f.name: f.name if f.name.startswith("prompt_") else f"{f.name}_column" for f in fields(RowFormat)}
            given = {name: settings[setting] for name, setting in names.items() if settings.get(setting) is not None}
            found.add(PromptFormat(kinds[0] if len(kinds) == 1 else None, RowFormat(**given)))
    if len(found) > 1:
        logger.warning("the runs made their prompts in different ways, so prompts are given as they are")
    return found.pop() if len(found) == 1 else PromptFormat()


def run(options: argparse.Namespace) -> None:
    """Prints what the command line asks for. What can be wrong with the prompts shows before a model is loaded."""
    if not options.prompt and options.file is None:
        if options.output or options.samples != 1:
            raise ConfigError("--output and --samples need prompts: give --prompt or --file")
        return chat(options)
    made = _prompt_format(options)
    prompts: list[Prompt] = [*map(made.of_text, options.prompt), *_prompts_of_file(options, made)]
    if options.prompt_style == "chat" or made.kind == "messages":
        prompts = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
    if any(map(ends_with_space, prompts)):
        logger.warning("a prompt ends with a space; most tokenizers make it part of the next word: leave it out")
    if len({isinstance(prompt, str) for prompt in prompts}) > 1:
        raise DataError("some prompts are texts and some are messages; give --prompt-style chat, or one kind at a time")
    answers = {}
    for label, name in zip(labels(options.model), options.model, strict=True):
        with progress(label, len(prompts) * options.samples, leave=False) as advance:
            answers[label] = answer(
                load(name, options), prompts, _settings(options), advance
            )  # one in memory at a time
    every = [one for found in answers.values() for samples in found for one in samples]
    for number, what in (
        (
            sum(one.finish in ("length", "context") for one in every),
            f"cut off, at {options.max_new_tokens} tokens or so",
        ),
        (sum(not one.text.strip() for one in every), "empty"),
        (sum(one.prompt_truncated for one in every), "to prompts without their beginning"),
    ):
        if number:
            logger.info(f"{number} of {len(every)} answers are {what}")
    if options.output:
        rows = [
            {"prompt": prompt, "model": label, "sample": sample, "completion": one.text, "finish": one.finish}
            for place, prompt in enumerate(prompts)
            for label, found in answers.items()
            for sample, one in enumerate(found[place])
        ]
        write_jsonl(Path(options.output).expanduser(), rows)
    for place, prompt in enumerate(prompts):
        texts = {label: [one.text for one in found[place]] for label, found in answers.items()}
        _show(prompt if len(prompts) > 1 else None, texts)
    return None


def _prompt_format(options: argparse.Namespace) -> PromptFormat:
    """As in the run behind the models, unless options say otherwise."""
    theirs = format_of_runs(options.model) if options.prompt_style is None else PromptFormat()
    given: dict[str, Any] = {"prompt": options.prompt_column}
    for name in ("prompt_template", "prompt_separator"):
        value = getattr(options, name)
        given[name] = None if value is None else with_escapes(value)
    if options.prompt_column is not None and options.prompt_template is None:
        given["prompt_template"] = ""  # else the run's would win over the column
    made = replace(theirs, rows=replace(theirs.rows, **{k: v for k, v in given.items() if v is not None}))
    if made == theirs != PromptFormat():
        logger.info("prompts are made as in the run; --prompt-style raw leaves them as they are")
    return made


def _prompts_of_file(options: argparse.Namespace, made: PromptFormat) -> list[Prompt]:
    if options.file is None:
        return []
    if Path(options.file).suffix in TEXT_FILES and Path(options.file).is_file():
        lines = Path(options.file).read_text(encoding="utf-8").splitlines()
        found: list[Any] = [made.of_text(line) for line in lines if line]
    else:
        found = [made.of_row(row) for row in read_rows(options.file)]
    prompts = [prompt for prompt in found if prompt][: options.limit]
    if not prompts:
        raise DataError(f"{options.file}: no prompts; rows need {made.rows.prompt!r} or 'messages', or --prompt-column")
    return prompts


def _settings(options: argparse.Namespace) -> GenerationSettings:
    names = ("max_new_tokens", "temperature", "top_p", "samples", "system_prompt", "seed", "too_long")
    return GenerationSettings(**{name: getattr(options, name) for name in names})


def load(name: str, options: argparse.Namespace) -> TransformersGenerator:
    """A model, quietly."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    fetch.check_there(name)
    device, dtype = device_and_dtype(options.device, options.dtype)
    checkpoint = Checkpoint.find(name)
    tokenizer = checkpoint.load_tokenizer(options.trust_remote_code)
    model = checkpoint.load(tokenizer, dtype, device, options.trust_remote_code)
    return TransformersGenerator(model, tokenizer, options.batch_size)


def answer(
    generator: TransformersGenerator,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    advance: Callable[[int], None] = lambda made: None,
) -> list[list[Completion]]:
    """`settings.samples` answers to every prompt."""
    if not any(isinstance(prompt, str) for prompt in prompts):
        prompts = [chat_text(list(turns), generator.tokenizer, settings.system_prompt) for turns in prompts]  # type: ignore[arg-type]
        settings = replace(settings, prompt_style="rendered")
    return generator.complete([str(prompt) for prompt in prompts], settings, advance=advance)


def chat(options: argparse.Namespace) -> None:
    """Turn by turn, with every model's own answers in what it sees; a base model continues each text by itself."""
    made = _prompt_format(options)
    speakers = {label: load(name, options) for label, name in zip(labels(options.model), options.model, strict=True)}
    chats = options.prompt_style == "chat" or (options.prompt_style is None and made.kind in (None, "messages"))
    talks = {n: chats and getattr(s.tokenizer, "chat_template", None) is not None for n, s in speakers.items()}
    turns: dict[str, list[dict[str, str]]] = {label: [] for label in speakers}
    print("An empty line ends, /reset begins anew.", end=" ")
    why = "Without a chat template" if chats else "Not trained on conversations" if made.kind else "As raw text"
    print("" if all(talks.values()) else f"{why}, a model continues what you type, and remembers nothing.")
    settings = replace(_settings(options), too_long="truncate")  # a long chat loses its beginning
    while True:
        try:
            said = input("\nyou> ").strip()
        except (EOFError, KeyboardInterrupt):
            said = ""
        if not said:
            return
        if said == "/reset":
            turns = {label: [] for label in speakers}
            continue
        answers = {}
        for label, generator in speakers.items():
            mine = [*turns[label], {"role": "user", "content": said}]
            if len(speakers) == 1:  # several stand beside each other when all are there
                generator.streamer = LiveAnswer(generator.tokenizer, skip_prompt=True, skip_special_tokens=True)
            [found] = answer(generator, [mine if talks[label] else made.of_text(said)], settings)
            answers[label] = [one.text for one in found]
            turns[label] = [*mine, {"role": "assistant", "content": answers[label][0]}]
        if len(speakers) > 1:
            _show(None, answers)


class LiveAnswer(TextStreamer):
    """An answer in the terminal while the model writes it."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        print(printable(text), end="\n" if stream_end else "", flush=True)


def _show(prompt: Prompt | None, answers: dict[str, list[str]]) -> None:
    """One model's answers as they are; those of several as columns of a table."""
    if prompt is not None:
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        if len(text) > LONGEST_SHOWN:  # what tells prompts apart is mostly near the end: a template comes before it
            text = f"{text[:BEGINNING].rstrip()} ... {text[BEGINNING - LONGEST_SHOWN :].lstrip()}"
        print(f"\n> {printable(text)}")
    if len(answers) == 1:
        print("\n---\n".join(map(printable, next(iter(answers.values())))))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True, expand=True)
    for label in answers:
        table.add_column(Text(printable(label)), ratio=1, overflow="fold")  # else long words are cut off
    for samples in zip(*answers.values(), strict=True):
        table.add_row(*(Text(printable(text)) for text in samples))
    Console(highlight=False).print(table)


def command(arguments: list[str]) -> int:
    usage = "--model M [M ...] [--prompt TEXT | --file F] [options]"
    text = "What models write, side by side; without a prompt, a chat in the terminal."
    parser = Parser("generate", text, usage)
    add_arguments(parser)
    run(parser.parse_args(arguments))
    return 0
