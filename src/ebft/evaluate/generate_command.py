"""`ebft generate`: what models write, side by side: to one prompt, to a file of them, or in a chat in the terminal.

All models draw with the same random numbers, so that what differs is the models'.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ebft import fetch
from ebft.data.row_format import ends_with_space, with_escapes
from ebft.data.rows import TEXT_FILES, read_rows
from ebft.errors import ConfigError, DataError
from ebft.evaluate.prompt_format import PromptFormat, format_of_runs
from ebft.evaluate.tables import labels
from ebft.runtime.files import write_jsonl
from ebft.runtime.messages import printable, progress

if TYPE_CHECKING:  # they bring in torch, which an error in the options does not wait for
    from ebft.tasks.generation import Completion, GenerationSettings, TransformersGenerator

logger = logging.getLogger(__name__)

Prompt = str | list[dict[str, str]]  # a text to continue, or the turns of a conversation
STYLES = ("raw", "chat")
TOO_LONG = ("error", "truncate")
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
        choices=STYLES,
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
    add("--dtype", default="auto", help="float32, bfloat16 or float16 [float32 on a CPU, bfloat16 on a GPU]")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... [auto]")
    add("--trust-remote-code", action="store_true", help="run code that comes with a model from the hub")
    add("--too-long", choices=TOO_LONG, default="error", help="a prompt longer than the model's context [error]")
    add("--output", default=None, help="also write the answers to this JSONL file")


def run(options: argparse.Namespace) -> None:
    """Prints what the command line asks for. What can be wrong with the prompts shows before a model is loaded."""
    if not options.prompt and options.file is None:
        if options.output or options.samples != 1:
            raise ConfigError("--output and --samples need prompts: give --prompt or --file")
        _check_models(options)
        return chat(options)
    if any("\\n" in prompt for prompt in options.prompt):
        logger.warning(
            "the prompt holds a backslash and an n; for a line break write $'one\\ntwo' in bash, or give rows by --file"
        )
    made = _prompt_format(options)
    prompts: list[Prompt] = [*map(made.of_text, options.prompt), *_prompts_of_file(options, made)]
    if options.prompt_style == "chat" or made.is_chat:
        prompts = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
    if any(map(ends_with_space, prompts)):
        logger.warning(
            "a prompt ends with a space, which most tokenizers would make part of the word after it: models go on from "
            "there worse than without"
        )
    if len({isinstance(prompt, str) for prompt in prompts}) > 1:
        raise DataError("some prompts are texts and some are messages; give --prompt-style chat, or one kind at a time")
    _check_models(options)
    answers = {}
    for label, name in zip(labels(options.model), options.model, strict=True):
        with progress(label, len(prompts) * options.samples, leave=False) as advance:
            # One in memory at a time.
            answers[label] = answer(load(name, options), prompts, _settings(options, options.too_long), advance)
    _note_unfinished([one for found in answers.values() for samples in found for one in samples], options)
    if options.output:
        write_jsonl(Path(options.output).expanduser(), list(_rows(prompts, answers)))
    for place, prompt in enumerate(prompts):
        texts = {label: [one.text for one in found[place]] for label, found in answers.items()}
        _show(prompt if len(prompts) > 1 else None, texts)
    return None


def _check_models(options: argparse.Namespace) -> None:
    """All of them, before torch is imported for the first."""
    for name in options.model:
        fetch.check_there(name)


def _prompt_format(options: argparse.Namespace) -> PromptFormat:
    """As in the run behind the models, unless options say otherwise."""
    theirs = format_of_runs(options.model)
    if options.prompt_style == "chat" and theirs.kind not in (None, "messages"):
        logger.warning(
            "the run was not on conversations: without --prompt-style chat, prompts are made as they were there"
        )
    if options.prompt_style is not None:
        theirs = PromptFormat()
    given = {"prompt": options.prompt_column}
    for name in ("prompt_template", "prompt_separator"):
        value = getattr(options, name)
        given[name] = None if value is None else with_escapes(value)
    if options.prompt_column is not None and options.prompt_template is None:
        given["prompt_template"] = ""  # else the run's would win over the column
    made = replace(theirs, rows=replace(theirs.rows, **{k: v for k, v in given.items() if v is not None}))
    if str(theirs) and str(made) == str(theirs):
        logger.info(f"prompts are made as in the run: {made}; --prompt-style raw leaves them as they are")
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
        raise DataError(
            f"{options.file}: no prompts; rows need {made.rows.prompt!r} or 'messages'; name the column of yours "
            "with --prompt-column, or make prompts of several with --prompt-template"
        )
    return prompts


def _settings(options: argparse.Namespace, too_long: Literal["error", "truncate"]) -> GenerationSettings:
    from ebft.tasks.generation import GenerationSettings

    names = ("max_new_tokens", "temperature", "top_p", "samples", "system_prompt", "seed")
    return GenerationSettings(**{name: getattr(options, name) for name in names}, too_long=too_long)


def load(name: str, options: argparse.Namespace) -> TransformersGenerator:
    """A model, quietly."""
    import torch
    from transformers.utils import logging

    from ebft.loading import DTYPES, Checkpoint
    from ebft.tasks.generation import TransformersGenerator
    from ebft.tasks.subject import resolve_device

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.dtype not in ("auto", *DTYPES):
        raise ConfigError(f"--dtype {options.dtype} is not one of auto, {', '.join(DTYPES)}")
    device = resolve_device(options.device)
    dtype = DTYPES.get(options.dtype, torch.bfloat16 if device.type == "cuda" else torch.float32)
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
    from ebft.tasks.generation import chat_text

    if all(isinstance(prompt, str) for prompt in prompts):
        return generator.complete([str(prompt) for prompt in prompts], settings, advance=advance)
    texts = [chat_text(list(turns), generator.tokenizer, settings.system_prompt) for turns in prompts]  # type: ignore[arg-type]
    return generator.complete(texts, replace(settings, prompt_style="rendered"), advance=advance)


def chat(options: argparse.Namespace) -> None:
    """Turn by turn, with every model's own answers in what it sees; a base model continues each text by itself."""
    from ebft.evaluate.live_answer import LiveAnswer

    made = _prompt_format(options)
    speakers = {label: load(name, options) for label, name in zip(labels(options.model), options.model, strict=True)}
    has_template = {n: getattr(s.tokenizer, "chat_template", None) is not None for n, s in speakers.items()}
    chats = options.prompt_style == "chat" or (options.prompt_style is None and made.kind in (None, "messages"))
    talks = {name: found and chats for name, found in has_template.items()}
    turns: dict[str, list[dict[str, str]]] = {label: [] for label in speakers}
    print("An empty line ends, /reset begins anew.", end=" ")
    why = "Without a chat template" if chats else "Not trained on conversations" if made.kind else "As raw text"
    print("" if all(talks.values()) else f"{why}, a model continues what you type, and remembers nothing.")
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
                generator.streamer = LiveAnswer(generator.tokenizer, generator.end_token_ids)
            settings = _settings(options, "truncate")  # a long chat loses its beginning
            [found] = answer(generator, [mine if talks[label] else made.of_text(said)], settings)
            answers[label] = [one.text for one in found]
            turns[label] = [*mine, {"role": "assistant", "content": answers[label][0]}]
        if len(speakers) > 1:
            _show(None, answers)


def _rows(prompts: Sequence[Prompt], answers: dict[str, list[list[Completion]]]) -> Iterator[dict[str, Any]]:
    for place, prompt in enumerate(prompts):
        for label, found in answers.items():
            for sample, one in enumerate(found[place]):
                where = {"prompt": prompt, "model": label, "sample": sample}
                yield {**where, "completion": one.text, "finish": one.finish}


def _note_unfinished(completions: Sequence[Completion], options: argparse.Namespace) -> None:
    """What an answer that stops in the middle, or is not there, does not say itself."""
    cut = sum(one.finish in ("length", "context") for one in completions)
    at_once = sum(not one.text and one.finish == "end" for one in completions)
    blank = sum(not one.text.strip() for one in completions) - at_once
    if shortened := sum(one.prompt_truncated for one in completions):
        logger.warning(f"{shortened} of {len(completions)} answers are to prompts without their beginning")
    if cut:
        where = f"--max-new-tokens {options.max_new_tokens}, or at the end of the model's context"
        logger.info(f"{cut} of {len(completions)} answers are cut off, at {where}")
    if at_once:
        logger.info(f"empty answers, where the model ended at once: {at_once} of {len(completions)}")
    if blank:
        logger.info(f"answers of nothing but white space: {blank} of {len(completions)}")


def _shortened(prompt: str) -> str:
    """What tells prompts apart is mostly near the end: a template comes before it."""
    if len(prompt) <= LONGEST_SHOWN:
        return prompt
    return f"{prompt[:BEGINNING].rstrip()} ... {prompt[BEGINNING - LONGEST_SHOWN :].lstrip()}"


def _show(prompt: Prompt | None, answers: dict[str, list[str]]) -> None:
    """One model's answers as they are; those of several as columns of a table."""
    if prompt is not None:
        print(f"\n> {printable(_shortened(prompt if isinstance(prompt, str) else prompt[-1]['content']))}")
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
