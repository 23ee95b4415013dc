"""Rows as people have them, turned into the three kinds that `formats` encodes: text, prompt and completion, messages.

{"instruction", "input", "output"}           Alpaca: prompt and completion, by Alpaca's own template
{"conversations": [{"from", "value"}, ...]}  ShareGPT: messages
any columns, with a `prompt_template`        prompt and completion
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any, Literal

from ebft.errors import ConfigError, DataError

Row = dict[str, Any]
Kind = Literal["text", "pair", "messages"]
PromptKind = Literal["text", "prompt", "alpaca", "messages"]

# The words that Alpaca was trained with (github.com/tatsu-lab/stanford_alpaca).
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n"
    "### Response:\n"
)
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
# What ShareGPT and others call those who speak, in small letters.
_ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "human": "user",
    **{role: "assistant" for role in ("gpt", "chatgpt", "bot", "model", "ai")},
}


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
        kind = self.kind(row)
        self._check_used(row, kind)
        if kind == "messages":
            return {"messages": as_messages(row[self._messages_column(row)])}
        if kind == "pair":
            completion = as_messages(row[self.completion_column(row)])
            if self.answers_begin_with and is_glued(self._bare_prompt(row), completion):
                completion = self.answers_begin_with + completion
            return {"prompt": self.prompt_of(row), "completion": completion}
        return {"text": row[self.text]}

    @property
    def prompts_end_with(self) -> str:
        """The separator without the spaces that it ends with. Tokenizers make a space part of the word after it: at the
        end of a prompt it would be a token of its own, and the word another one than in any other text."""
        return (self.prompt_separator or "").rstrip(" ")

    @property
    def answers_begin_with(self) -> str:
        """These spaces."""
        return (self.prompt_separator or "").removeprefix(self.prompts_end_with)

    def kind(self, row: Row) -> Kind:
        answered = self.completion_column(row) in row
        if self.prompt_template and answered:
            return "pair"
        if self.prompt_template:
            raise DataError(
                f"prompt_template makes prompts, and the row has no answer in the column {self.completion!r}; it has "
                f"{_names(row)}. Name yours with completion_column"
            )
        if self._messages_column(row) in row:
            return "messages"
        if answered and (self.prompt in row or "instruction" in row):
            return "pair"
        if self.text in row:
            return "text"
        if "chosen" in row and "rejected" in row:
            whole = "messages" if isinstance(row["chosen"], list) else "text"
            column = "completion" if self.prompt in row else whole
            raise DataError(
                f"the row is a preference: it has {_names(row)}; set {column}_column=chosen to train on chosen answers"
            )
        raise DataError(
            f"a row needs {self.text!r}, {self.prompt!r} and {self.completion!r}, or {self.messages!r}; it has "
            f"{_names(row)}. Name yours with text_column, prompt_column, completion_column or messages_column, or make "
            "prompts of them with prompt_template"
        )

    def prompt_of(self, row: Row) -> Any:
        """The prompt of a row with or without an answer: a text, the messages before the last answer, or None. What a
        model is given to answer is this, too."""
        prompt = self._bare_prompt(row)
        if self.prompts_end_with and is_glued(prompt, row.get(self.completion_column(row), "")):
            prompt += self.prompts_end_with
        return prompt

    def _bare_prompt(self, row: Row) -> Any:
        if self.prompt_template:
            return _fill(self.prompt_template, row)
        if self._messages_column(row) in row:
            return _before_last_answer(as_messages(row[self._messages_column(row)]))
        if self.prompt in row:
            return as_messages(row[self.prompt])
        if "instruction" in row:
            return _fill(ALPACA_WITH_INPUT if row.get("input") else ALPACA, row)
        return None

    def prompt_kind(self, row: Row) -> PromptKind:
        """How a row would have its prompt made of what somebody types."""
        prompt = self.prompt_of(row)
        if prompt is None or isinstance(prompt, list):
            return "text" if prompt is None else "messages"
        return "prompt" if self.prompt_template or self.prompt in row else "alpaca"

    def _messages_column(self, row: Row) -> str:
        is_sharegpt = self.messages == "messages" and "messages" not in row and "conversations" in row
        return "conversations" if is_sharegpt else self.messages

    def completion_column(self, row: Row) -> str:
        """The column of the answer, whether the row has it or not."""
        is_alpaca = self.completion == "completion" and "completion" not in row and "output" in row
        return "output" if is_alpaca and (self.prompt_template or "instruction" in row) else self.completion

    def _check_used(self, row: Row, kind: Kind) -> None:
        """A column that the user has named and the row has must be one that is trained on."""
        used = {"pair": ("prompt", "completion")}.get(kind, (kind,))
        in_template = fields_of(self.prompt_template or "")
        for other, partner in {"text": "", "prompt": "completion", "completion": "prompt", "messages": ""}.items():
            name = getattr(self, other)
            if name == other or name not in row or name in in_template:
                continue
            if other in used and not (other == "prompt" and self.prompt_template):
                continue
            read = " and ".join(repr(getattr(self, one)) for one in used)
            why = f"{read} would be read"
            if self.prompt_template and other == "prompt":
                why = "prompt_template does not name it"
            elif partner and getattr(self, partner) not in row:
                why = f"there is no column {getattr(self, partner)!r} beside it"
            raise DataError(
                f"{other}_column={name!r} would not be used: {why}; name the columns that belong together, or leave "
                f"{other}_column out"
            )


def with_escapes(text: str) -> str:
    """Line breaks and tabs that a shell hands on as two characters."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def is_glued(prompt: Any, completion: Any) -> bool:
    """Whether nothing stands between the texts of a prompt and its answer."""
    both = isinstance(prompt, str) and isinstance(completion, str) and bool(prompt)
    return both and not prompt[-1].isspace() and not completion[:1].isspace()


def ends_with_space(prompt: Any) -> bool:
    """Whether a prompt ends with a space that tokenizers would make part of the word after it; not indentation."""
    return isinstance(prompt, str) and prompt.endswith(" ") and bool(prompt.rpartition("\n")[2].strip())


def as_messages(turns: Any) -> Any:
    """Turns with `role` and `content`, and the roles that chat templates know; what is no list of turns, as it is."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return turns
    if all("from" in turn and "value" in turn for turn in turns):
        turns = [{"role": turn["from"], "content": turn["value"]} for turn in turns]
    return [{**turn, "role": _standard_role(turn["role"])} if "role" in turn else turn for turn in turns]


def _standard_role(role: Any) -> Any:
    return _ROLES.get(str(role).lower(), role)


def _before_last_answer(turns: Any) -> list[Any]:
    turns = list(turns or [])
    answers = [place for place, turn in enumerate(turns) if turn.get("role") == "assistant"]
    return turns[: answers[-1]] if answers else turns


def fields_of(template: str) -> list[str]:
    """The columns that a template names."""
    try:
        found = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"prompt_template={template!r} cannot be read: {error}; write {{{{ for a brace") from None
    for name in found:
        if not name or name.isdecimal() or set(name) & set(".["):  # what Python would read in its own way
            raise ConfigError(
                f"prompt_template holds '{{{name}}}'; it takes names of columns in braces, and {{{{ for a brace"
            )
    return found


def _fill(template: str, row: Row) -> str:
    values = {}
    for name in fields_of(template):
        if name not in row:
            raise DataError(f"prompt_template names {name!r}, which is no column of the row; it has {_names(row)}")
        values[name] = "" if row[name] is None else str(row[name])
    return template.format_map(values)


def _names(row: Row) -> str:
    return ", ".join(map(repr, row)) or "no columns"
