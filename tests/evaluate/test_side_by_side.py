"""Rows that leave and join a batch are continued as each is alone. `by_hand` knows neither cache nor batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM

from ebft.errors import ConfigError
from ebft.evaluate.generation import GenerationSettings, TransformersGenerator
from ebft.evaluate.side_by_side import SideBySide
from ebft.model.backbone import text_config
from tests.evaluate.test_generation import model_of
from tests.models import CONFIGS, EXTRA_CONFIGS, MIXTURES, tiny_model
from tests.plain import untouched
from tests.tiny_tokenizer import END, VOCABULARY, byte_tokenizer

HOT = 2.5  # a temperature at which the tiny models say something


@torch.no_grad()
def check_drawn(model: Any, prompt: list[int], made: list[int], uniform: Tensor) -> None:
    """Each number lies in its token's part of the distribution after the whole text before it, but for rounding."""
    logits = model(torch.tensor([[*prompt, *made]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    upper = (logits.double() / HOT).softmax(-1).cumsum(-1)
    lower = torch.cat([torch.zeros_like(upper[:, :1]), upper[:, :-1]], -1)
    at, number = torch.tensor(made)[:, None], uniform[: len(made), None].double()
    assert (lower.gather(1, at) - 1e-5 <= number).all()
    assert (number <= upper.gather(1, at) + 1e-5).all()


class Busy:
    """Rows that leave and join, and what is drawn for them."""

    def __init__(self, model: Any) -> None:
        self.texts, self.numbers = SideBySide(model, HOT, None), torch.Generator().manual_seed(0)
        self.rows: list[tuple[list[int], Tensor, list[int]]] = []  # prompt, uniform numbers, tokens
        self.left = list(self.rows)

    def go(self, staying: list[int], joining: list[list[int]], steps: int) -> None:
        uniform = torch.rand(len(joining), 80, generator=self.numbers)
        self.texts.replace(staying, joining, uniform, [False] * len(joining))
        self.left += [row for place, row in enumerate(self.rows) if place not in staying]
        self.rows = [self.rows[place] for place in staying]
        self.rows += [(prompt, numbers, []) for prompt, numbers in zip(joining, uniform, strict=True)]
        for _ in range(steps if self.rows else 0):
            for (_, _, made), [token] in zip(self.rows, self.texts.step().tolist(), strict=True):
                made.append(token)


@pytest.mark.parametrize("family", [*CONFIGS, *EXTRA_CONFIGS, *MIXTURES])
def test_rows_that_leave_and_join_are_continued_as_each_alone(family: str) -> None:
    model = tiny_model(family)
    a, b, c = [5, 9, 3, 7, 2, 8, 1, 4], [11], [6, 2, 30]
    busy = Busy(model)
    busy.go([], [a, b], 4)
    assert busy.texts.mask.shape[1] == busy.texts.cache.get_seq_length() == 11
    busy.go([1], [c], 2)  # the widest leaves: the batch becomes narrower
    assert busy.texts.mask.shape[1] == busy.texts.cache.get_seq_length() == 6
    busy.go([0, 1], [a], 2)
    busy.go([1, 2], [], 3)
    busy.go([], [[8] * 11, b], 1)  # all leave
    busy.go([1, 0], [a, a], 70)  # in another order, and longer than a block of columns
    busy.go([], [[12, 13], [14]], 2)
    plain = untouched(model)
    every = [*busy.left, *busy.rows]
    assert [len(made) for _, _, made in every] == [4, 8, 7, 5, 71, 71, 70, 70, 2, 2]
    for prompt, uniform, made in every:
        check_drawn(plain, prompt, made, uniform)


def test_attention_meets_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model makes of keys and values has a size that a GPU's allocator has met before."""
    sizes: list[tuple[int, int]] = []
    original = F.scaled_dot_product_attention

    def attention(query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        sizes.append((query.shape[2], key.shape[2]))
        return original(query, key, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    busy = Busy(model_of())
    busy.go([], [[5] * 60, [6] * 3], 40)
    assert {columns for tokens, columns in sizes if tokens == 1} == {64, 128}
    assert {columns for tokens, columns in sizes if tokens > 1} == {59}


def counted(model: Any) -> list[tuple[int, int]]:
    """The rows and tokens of every pass from now on."""
    seen: list[tuple[int, int]] = []
    original = model.forward
    model.forward = lambda ids, *args, **kwargs: seen.append(tuple(ids.shape)) or original(ids, *args, **kwargs)
    return seen


def test_a_place_is_given_on_as_soon_as_its_row_ends() -> None:
    """As many steps as the tokens need, where every batch with a long row would have taken the long row's."""
    model, tokenizer = model_of(), byte_tokenizer(pad=END)
    prompts = [f"{number} and" for number in range(40)]
    asked = GenerationSettings(max_new_tokens=60, temperature=HOT, stop=tuple("abcdefghijklmnop"))
    seen = counted(model)
    found = TransformersGenerator(model, tokenizer, 8).complete(prompts, asked)
    widths = [rows for rows, tokens in seen if tokens == 1]
    assert sum(widths) == sum(completion.tokens for [completion] in found), "a row was computed after its end"
    longest = [max(completion.tokens for [completion] in found[start : start + 8]) for start in range(0, 40, 8)]
    assert len(widths) < sum(longest) / 1.5, "no faster than batch after batch"


def test_samples_of_a_prompt_share_its_computation() -> None:
    model = model_of()
    seen = counted(model)
    asked = GenerationSettings(max_new_tokens=3, temperature=1.0, samples=20)
    TransformersGenerator(model, byte_tokenizer(), None).complete(["one prompt", "and other."], asked)
    # All but the last token, which the first step is for; and a CPU writes sixteen at once if nobody says otherwise.
    assert [shape for shape in seen if shape[1] > 1] == [(1, 9), (2, 9), (1, 9)]
    assert max(rows for rows, _ in seen) == 16


def test_models_that_keep_more_than_keys_and_values_are_refused() -> None:
    mamba = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4))
    shared = model_of()
    text_config(shared).num_kv_shared_layers = 2
    for model in (mamba, shared):
        with pytest.raises(ConfigError, match="keeps more than keys and values"):
            TransformersGenerator(model, byte_tokenizer()).generate(["a"], GenerationSettings())
