"""Rotary positions that depend on how long a sequence is, and up to which length they do not."""

from __future__ import annotations

from typing import Any

from torch import nn

from ebft.method.layout import PackedLayout


def check_length(decoder: Any, layout: PackedLayout) -> None:
    """A packed sequence has one set of frequencies, and its completions must have those of plain sequences."""
    completions = max(layout.furthest_context, default=0) + layout.horizon
    check_tokens(decoder, max(layout.context_length, completions))


def check_tokens(decoder: nn.Module, tokens: int) -> None:
    """Whether sequences of so many tokens, and all shorter ones, are computed with the same frequencies."""
    config: Any = decoder.config
    for kind, longest in _switches(config.get_text_config(decoder=True)):
        if tokens > longest:
            raise ValueError(
                f"{type(decoder).__name__} has {kind} RoPE, whose frequencies change when a sequence is longer than "
                f"{longest} tokens, and completions at different places of {tokens} tokens cannot share them; use "
                f"context_length<={longest}"
            )


def _switches(config: Any) -> list[tuple[str, int]]:
    """Kinds of RoPE that depend on the length, each with the length up to which it does not."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # Models with several kinds of layers have parameters for each.
    nested = [value for value in given.values() if isinstance(value, dict) and "rope_type" in value]
    found = []
    for parameters in nested or [given]:
        kind = str(parameters.get("rope_type", parameters.get("type")))
        if "dynamic" in kind:
            found.append((kind, int(config.max_position_embeddings)))
        elif kind == "longrope":
            found.append((kind, int(parameters["original_max_position_embeddings"])))
    return found
