"""Rows as people have them, turned into tokens with an answer flag each.

{"text": ...}                                every token is an answer
{"prompt": ..., "completion": ...}           the completion is the answer
{"messages": [{"role", "content"}, ...]}     every assistant turn is an answer (chat template of the tokenizer)
{"instruction", "input", "output"}           Alpaca: prompt and completion, by Alpaca's own template
{"conversations": [{"from", "value"}, ...]}  ShareGPT: messages
any columns, with a `prompt_template`        prompt and completion

Prompt and completion may also be lists of messages; then only the completion's assistant turns are answers. A document
ends with the tokenizer's end token, which counts as part of the answer, so that the model learns to stop.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebft.errors import ConfigError, DataError, first_line
from ebft.runtime.files import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Row = Json
Prompt = Any  # a text, or messages, or None where there is none

# The words that Alpaca was trained with (github.com/tatsu-lab/stanford_alpaca).
ALPACA_WITH_INPUT = "Below is an instruction that describes a task, paired with an input that provides further "
ALPACA_WITH_INPUT += "context. Write a response that appropriately completes the request.\n\n"
ALPACA_WITH_INPUT += "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
ALPACA = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
ALPACA += "### Instruction:\n{instruction}\n\n### Response:\n"
# What ShareGPT and others call those who speak, in small letters.
_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"human": "user"}
_ROLES |= dict.fromkeys(("gpt", "chatgpt", "bot", "model", "ai"), "assistant")


@dataclass(frozen=True)
class Document:
    tokens: list[int]
    answers: list[bool]
    ends_with_answer: bool = True


@dataclass(frozen=True)
class RowFormat:
    """Which columns are what, and how a prompt is made of them."""

    text: str = "text"
    prompt: str = "prompt"
    completion: str = "completion"
    messages: str = "messages"
    prompt_template: str | None = None
    prompt_separator: str | None = None  # between a prompt and a completion that have no whitespace there

    def standard(self, row: Row) -> Row:
        """The row as `text`, as `prompt` and `completion`, or as `messages`, with no other columns."""
        given, template = self._named(row), self.prompt_template
        if self.messages in given and not template:
            found, read = {"messages": as_messages(given[self.messages])}, [self.messages]
        elif self.completion in given and (template or self.prompt in given):
            prompt, completion = self._bare_prompt(given), as_messages(given[self.completion])
            if is_glued(prompt, completion):
                prompt, completion = prompt + self._prompts_end_with, self.answers_begin_with + completion
            found = {"prompt": prompt, "completion": completion}
            read = [*(fields_of(template) if template else [self.prompt]), self.completion]
        elif self.text in given and not template:
            found, read = {"text": given[self.text]}, [self.text]
        else:
            needed = f"{self.text!r}, {self.prompt!r} and {self.completion!r}, or {self.messages!r}"
            needed = f"{self.completion!r} beside its prompt_template" if template else needed
            way_out = "name yours with text_column, prompt_column, completion_column or messages_column, or set "
            way_out += "prompt_template; in Python: dataset.rename_column(yours, ours)"
            raise DataError(f"a row needs {needed}; it has {_names(row)}; {way_out}")
        for kind in ("text", "prompt", "completion", "messages"):
            name = getattr(self, kind)
            if name != kind and name in row and name not in read:  # the user has named it, and means it
                others = " and ".join(map(repr, read))
                raise DataError(f"{kind}_column={name!r} would not be used: {others} would be read; leave one out")
        return found

    def _named(self, row: Row) -> Row:
        """The row, with Alpaca's and ShareGPT's columns also under the names that they are read by."""
        if not isinstance(row, Mapping):
            ways_out = "[{'text': text}, ...], load_dataset('json', data_files=path)['train'], or one split of several"
            raise DataError(f"a row must be a mapping of columns, not {row!r:.40}; give {ways_out}")
        found = dict(row)
        if "conversations" in row and self.messages == "messages":
            found.setdefault("messages", row["conversations"])
        if "instruction" in row:
            found.setdefault(self.prompt, _fill(ALPACA_WITH_INPUT if row.get("input") else ALPACA, row))
        if "output" in row and self.completion == "completion" and (self.prompt_template or "instruction" in row):
            found.setdefault("completion", row["output"])
        return found

    @property
    def _prompts_end_with(self) -> str:
        return (self.prompt_separator or "").rstrip(" ")

    @property
    def answers_begin_with(self) -> str:
        """The spaces that the separator ends with. Tokenizers make a space part of the word after it: at the end of a
        prompt it would be a token of its own, and the word another one than in any other text."""
        return (self.prompt_separator or "").removeprefix(self._prompts_end_with)

    def prompt_of(self, row: Row) -> Prompt:
        """The prompt of a row with or without an answer: a text, the messages before the last answer, or None. What a
        model is given to answer is this, too."""
        given = self._named(row)
        prompt = self._bare_prompt(given)
        return prompt + self._prompts_end_with if is_glued(prompt, given.get(self.completion, "")) else prompt

    def _bare_prompt(self, given: Row) -> Prompt:
        if self.prompt_template:
            return _fill(self.prompt_template, given)
        if self.messages not in given:
            return as_messages(given.get(self.prompt))
        turns = as_messages(given[self.messages]) or []
        answers = [place for place, turn in enumerate(turns) if turn.get("role") == "assistant"]
        return turns[: answers[-1]] if answers else turns

    def prompt_kind(self, row: Row) -> str:
        """How a row would have its prompt made of what somebody types: text, prompt, alpaca or messages."""
        prompt = self.prompt_of(row)
        if prompt is None or isinstance(prompt, list):
            return "text" if prompt is None else "messages"
        return "prompt" if self.prompt_template or self.prompt in row else "alpaca"


PLAIN = RowFormat()


def with_escapes(text: str) -> str:
    """Line breaks and tabs that a shell hands on as two characters."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def is_glued(prompt: object, completion: object) -> bool:
    """Whether nothing stands between the texts of a prompt and its answer."""
    if not (isinstance(prompt, str) and isinstance(completion, str) and prompt):
        return False
    return not prompt[-1].isspace() and not completion[:1].isspace()


def as_messages(turns: object) -> Prompt:
    """Turns with `role` and `content`, and the roles that chat templates know; what is no list of turns, as it is."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return turns
    if all("from" in turn and "value" in turn for turn in turns):
        turns = [{"role": turn["from"], "content": turn["value"]} for turn in turns]
    known = [(turn, _ROLES.get(str(turn.get("role")).lower())) for turn in turns]
    return [{**turn, "role": role} if role else turn for turn, role in known]


def fields_of(template: str) -> list[str]:
    """The columns that a template names."""
    try:
        found = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError:
        found = []
    if not found:
        raise ConfigError(f"prompt_template={template!r} takes names of columns in braces, and {{{{ for a brace")
    return found


def _fill(template: str, row: Row) -> str:
    if missing := [name for name in fields_of(template) if name not in row]:
        raise DataError(f"prompt_template names {missing[0]!r}, which is no column of the row; it has {_names(row)}")
    return template.format_map({name: "" if value is None else str(value) for name, value in row.items()})


def _names(row: Row) -> str:
    return ", ".join(map(repr, row)) or "no columns"


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, embeddings: int | None = None) -> None:
    """The tokenizer must have an end token, and no token without an embedding."""
    tokens, end = len(tokenizer), tokenizer.eos_token
    if tokenizer.eos_token_id is None or tokens > (embeddings or tokens):
        both = f"an end token (it has {end!r}), and the model an embedding for each of its {tokens} tokens"
        raise DataError(f"the tokenizer needs {both} (it has {embeddings}); use the model's own, or set its eos_token")


def encode(row: Row, tokenizer: PreTrainedTokenizerBase, row_format: RowFormat = PLAIN) -> Document:
    """Tokens and answer flags of one row."""
    standard = row_format.standard(row)
    prompt, completion = standard.get("prompt"), standard.get("completion")
    if "messages" in standard:
        document = _from_messages(standard["messages"], 0, tokenizer)
    elif isinstance(prompt, list) and isinstance(completion, list):
        document = _from_messages([*prompt, *completion], len(prompt), tokenizer)
    elif "text" in standard:
        tokens = tokenizer(_text(standard["text"], row_format.text))["input_ids"]
        document = Document(tokens, [True] * len(tokens))
    else:
        answer = _text(completion, row_format.completion)
        document = _from_parts(_text(prompt, row_format.prompt), answer, tokenizer)
    return _ended(document, tokenizer)


def _text(value: object, column: str) -> str:
    if not isinstance(value, str):
        found = "is empty (null)" if value is None else f"holds {type(value).__name__}, not text"
        raise DataError(f"column {column!r} {found}")
    return value


def _ended(document: Document, tokenizer: PreTrainedTokenizerBase) -> Document:
    """Exactly one end token at the end. Chat templates often put a line break behind theirs, which nobody needs."""
    end, tokens = tokenizer.eos_token_id, document.tokens
    if end in tokens[-3:]:
        kept = len(tokens) - tokens[::-1].index(end)
        if not str(tokenizer.decode(tokens[kept:])).strip():
            return Document(tokens[:kept], document.answers[:kept])
    # The end of a prompt or of a user's turn is nothing the model has to say.
    return Document([*tokens, end], [*document.answers, document.ends_with_answer])


def _from_parts(prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> Document:
    """Tokenised apart, as the prompt will be on its own when the model is used."""
    prompt_tokens = tokenizer(prompt)["input_ids"]
    if prompt_tokens and prompt_tokens[-1] == tokenizer.eos_token_id:
        prompt_tokens = prompt_tokens[:-1]  # some tokenizers end every text by themselves
    completion_tokens = tokenizer(completion, add_special_tokens=False)["input_ids"]
    answers = [False] * len(prompt_tokens) + [True] * len(completion_tokens)
    return Document([*prompt_tokens, *completion_tokens], answers)


def _from_messages(messages: object, first_answer: int, tokenizer: PreTrainedTokenizerBase) -> Document:
    """The whole conversation is rendered and tokenised once; answers are found as stretches of its text."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise DataError("'messages' must be a non-empty list of {'role': ..., 'content': ...}")

    def render(turns: list[Row], asks: bool = False) -> str:
        try:
            return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asks))
        except Exception as error:  # no template, or a role or an order of turns that it does not take
            raise DataError(f"the chat template does not accept this conversation: {first_line(error)}") from None

    whole = render(messages)
    stretches = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or index < first_answer:
            continue
        before = render(messages[:index], asks=True) if index else ""
        after = render(messages[: index + 1])
        if not (whole.startswith(after) and after.startswith(before)):
            what = f"the chat template renders turn {index} differently inside a longer conversation"
            raise DataError(f"{what}; split the conversation, or use 'prompt' and 'completion'")
        stretches.append((len(before), len(after)))
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    answers = [any(a < end and start < b for a, b in stretches) for start, end in encoded["offset_mapping"]]
    return Document(encoded["input_ids"], answers, ends_with_answer=messages[-1]["role"] == "assistant")
