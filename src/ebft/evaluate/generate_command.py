"""`ebft generate`: what models write to the same prompts: given as text or in a file; or a chat in the terminal.

All models draw with the same random numbers, so that what differs is the models'. Prompts are made as in the run behind
a model, so that it sees what it was trained on.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from transformers import TextStreamer

from ebft.config import evaluation
from ebft.config.data import DataConfig
from ebft.config.evaluation import BORROWED, EvalOptions, settings_of_run
from ebft.config.settings import Parser
from ebft.data.row_format import Prompt, fields_of
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


def chosen(given: argparse.Namespace) -> tuple[EvalOptions, str | None]:
    """Prompts are made as in the first of the runs behind the models, but for what flags say. With their kind, as
    `RowFormat.prompt_kind` has it; None: not known, or several."""
    kind = {"raw": "text", "chat": "messages"}.get(given.prompt_style)
    values = {**given.settings, "max_new_tokens": given.max_new_tokens, "samples": given.samples}
    if given.prompt_template is not None:
        values["calibration_prompt_template"] = given.prompt_template
    runs = [run for model in values.get("model", []) if (run := settings_of_run(Path(model).expanduser()))]
    if runs and kind is None:
        logger.info("prompts are made as in the model's run; --prompt-style raw leaves them as they are")
        kinds = runs[0].get("prompt_kinds") or []
        kind = kinds[0] if len(kinds) == 1 else None
        of_run = {
            n: runs[0][inner] for n, (inner, owner) in BORROWED.items() if owner is DataConfig and inner in runs[0]
        }
        if "prompt_column" in values:
            of_run.pop("calibration_prompt_template", None)  # it would win over the column
        values = of_run | values
    return EvalOptions.from_values(values), kind


def typed(text: str, kind: str | None, options: EvalOptions) -> Prompt:
    """The prompt of what somebody types."""
    rows = options.data.row_format
    column = "instruction" if kind == "alpaca" else rows.prompt
    return rows.prompt_of({fields_of(rows.prompt_template)[0] if rows.prompt_template else column: text})


def read_prompts(texts: Sequence[str], file: str | None, kind: str | None, options: EvalOptions) -> list[Prompt]:
    """Of typed texts and of a file's; conversations, if any of them is one."""
    found: list[Prompt] = []
    if file is not None:
        if Path(file).suffix in TEXT_FILES and Path(file).is_file():
            found = [typed(line, kind, options) for line in Path(file).read_text("utf-8").splitlines() if line]
        else:
            found = [prompt for prompt in map(options.data.row_format.prompt_of, read_rows(file)) if prompt]
        if not found:
            column = options.data.row_format.prompt
            raise DataError(f"{file}: no prompts; rows need {column!r} or 'messages', or --prompt-column")
    found = [*(typed(text, kind, options) for text in texts), *found[: options.limit]]
    chats = kind == "messages" or any(isinstance(prompt, list) for prompt in found)
    return [[{"role": "user", "content": p}] if chats and isinstance(p, str) else p for p in found]


def answer(generator: Generator, prompts: Sequence[Prompt], options: EvalOptions) -> list[list[Completion]]:
    """`options.samples` answers to every prompt; all of them are texts, or all conversations."""
    given = {name: getattr(options, name) for name in (*OF_SAMPLING, "samples", "max_new_tokens")}
    settings = GenerationSettings(**given, prompt_style="raw" if isinstance(prompts[0], str) else "rendered")
    texts = [p if isinstance(p, str) else chat_text(p, generator.tokenizer, settings.system_prompt) for p in prompts]
    return generator.complete(texts, settings)


def answer_prompts(prompts: Sequence[Prompt], options: EvalOptions, output: str | None) -> None:
    models = zip(labels(options.model), options.model, strict=True)  # one at a time
    answers = {label: answer(CheckpointSubject(name, options).generator, prompts, options) for label, name in models}
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
            print(f"\n> {printable(prompt if isinstance(prompt, str) else prompt[-1]['content'])}")
        for label, found in answers.items():
            heading = f"--- {label}\n" if len(answers) > 1 else ""
            print(printable(heading + "\n---\n".join(one.text for one in found[place])))


def chat(kind: str | None, options: EvalOptions) -> None:
    """Turn by turn; a base model continues each text by itself."""
    generator = CheckpointSubject(options.model[0], options).generator
    generator.streamer = LiveAnswer(generator.tokenizer, skip_special_tokens=True)
    talks = kind in (None, "messages") and getattr(generator.tokenizer, "chat_template", None) is not None
    turns: list[dict[str, str]] = []
    print("An empty line ends. A model that is not for conversations continues what you type, and remembers nothing.")
    while said := input("\nyou> ").strip():
        turns.append({"role": "user", "content": said})
        [[found]] = answer(generator, [turns if talks else typed(said, kind, options)], options)
        turns.append({"role": "assistant", "content": found.text})


class LiveAnswer(TextStreamer):
    """An answer in the terminal while the model writes it."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        print(printable(text), end="\n" if stream_end else "", flush=True)


def command(arguments: list[str]) -> int:
    text = "What models write to the same prompts; without a prompt, a chat with one in the terminal."
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
    options, kind = chosen(given)
    quiet_libraries()
    if not options.model:
        raise ConfigError("no model: give --model, folders of runs, models or hub names")
    if given.prompt or given.file is not None:
        answer_prompts(read_prompts(given.prompt, given.file, kind, options), options, given.output)
    elif given.output or options.samples != 1 or len(options.model) > 1:
        raise ConfigError("a chat is with one model; --output and --samples need prompts: give --prompt or --file")
    else:
        with suppress(EOFError, KeyboardInterrupt):
            chat(kind, replace(options, too_long="truncate"))  # a long chat loses its beginning
    return 0
