"""Texts that a model continues side by side, a token of each at a step; a row that ends makes room for another at once.

The rows of the key-value cache end in the same column, so that a step writes one column for all of them. A row that
joins is filled up on its left to the width of the others; columns that no row needs any more are cut off there. A
batch thus takes as many steps as its tokens need, not as many as its longest row: of answers to code problems, the mean
has a quarter of the longest one's tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ebft.method.sampling import sample_tokens
from ebft.model.backbone import text_config


def has_plain_cache(base: Any) -> bool:
    """Whether a model keeps keys and values of every layer and nothing else: a state cannot be filled up on its left,
    and a layer that reads another's keys has none."""
    config: Any = text_config(base)
    if not base._supports_default_dynamic_cache() or getattr(config, "num_kv_shared_layers", None):
        return False
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in DynamicCache(config=config).layers)


class SideBySide:
    """
    Args:
        base: a causal language model of transformers with `has_plain_cache`, in evaluation mode.
        temperature, top_p: as in `GenerationSettings`.
    """

    def __init__(self, base: Any, temperature: float, top_p: float | None) -> None:
        self.base, self.temperature, self.top_p = base, temperature, top_p
        self.takes = inspect.signature(type(base).forward).parameters
        self.device = base.get_input_embeddings().weight.device
        self._begin()

    def _begin(self) -> None:
        self.cache = _empty_cache()
        self.mask = torch.zeros(0, 0, dtype=torch.long, device=self.device)  # [rows, columns], 0 where nothing is
        self.last = torch.zeros(0, 1, dtype=torch.long, device=self.device)  # the token that a step begins with
        self.uniform = torch.zeros(0, 0, device=self.device)  # [rows, steps], what each token is drawn by
        self.made = torch.zeros(0, 1, dtype=torch.long, device=self.device)  # tokens drawn so far

    @torch.no_grad()
    def join(self, prompts: Sequence[list[int]], uniform: Tensor) -> None:
        """More rows, with a uniform number [rows, steps] for every token they may have. A prompt that several of them
        have is computed once."""
        places: dict[tuple[int, ...], int] = {}
        which = torch.tensor([places.setdefault(tuple(prompt), len(places)) for prompt in prompts], device=self.device)
        # The last token of a prompt is left to the first step, which all rows then begin in the same way.
        width = max(map(len, prompts)) - 1
        ids = torch.zeros(len(places), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, tokens in enumerate(places):
            ids[place, width - len(tokens) + 1 :] = torch.tensor(tokens[:-1])
            mask[place, width - len(tokens) + 1 :] = 1
        cache, mask = _empty_cache(), mask.to(self.device)
        if width:
            self._forward(ids.to(self.device), mask, cache)
            _keep(cache, which)
        if not len(self.mask):
            self._begin()
            self.uniform = self.uniform.new_zeros(0, uniform.shape[1])
            self.cache = cache
        else:
            _merge(self.cache, cache, len(prompts), max(width, self.mask.shape[1]))
        self.mask = torch.cat(_as_wide(self.mask, mask[which]))
        last = torch.tensor([prompt[-1:] for prompt in prompts], device=self.device)
        self.last, self.uniform = torch.cat([self.last, last]), torch.cat([self.uniform, uniform.to(self.device)])
        self.made = torch.cat([self.made, torch.zeros_like(last)])

    @torch.no_grad()
    def step(self) -> Tensor:
        """The next token of every row, [rows, 1]."""
        self.mask = torch.cat([self.mask, torch.ones_like(self.last)], 1)
        logits = self._forward(self.last, self.mask, self.cache)[:, -1].to(self.device, torch.float32)
        number = self.uniform.gather(1, self.made)
        self.last = sample_tokens(logits, number, self.temperature, None, self.top_p)
        self.made = self.made + 1
        return self.last

    @torch.no_grad()
    def keep(self, rows: Sequence[int]) -> None:
        """The other rows have ended."""
        if not rows:
            return self._begin()
        which = torch.tensor(rows, device=self.device)
        self.mask, self.last, self.uniform, self.made = (
            each[which] for each in (self.mask, self.last, self.uniform, self.made)
        )
        unused = int(self.mask.any(0).long().argmax())
        self.mask = self.mask[:, unused:]
        return _keep(self.cache, which, unused)

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Logits at the last of these tokens, where the model can make them there alone."""
        given: dict[str, Any] = {}
        if "position_ids" in self.takes:
            given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if "logits_to_keep" in self.takes:
            given["logits_to_keep"] = 1
        return self.base(ids, attention_mask=mask, past_key_values=cache, use_cache=True, **given).logits


def _empty_cache() -> DynamicCache:
    """Without the model's settings: a sliding layer would forget columns, of which other rows need other ones. The mask
    keeps to the window all the same."""
    return DynamicCache()


def _keep(cache: DynamicCache, rows: Tensor, from_column: int = 0) -> None:
    for layer, name in _tensors(cache):
        states = getattr(layer, name)
        setattr(layer, name, states[:, :, from_column:][rows.to(states.device)])


def _merge(cache: DynamicCache, other: DynamicCache, rows: int, width: int) -> None:
    """Adds the rows of another cache; of one that is still empty, rows of nothing."""
    theirs = iter([getattr(layer, name) for layer, name in _tensors(other)])
    for layer, name in _tensors(cache):
        mine = getattr(layer, name)
        merged = mine.new_zeros(len(mine) + rows, mine.shape[1], width, mine.shape[3])
        merged[: len(mine), :, width - mine.shape[2] :] = mine
        states = next(theirs, mine[:0, :, :0])
        merged[len(mine) : len(mine) + len(states), :, width - states.shape[2] :] = states
        setattr(layer, name, merged)


def _tensors(cache: DynamicCache) -> list[tuple[Any, str]]:
    """Of every layer its keys and its values, [rows, heads, columns, width of a head]."""
    return [(layer, name) for layer in cache.layers for name in ("keys", "values")]


def _as_wide(*masks: Tensor) -> list[Tensor]:
    """Filled up on the left."""
    width = max(mask.shape[1] for mask in masks)
    return [torch.nn.functional.pad(mask, (width - mask.shape[1], 0)) for mask in masks]
