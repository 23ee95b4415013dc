"""The second half of an iteration: the loss of a micro-batch, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ebft.config.method import MethodConfig
from ebft.method.cross_entropy import Reference
from ebft.method.layout import PackedLayout
from ebft.method.losses import LossTerms, ebft_loss
from ebft.model.attention import resolve_backend
from ebft.model.backbone import base_model, output_head, packed_hidden_states
from ebft.model.layout_graph import is_launch_bound, replay_network
from ebft.runtime.gradients import FixedGradients

# The frozen model of the KL term, and a context to run it in.
Frozen = Callable[[], tuple[nn.Module, AbstractContextManager[Any]]]


class LossParts(NamedTuple):
    """What is logged of a micro-batch's loss."""

    loss: Tensor
    policy: Tensor
    cross_entropy: Tensor
    kl: Tensor | None

    @classmethod
    def of(cls, terms: LossTerms) -> LossParts:
        return cls(terms.loss.detach(), terms.policy, terms.cross_entropy, terms.kl)


def loss_of(model: nn.Module, batch: dict[str, Any], config: MethodConfig, frozen: Frozen | None = None) -> LossTerms:
    """The loss of a micro-batch as `iteration.Window` holds them. frozen: needed with kl_weight."""
    packed_ids, layout = batch["input_ids"], batch["layout"]
    hidden = packed_hidden_states(model, packed_ids, layout, config.attention_backend, whole=False)
    reference = None
    if config.kl_weight:
        assert frozen is not None
        other, context = frozen()
        with torch.no_grad(), context:
            states = packed_hidden_states(other, packed_ids, layout, config.attention_backend, whole=False)
            reference = Reference(states, output_head(other))
    return ebft_loss(
        hidden,
        output_head(model),
        packed_ids,
        layout,
        batch["advantages"],
        config.temperature,
        config.gamma,
        batch["completion_lengths"],
        reference,
        config.kl_weight,
        generated_tokens=batch["generated_tokens"],
        truth_tokens=batch["truth_tokens"],
    )


class UpdateGraphs:
    """The loss and its gradient in one launch, for models whose kernels are over before the host has launched them.

    model: what computes; gradients: of its weights, or of the trained weights that it is a copy of.
    """

    def __init__(
        self, model: nn.Module, gradients: FixedGradients, config: MethodConfig, frozen: Frozen | None = None
    ) -> None:
        self.model, self.config, self.frozen = model, config, frozen
        self.gradients = gradients

    def pay(self, batch: dict[str, Any]) -> bool:
        base, packed_ids = base_model(self.model), batch["input_ids"]
        if base.is_gradient_checkpointing:  # layers that are run again look at the state of random numbers
            return False
        backend = resolve_backend(self.config.attention_backend, packed_ids.device)
        return is_launch_bound(base, packed_ids.numel(), backend)

    def add_gradient(self, batch: dict[str, Any]) -> LossParts:
        """The micro-batch's loss, after its gradient has been added to the trained weights'."""
        self.gradients.attach()
        one = torch.ones((), device=batch["input_ids"].device)
        names = ["input_ids", "advantages", "generated_tokens", "truth_tokens"]
        if batch["completion_lengths"] is not None:
            names.append("completion_lengths")
        given = [batch[name] for name in names]

        def loss_and_gradient(layout: PackedLayout, scale: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            inside = {"completion_lengths": None, "layout": layout, **dict(zip(names, values, strict=True))}
            terms = loss_of(self.model, inside, self.config, self.frozen)
            terms.loss.backward(scale)
            return tuple(part for part in LossParts.of(terms) if part is not None)

        options = ("update", self.config.temperature, self.config.gamma, self.config.kl_weight)
        # The rehearsal adds 0 times the gradient.
        rehearsal = [torch.zeros_like(one), *given]
        base = base_model(self.model)
        loss, policy, cross_entropy, *kl = replay_network(
            loss_and_gradient, base, batch["layout"], [one, *given], options, rehearsal
        )
        return LossParts(loss, policy, cross_entropy, kl[0] if kl else None)
