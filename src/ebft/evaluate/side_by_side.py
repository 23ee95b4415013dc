"""Texts that a model continues side by side, a token of each at a step; a row that ends makes room for another at once.

The rows of the key-value cache end in the same column, so that a step writes one column for all of them. A row that
joins is filled up on its left to the width of the others; columns that no row needs any more are cut off there.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ebft.errors import ConfigError
from ebft.method.sampling import sample_with_entropy
from ebft.model.backbone import text_config

BLOCK = 64  # columns that a cache grows by


def check_plain_cache(base: Any) -> None:
    """A state cannot be filled up on its left, and a layer that reads another's keys has none of its own."""
    config: Any = text_config(base)
    plain = base._supports_default_dynamic_cache() and not getattr(config, "num_kv_shared_layers", None)
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    if not plain or kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
        what = f"{type(base).__name__} keeps more than keys and values of its layers, with which ebft cannot generate"
        way_out = "use --backend vllm, or score what another tool generated with `ebft score TASK --samples FILE`"
        raise ConfigError(f"{what}; {way_out}")


class SideBySide:
    """base: a causal language model of transformers that passes `check_plain_cache`, in evaluation mode."""

    def __init__(self, base: Any, temperature: float, top_p: float | None) -> None:
        self.base, self.temperature, self.top_p = base, temperature, top_p
        self.takes = inspect.signature(type(base).forward).parameters
        self.device = base.get_input_embeddings().weight.device
        self.cache = _empty_cache()
        self.mask = torch.zeros(0, 0, dtype=torch.long, device=self.device)  # [rows, columns], 0 where nothing is
        # Of each row: the token that a step begins with, how many were drawn, the uniform numbers that they are drawn
        # by, and whether the likeliest are taken instead.
        self.rows: list[Tensor] = []

    @torch.no_grad()
    def replace(
        self, staying: Sequence[int], prompts: Sequence[list[int]], uniform: Tensor, greedy: Sequence[bool]
    ) -> None:
        """Other rows than those staying have ended, and more join, with a uniform number [rows, steps] for every token;
        greedy ones take the likeliest. A prompt that several of them have is computed once."""
        places: dict[tuple[int, ...], int] = {}
        join = self._tensor([places.setdefault(tuple(prompt), len(places)) for prompt in prompts])
        # All but the last token, which is left to the first step: all rows then begin alike. They end in one column.
        longest = max((len(tokens) - 1 for tokens in places), default=0)
        before = {tokens: [0] * (longest + 1 - len(tokens)) for tokens in places}
        ids = self._tensor([[*before[tokens], *tokens[:-1]] for tokens in places]).view(len(places), longest)
        mask = self._tensor([[*before[tokens], *[1] * (len(tokens) - 1)] for tokens in places]).view_as(ids)
        cache = _empty_cache()
        if ids.numel():
            self._forward(ids, mask, cache)
        last = self._tensor([prompt[-1] for prompt in prompts])[:, None]
        rows = [last, torch.zeros_like(last), uniform.to(self.device), self._tensor(greedy)[:, None].bool()]
        stay = self._tensor(staying)
        if staying:
            used = self.mask[stay]
            used = used[:, int(used.any(0).long().argmax()) :]  # without columns that no row needs any more
            rows = [torch.cat([mine[stay], theirs]) for mine, theirs in zip(self.rows, rows, strict=True)]
        else:
            self.cache, used = _empty_cache(), self.mask[:0, :0]
        width = max(used.shape[1], longest)
        self.cache = _merged(self.cache, stay, used.shape[1], cache, join, width)
        self.mask = torch.cat([pad(each, (width - each.shape[1], 0)) for each in (used, mask[join])])
        self.rows = rows

    def _tensor(self, numbers: Sequence[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    @torch.no_grad()
    def step(self) -> Tensor:
        """The next token of every row, [rows, 1]."""
        last, made, uniform, greedy = self.rows
        self.mask = torch.cat([self.mask, torch.ones_like(last)], 1)
        logits = self._forward(last, self.mask, self.cache)[:, -1].to(self.device, torch.float32)
        drawn, _ = sample_with_entropy(logits, uniform.gather(1, made), self.temperature, None, self.top_p)
        drawn = torch.where(greedy, logits.argmax(-1, keepdim=True), drawn)
        self.rows = [drawn, made + 1, uniform, greedy]
        return drawn

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Logits at the last of these tokens, where the model can make them there alone."""
        columns, tokens = mask.shape[1], ids.shape[1]
        mask_of_cache = pad(mask, (0, _seen(columns - tokens, tokens) - columns))
        given = {"logits_to_keep": 1, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens:]}
        given = {name: value for name, value in given.items() if name in self.takes}
        return self.base(ids, attention_mask=mask_of_cache, past_key_values=cache, use_cache=True, **given).logits


class _Columns(DynamicLayer):
    """Keys and values in buffers that have room for columns to come, by multiples of `BLOCK`: one more column at every
    step would copy all of them, into memory of another size each time. For the same reason a step looks at whole
    buffers, of which the mask hides the rest."""

    buffers: Sequence[Tensor] = ()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        new, before = (key_states, value_states), self.get_seq_length()
        after = before + key_states.shape[2]
        if not self.buffers or after > self.buffers[0].shape[2]:
            larger = [_buffer(states, len(states), after) for states in new]
            for buffer, states in zip(larger, self.buffers, strict=False):
                buffer[:, :, :before] = states[:, :, :before]
            self.buffers = larger
        for buffer, states in zip(self.buffers, new, strict=True):
            buffer[:, :, before:after] = states
        self.hold(self.buffers, after)
        keys, values = (buffer[:, :, : _seen(before, after - before)] for buffer in self.buffers)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return _seen(self.get_seq_length(), query_length), 0

    def hold(self, buffers: Sequence[Tensor], columns: int) -> None:
        """Of keys and of values, with so many columns in use."""
        self.keys, self.values = (buffer[:, :, :columns] for buffer in buffers)
        self.buffers, self.is_initialized = buffers, True
        self.dtype, self.device = self.keys.dtype, self.keys.device


def _rounded(columns: int) -> int:
    return -(-columns // BLOCK) * BLOCK


def _seen(before: int, tokens: int) -> int:
    """How many columns attention is given. Several tokens are given no more than are in use: there are kernels that
    take the last ones for theirs. And an empty cache asks no layer."""
    return _rounded(before + 1) if before and tokens == 1 else before + tokens


def _buffer(like: Tensor, rows: int, columns: int) -> Tensor:
    """Zeros: what happens to be in memory may be no number, and would spread from behind the mask."""
    return like.new_zeros(rows, like.shape[1], _rounded(columns), like.shape[3])


def _empty_cache() -> DynamicCache:
    """Without the model's settings: a sliding layer would forget columns that other rows need. The mask keeps to the
    window all the same."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = _Columns
    return cache


def _merged(
    mine: DynamicCache, staying: Tensor, columns: int, theirs: DynamicCache, joining: Tensor, width: int
) -> DynamicCache:
    """The last columns of the rows that stay, and the rows that join: all end in the same column."""
    merged, old, new = _empty_cache(), cast(list[Any], mine.layers), cast(list[Any], theirs.layers)
    for number in range(max(len(old), len(new))):
        buffers = []
        for name in ("keys", "values"):
            buffer = _buffer(getattr((old or new)[number], name), len(staying) + len(joining), width + 1)
            of_rows = buffer.split([len(staying), len(joining)])
            for layers, into, rows in ((old, of_rows[0], staying), (new, of_rows[1], joining)):
                if layers:
                    states = getattr(layers[number], name)
                    kept = columns if layers is old else states.shape[2]
                    into[:, :, width - kept : width] = states[rows.to(states.device), :, states.shape[2] - kept :]
            buffers.append(buffer)
        if old:
            old[number] = None  # there may be no room for all of it twice
        layer = _Columns()
        layer.hold(buffers, width)
        merged.layers.append(layer)
    return merged
