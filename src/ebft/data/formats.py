"""Three kinds of a row, turned into tokens with an answer flag each (`row_format` makes these of others).

    {"text": ...}                             every token is an answer
    {"prompt": ..., "completion": ...}        the completion is the answer
    {"messages": [{"role", "content"}, ...]}  every assistant turn is an answer (chat template of the tokenizer)

Prompt and completion may also be lists of messages; then only the completion's assistant turns are answers. A document
ends with the tokenizer's end token, which counts as part of the answer, so that the model learns to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import TemplateError

from ebft.data.row_format import Row, RowFormat
from ebft.errors import DataError, first_line, kind_of
from ebft.runtime.time_limit import TookTooLong, time_limit

logger = logging.getLogger(__name__)

TEMPLATE_SECONDS = 10.0  # for one conversation; a few milliseconds are usual


@dataclass(frozen=True)
class Document:
    tokens: list[int]
    answers: list[bool]
    ends_with_answer: bool = True


def check_tokenizer(tokenizer: Any, vocabulary_size: int | None = None, ends: Sequence[int] = ()) -> None:
    """The tokenizer must have an end token, and no token that the model has no embedding for.

    ends: with which the model's own settings say that it ends. One that is not among them is strange, since the model
    never learnt it, but nothing breaks.
    """
    if tokenizer.eos_token_id is None:
        raise DataError(
            "the tokenizer has no end token, so documents cannot be separated; set one with tokenizer.eos_token"
        )
    if vocabulary_size is not None and len(tokenizer) > vocabulary_size:
        raise DataError(
            f"the tokenizer has {len(tokenizer)} tokens but the model only {vocabulary_size} embeddings; "
            "use the model's own tokenizer, or resize its embeddings"
        )
    if ends and tokenizer.eos_token_id not in ends:
        _warn_of_another_end(tokenizer.eos_token, tuple(map(str, tokenizer.convert_ids_to_tokens(list(ends)))))


@cache
def _warn_of_another_end(end: str, of_model: tuple[str, ...]) -> None:
    """Once, however often the same two are looked at."""
    own = " or ".join(map(repr, of_model))
    logger.warning(
        f"the tokenizer ends texts with {end!r}, the model by its own settings with {own}; "
        "if that is not meant, correct eos_token in tokenizer_config.json"
    )


def encode(row: Row, tokenizer: Any, row_format: RowFormat | None = None) -> Document:
    """Tokens and answer flags of one row."""
    row_format = row_format or RowFormat()
    standard = row_format.standard(row)
    if "messages" in standard:
        document = _from_messages(standard["messages"], 0, tokenizer)
    elif "prompt" in standard:
        prompt, completion = standard["prompt"], standard["completion"]
        if isinstance(prompt, list) and isinstance(completion, list):
            document = _from_messages([*prompt, *completion], len(prompt), tokenizer)
        else:
            answer = _text(completion, row_format.completion_column(row))
            document = _from_parts(_text(prompt, row_format.prompt), answer, tokenizer)
    else:
        tokens = tokenizer(_text(standard["text"], row_format.text))["input_ids"]
        document = Document(tokens, [True] * len(tokens))
    return _ended(document, tokenizer)


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        found = "is empty (null)" if value is None else f"holds {kind_of(value)}, not text"
        raise DataError(f"column {column!r} {found}")
    return value


def _ended(document: Document, tokenizer: Any) -> Document:
    """Exactly one end token at the end. Chat templates often put a line break behind theirs, which nobody needs."""
    end, tokens = tokenizer.eos_token_id, document.tokens
    if end in tokens[-3:]:
        last = len(tokens) - 1 - tokens[::-1].index(end)
        if last == len(tokens) - 1 or not tokenizer.decode(tokens[last + 1 :]).strip():
            return Document(tokens[: last + 1], document.answers[: last + 1])
    # The end of a prompt or of a user's turn is nothing the model has to say.
    return Document([*tokens, end], [*document.answers, document.ends_with_answer])


def _from_parts(prompt: str, completion: str, tokenizer: Any) -> Document:
    """Tokenised apart, as the prompt will be on its own when the model is used."""
    prompt_tokens = tokenizer(prompt)["input_ids"]
    if prompt_tokens and prompt_tokens[-1] == tokenizer.eos_token_id:
        prompt_tokens = prompt_tokens[:-1]  # some tokenizers end every text by themselves
    completion_tokens = tokenizer(completion, add_special_tokens=False)["input_ids"]
    answers = [False] * len(prompt_tokens) + [True] * len(completion_tokens)
    return Document([*prompt_tokens, *completion_tokens], answers)


def _from_messages(messages: Any, first_answer: int, tokenizer: Any) -> Document:
    """The whole conversation is rendered and tokenised once; answers are found as stretches of its text."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise DataError("'messages' must be a non-empty list of {'role': ..., 'content': ...}")
    if getattr(tokenizer, "chat_template", None) is None:
        raise DataError("the tokenizer has no chat template, which 'messages' needs; use 'prompt' and 'completion'")

    def render(turns: list[Any], **options: Any) -> str:
        try:
            with time_limit(TEMPLATE_SECONDS):
                return tokenizer.apply_chat_template(turns, tokenize=False, **options)
        except TookTooLong as error:
            raise DataError(f"the chat template of the tokenizer does not come to an end: {error}") from None
        except (TemplateError, TypeError, RecursionError, MemoryError) as error:
            # A role or an order of turns that the template does not take, or a template that does nonsense.
            raise DataError(f"the chat template does not accept this conversation: {first_line(error)}") from None

    whole = render(messages)
    stretches = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or index < first_answer:
            continue
        before = render(messages[:index], add_generation_prompt=True) if index else ""
        after = render(messages[: index + 1])
        if not (whole.startswith(after) and after.startswith(before)):
            raise DataError(
                f"the chat template renders turn {index} differently inside a longer conversation, so its answer "
                "cannot be found; split the conversation, or use 'prompt' and 'completion'"
            )
        stretches.append((len(before), len(after)))
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    answers = [any(a < end and start < b for a, b in stretches) for start, end in encoded["offset_mapping"]]
    return Document(encoded["input_ids"], answers, ends_with_answer=messages[-1]["role"] == "assistant")
