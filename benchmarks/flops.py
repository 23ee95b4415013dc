"""Floating-point operations of an iteration's matrix products, counted from the shapes.

torch's FlopCounterMode does not serve here: it counts every pair of tokens in attention, and the mask of the paper's
Q&A setting hides nine in ten of them. On short sequences, where the two are close, a test compares them.
"""

from __future__ import annotations

import math

from packed_work import Work
from shapes import ModelShape
from step_settings import Settings
from trained_model import add_adapter


def count_flops(shape: ModelShape, settings: Settings, work: Work | None = None) -> dict[str, float]:
    """By phase, for the packed layout: what any implementation of it must compute. With the `work` of an iteration
    with trees, without the tokens that need not be computed.

    Norms, activations and softmaxes are left out, and so is whatever a backward pass computes again.
    """
    layout, b = settings.layout, settings.sequences
    model = shape.meta_model()  # add_adapter changes it, so the adapter is counted last
    first_attention = model.model.layers[0].self_attn
    first_inputs = sum(getattr(first_attention, name).weight.numel() for name in ("q_proj", "k_proj", "v_proj"))
    matrices = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    head = model.lm_head.weight.numel()
    adapter = sum(p.numel() for p in add_adapter(model).parameters() if p.requires_grad) if settings.lora else 0

    attention = 4 * shape.layers * shape.width
    work = work or Work.untreed(layout, b)
    updated_rows = work.trained_rows + (b * (layout.context_length - 1) if settings.gamma else 0)

    tapped = math.floor(0.75 * shape.layers) / shape.layers
    # A backward pass makes the gradients of inputs and of weights. With an adapter only its own weights have any, and
    # nothing that is trained stands before the first layer's queries, keys and values.
    passes = 2 if settings.lora else 3
    before_first = 2 * first_inputs * work.trained_tokens if settings.lora else 0
    flops = {
        "rollout": 2 * (matrices + adapter) * work.drawn_tokens
        + attention * work.drawn_pairs
        + 2 * head * work.drawn_rows,
        "features": tapped * (2 * matrices * work.scored_tokens + attention * work.scored_pairs),
        "update": passes * (2 * matrices * work.trained_tokens + 2 * head * updated_rows)
        - before_first
        + 3 * (2 * adapter * work.trained_tokens + attention * work.trained_pairs),
    }
    return {phase: float(number) for phase, number in flops.items()} | {"iteration": float(sum(flops.values()))}
