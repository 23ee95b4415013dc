"""`ebft generate`: what models write, side by side: to one prompt, to a file of them, or in a chat in the terminal.

All models draw with the same random numbers, so that what differs is the models'. Prompts are made as in the run behind
a model, so that it sees what it was trained on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from transformers import TextStreamer

from ebft.config.data import DataConfig
from ebft.config.evaluation import EvalOptions, settings_of_run
from ebft.config.settings import Parser, check, option, typed, types_of
from ebft.data.row_format import Row, RowFormat, fields_of, with_escapes
from ebft.data.rows import TEXT_FILES, read_rows
from ebft.errors import ConfigError, DataError
from ebft.evaluate.generation import Completion, GenerationSettings, Generator, chat_text
from ebft.evaluate.subject import CheckpointSubject
from ebft.evaluate.tables import labels
from ebft.runtime.files import write_jsonl
from ebft.runtime.messages import printable, progress, quiet_libraries

logger = logging.getLogger(__name__)

Prompt = str | list[dict[str, str]]  # a text to continue, or the turns of a conversation
SHOWN = 240  # characters of a prompt above its answers: its end, since many begin alike


@dataclass
class GenerateOptions:
    model: list[str] = option([], "folders of runs, models, hub names")
    file: str | None = option(None, "prompts in a file: a line each in .txt, else rows with prompt or messages")
    prompt_column: str | None = option(None, "column of prompts; default: the run's, else prompt")
    prompt_template: str | None = option(None, "prompts of columns: 'Q: {question}\\nA:'; default: the run's")
    prompt_separator: str | None = option(None, "what follows prompts that end in no whitespace; default: the run's")
    limit: int | None = option(None, "use only the first N prompts of the file")
    prompt_style: Literal["raw", "chat"] | None = option(None, "raw: as given; chat: a user's turn; default: the run's")
    system_prompt: str | None = option(None, "what a chat begins with")
    max_new_tokens: int = option(128, "longest answer in tokens")
    temperature: float = option(0.6, "0 is greedy")
    top_p: float | None = option(None, "sample from the smallest set of tokens with this probability")
    samples: int = option(1, "answers to each prompt")
    seed: int = option(0, "of all samples")
    batch_size: int = option(8, "answers generated at once")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto", "auto: float32 on a CPU, else bfloat16")
    device: str = option("auto", "auto, cpu, cuda, cuda:1, ...")
    trust_remote_code: bool = option(False, "run code that comes with a model from the hub")
    too_long: Literal["error", "truncate"] = option("error", "a prompt longer than the model's context")
    output: str | None = option(None, "also write the answers to this JSONL file")

    def __post_init__(self) -> None:
        check(self, GenerateOptions, limit=1, max_new_tokens=1, samples=1, batch_size=1)
        if not self.model:
            raise ConfigError("no model: give --model, folders of runs, models or hub names")

    @property
    def generation(self) -> GenerationSettings:
        names = ("max_new_tokens", "temperature", "top_p", "samples", "system_prompt", "seed", "too_long")
        return GenerationSettings(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class PromptFormat:
    """How a run made its prompts."""

    kind: str | None = None  # as `RowFormat.prompt_kind` has it; None: not known, or several
    rows: RowFormat = RowFormat()

    @property
    def columns(self) -> Sequence[str]:
        """What a prompt is made of."""
        if self.rows.prompt_template:
            return fields_of(self.rows.prompt_template)
        return ("instruction",) if self.kind == "alpaca" else (self.rows.prompt,)

    def of_text(self, text: str) -> Any:
        """The prompt of a text, put into the template if that takes one."""
        if len(self.columns) == 1:
            return self.rows.prompt_of({self.columns[0]: text})
        return replace(self.rows, prompt_template=None).prompt_of({self.rows.prompt: text})

    def of_row(self, row: Row) -> Any:
        """The prompt of a row like those of training, or of one with nothing but a prompt."""
        text, complete = row.get(self.rows.prompt), all(name in row for name in self.columns)
        return self.of_text(text) if isinstance(text, str) and not complete else self.rows.prompt_of(row)


def format_of_runs(models: Sequence[str]) -> PromptFormat:
    """How the runs behind these models made their prompts; as they are, if there are none or they differ."""
    found = set()
    for settings in (settings_of_run(Path(model).expanduser()) for model in models):
        if settings is not None:
            kinds = settings.get("prompt_kinds") or []
            data = DataConfig(**{f.name: settings[f.name] for f in fields(DataConfig) if f.name in settings})
            found.add(PromptFormat(kinds[0] if len(kinds) == 1 else None, data.row_format))
    if len(found) > 1:
        logger.warning("the runs made their prompts in different ways, so prompts are given as they are")
    return found.pop() if len(found) == 1 else PromptFormat()


def prompt_format(options: GenerateOptions) -> PromptFormat:
    """As in the run behind the models, unless options say otherwise."""
    of_run = format_of_runs(options.model) if options.prompt_style is None else PromptFormat()
    texts = {"prompt_template": options.prompt_template, "prompt_separator": options.prompt_separator}
    given: dict[str, Any] = {name: with_escapes(text) for name, text in texts.items() if text is not None}
    if options.prompt_column is not None:  # the run's template would win over it
        given = {"prompt": options.prompt_column, "prompt_template": "", **given}
    if not given and of_run != PromptFormat():
        logger.info("prompts are made as in the run; --prompt-style raw leaves them as they are")
    return replace(of_run, rows=replace(of_run.rows, **given))


def prompts_of(options: GenerateOptions, texts: Sequence[str]) -> list[Prompt]:
    """Those that were typed and those of the file; conversations, if any of them is one."""
    made = prompt_format(options)
    prompts = [made.of_text(text) for text in texts]
    if (file := options.file) is not None:
        if Path(file).suffix in TEXT_FILES and Path(file).is_file():
            found = [made.of_text(line) for line in Path(file).read_text("utf-8").splitlines() if line]
        else:
            found = [prompt for prompt in map(made.of_row, read_rows(file)) if prompt]
        if not found:
            raise DataError(f"{file}: no prompts; rows need {made.rows.prompt!r} or 'messages', or --prompt-column")
        prompts += found[: options.limit]
    if options.prompt_style == "chat" or made.kind == "messages" or not all(isinstance(p, str) for p in prompts):
        prompts = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
    return prompts


def answer_prompts(options: GenerateOptions, texts: Sequence[str]) -> None:
    """Prints what every model answers. What can be wrong with the prompts shows before a model is loaded."""
    prompts = prompts_of(options, texts)
    answers = {}
    for label, name in zip(labels(options.model), options.model, strict=True):  # one in memory at a time
        with progress(label, len(prompts) * options.samples, leave=False) as advance:
            answers[label] = answer(load(name, options), prompts, options.generation, advance)
    every = [one for found in answers.values() for samples in found for one in samples]
    counts = {
        f"cut off, at {options.max_new_tokens} tokens or so": sum(one.finish in ("length", "context") for one in every),
        "empty": sum(not one.text.strip() for one in every),
        "to prompts without their beginning": sum(one.prompt_truncated for one in every),
    }
    for what, number in counts.items():
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
        if len(prompts) > 1:
            text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            print(f"\n> {'... ' * (len(text) > SHOWN)}{printable(text[-SHOWN:])}")
        show({label: [one.text for one in found[place]] for label, found in answers.items()})


def load(name: str, options: GenerateOptions) -> Generator:
    quiet_libraries()
    same = {key: getattr(options, key) for key in ("device", "dtype", "batch_size", "trust_remote_code")}
    return CheckpointSubject(name, EvalOptions(**same)).generator


def answer(
    generator: Generator,
    prompts: Sequence[Prompt],
    settings: GenerationSettings,
    advance: Callable[[int], Any] = lambda made: None,
) -> list[list[Completion]]:
    """`settings.samples` answers to every prompt; all of them are texts, or all conversations."""
    if not isinstance(prompts[0], str):
        settings = replace(settings, prompt_style="rendered")
    texts = [p if isinstance(p, str) else chat_text(p, generator.tokenizer, settings.system_prompt) for p in prompts]
    return generator.complete(texts, settings, advance=advance)


def chat(options: GenerateOptions) -> None:
    """Turn by turn, with every model's own answers in what it sees; a base model continues each text by itself."""
    made = prompt_format(options)
    speakers = {label: load(name, options) for label, name in zip(labels(options.model), options.model, strict=True)}
    chats = options.prompt_style == "chat" or (options.prompt_style is None and made.kind in (None, "messages"))
    talks = {n: chats and getattr(s.tokenizer, "chat_template", None) is not None for n, s in speakers.items()}
    turns: dict[str, list[dict[str, str]]] = {label: [] for label in speakers}
    print("An empty line ends, /reset begins anew.", end=" ")
    no_chat = "A model that is not for conversations continues what you type, and remembers nothing."
    print("" if all(talks.values()) else no_chat)
    settings = replace(options.generation, too_long="truncate")  # a long chat loses its beginning
    while said := _typed():
        if said == "/reset":
            turns = {label: [] for label in speakers}
            continue
        answers = {}
        for label, generator in speakers.items():
            mine = [*turns[label], {"role": "user", "content": said}]
            if len(speakers) == 1:  # several stand beside each other when all are there
                generator.streamer = LiveAnswer(generator.tokenizer, skip_special_tokens=True)
            [[found]] = answer(generator, [mine if talks[label] else made.of_text(said)], settings)
            answers[label] = [found.text]
            turns[label] = [*mine, {"role": "assistant", "content": found.text}]
        if len(speakers) > 1:
            show(answers)


def _typed() -> str:
    try:
        return input("\nyou> ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


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
    how = "a prompt, as often as you like; none: a chat. Line breaks: $'one\\ntwo' in bash, or rows by --file"
    parser.add_argument("--prompt", action="append", default=[], help=how)
    parser.add_settings("Options", ((f.name, f) for f in fields(GenerateOptions)))
    given, kinds = parser.parse_args(arguments), types_of(GenerateOptions)
    options = GenerateOptions(**{name: typed(name, value, kinds[name]) for name, value in given.settings.items()})
    if given.prompt or options.file is not None:
        answer_prompts(options, given.prompt)
    elif options.output or options.samples != 1:
        raise ConfigError("--output and --samples need prompts: give --prompt or --file")
    else:
        chat(options)
    return 0
