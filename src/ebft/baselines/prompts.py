"""The prompts that RLVR trains on, and the rows of the dataset behind them for the reward functions."""

from __future__ import annotations

import itertools
import logging
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset

from ebft.baselines.verifiable_rewards import RewardFunction, why_not_rewarded
from ebft.config.recipe import Recipe
from ebft.data.packing import DocumentIndex
from ebft.data.row_format import Row, RowFormat
from ebft.data.rows import read_rows
from ebft.errors import DataError
from ebft.runtime import processes
from ebft.runtime.files import cache_directory

logger = logging.getLogger(__name__)


class StoredRows:
    """Rows in a file without a name, which goes when the process ends: a dataset need not fit into memory."""

    def __init__(self) -> None:
        folder = cache_directory()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def append(self, row: Row) -> None:
        self._starts.append(self._file.seek(0, 2))
        pickle.dump(row, self._file)

    def __getitem__(self, number: int) -> Row:
        self._file.seek(self._starts[number])
        return pickle.load(self._file)

    def reorder(self, order: Sequence[int]) -> None:
        self._starts = [self._starts[number] for number in order]


@dataclass
class Prompts:
    """What is trained on: rows of the dataset, their prompts (a text, or messages), and the prompts' tokens."""

    rows: StoredRows = field(default_factory=StoredRows)
    prompts: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    answers_begin_with: str = ""  # by prompt_separator; rewards do not see it

    def reorder(self, order: Sequence[int]) -> None:
        self.rows.reorder(order)
        self.prompts = [self.prompts[number] for number in order]
        self.lengths = [self.lengths[number] for number in order]

    def dataset(self) -> Dataset:
        return Dataset.from_dict({"prompt": self.prompts, "row": list(range(len(self.rows)))})


def prompt_of(row: Row, row_format: RowFormat) -> Any:
    """The prompt of a row: a text, or the messages before the last answer."""
    prompt = row_format.prompt_of(row)
    if isinstance(prompt, list) and prompt:
        return [{"role": turn["role"], "content": turn.get("content")} for turn in prompt]
    if isinstance(prompt, str) and prompt:
        return prompt
    raise DataError(
        f"rlvr needs a prompt in the column {row_format.prompt!r} or {row_format.messages!r}; the row has "
        f"{', '.join(map(repr, row)) or 'none'}. Name yours with prompt_column or messages_column, or set "
        "prompt_template"
    )


def rows_of(recipe: Recipe, index: DocumentIndex) -> Iterator[tuple[int, str, Row]]:
    """The rows behind the documents of an index, one at a time as the sources have them: the same split as everywhere
    else. Each with its place in the index and the words for where it stands."""
    data = recipe.data
    for store, source in enumerate(data.dataset):
        mine = (index.store == store).nonzero()[0]
        places = dict(zip(index.number[mine].tolist(), mine.tolist(), strict=True))
        rows = itertools.islice(read_rows(source, data.dataset_split), data.limit_documents)
        for number, row in enumerate(rows):
            if number in places:
                yield places[number], f"{source}: row {number + 1}", dict(row)


def load_prompts(recipe: Recipe, index: DocumentIndex, rewards: Sequence[RewardFunction], tokenizer: Any) -> Prompts:
    """Prompts that can be rewarded and are not too long; says how many are left out, and why."""
    settings: Any = recipe.training
    found = Prompts(answers_begin_with=recipe.data.row_format.answers_begin_with)
    places: list[int] = []
    too_long, unusable = 0, []
    for place, where, row in rows_of(recipe, index):
        try:
            prompt = prompt_of(row, recipe.data.row_format)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if (reason := why_not_rewarded(rewards, row, where)) is not None:
            unusable.append(reason)
            continue
        length = _tokens(prompt, tokenizer)
        if length > settings.max_prompt_tokens:
            too_long += 1
            continue
        found.rows.append(row)
        found.prompts.append(prompt)
        found.lengths.append(length)
        places.append(place)
    found.reorder(np.argsort(places).tolist())
    total = len(index)
    if not places:
        reason = (
            unusable[0] if unusable else f"all prompts are longer than max_prompt_tokens={settings.max_prompt_tokens}"
        )
        raise DataError(f"none of the {total} documents can be used: {reason}")
    first = processes.rank() == 0
    if unusable and first:
        logger.warning(f"{len(unusable)} of {total} documents are left out; the first: {unusable[0]}")
    if too_long and first:
        longer = f"prompts longer than max_prompt_tokens={settings.max_prompt_tokens}"
        logger.warning(f"{too_long} of {total} documents with {longer} are left out")
    if len({isinstance(prompt, str) for prompt in found.prompts}) > 1:
        raise DataError("some prompts are texts and some are messages; train on one kind at a time")
    return found


def _tokens(prompt: Any, tokenizer: Any) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    if getattr(tokenizer, "chat_template", None) is None:
        raise DataError("the tokenizer has no chat template, which 'messages' needs; use text prompts")
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
