"""Rollouts under the settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ebft.config.method import MethodConfig
from ebft.method.layout import PackedLayout
from ebft.method.rewards import token_groups
from ebft.model.attention import resolve_backend
from ebft.model.backbone import base_model
from ebft.model.layout_graph import is_launch_bound
from ebft.model.rollout import draw


@dataclass
class Rollouts:
    """n completions at B anchors of b sequences, before anything looks at them."""

    completions: Tensor  # [b, B, n, G]
    lengths: Tensor | None  # [b, B, n], tokens up to their end; None if nothing ends them
    entropy: Tensor  # [b, B, n, G], of the distribution that each token was drawn from
    groups: Tensor  # [b, B, n], equal completions have equal numbers

    def select(self, rows: slice | Tensor) -> Rollouts:
        chosen: dict[str, Any] = {k: None if v is None else v[rows] for k, v in vars(self).items()}
        return Rollouts(**chosen)


def roll_out(
    model: nn.Module,
    input_ids: Tensor,
    layout: PackedLayout,
    seeds: Tensor,
    config: MethodConfig,
    end_token_ids: Tensor | None,
) -> Rollouts:
    return roll_out_with_context(model, input_ids, layout, seeds, config, end_token_ids)[0]


def roll_out_with_context(
    model: nn.Module,
    input_ids: Tensor,
    layout: PackedLayout,
    seeds: Tensor,
    config: MethodConfig,
    end_token_ids: Tensor | None,
) -> tuple[Rollouts, Tensor]:
    """Rollouts, and the hidden states of their contexts [b, T, H]."""
    samples = input_ids.shape[0] * layout.num_anchors * layout.samples
    completions, entropy, context = draw(
        model,
        input_ids,
        layout,
        config.temperature,
        seeds=seeds,
        end_token_ids=end_token_ids,
        backend=config.attention_backend,
        share=config.trees and _sharing_pays(model, samples, input_ids.device, config),
    )
    lengths = None if end_token_ids is None else layout.completion_lengths(completions, end_token_ids)
    return Rollouts(completions, lengths, entropy, token_groups(completions)), context


def _sharing_pays(model: nn.Module, samples: int, device: torch.device, config: MethodConfig) -> bool:
    """A small step on a GPU takes the latency of its kernels, however few samples it computes (SmolLM2-135M, 1984
    samples: 33 ms a rollout either way). All of them are always of one shape, and so always the same graph: a rollout
    of 128 tokens takes 0.7 s, where sharing, with another shape for every batch, took 6 to 12."""
    backend = resolve_backend(config.attention_backend, device)
    return not is_launch_bound(base_model(model), 10 * samples, backend)
