"""Validation: cross-entropy, feature-matching loss and whitened proxy, each with its standard error over sequences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ebft.config import EBFTConfig
from ebft.data.packing import PADDING
from ebft.method.cross_entropy import Rows, weighted_cross_entropy
from ebft.method.layout import PackedLayout
from ebft.method.metrics import (
    Estimate,
    conditional_feature_matching_loss,
    cross_entropy,
    mean_and_standard_error,
    whitened_proxy,
)
from ebft.method.sampling import sequence_seeds
from ebft.model.backbone import context_hidden_states, evaluating, output_head
from ebft.model.features import FeatureNetwork
from ebft.train.iteration import make_layout, score


@torch.no_grad()
def truth_log_probs(model: nn.Module, input_ids: Tensor, layout: PackedLayout, backend: Any = "auto") -> Tensor:
    """log p(x_t | x_<t) at temperature 1, [b, T]; 0 at t = 0, which nothing predicts."""
    hidden = context_hidden_states(model, input_ids, layout, backend)[:, :-1]
    targets = input_ids[:, 1:].reshape(-1, 1)
    no_weights = torch.zeros_like(targets, dtype=torch.float32)
    rows = Rows(targets, no_weights, torch.ones(len(targets), device=targets.device))
    log_probs = weighted_cross_entropy(hidden.flatten(0, 1), output_head(model), rows).log_probs
    return torch.nn.functional.pad(log_probs.view(input_ids.shape[0], -1), (1, 0))


@torch.no_grad()
def evaluate(
    model: nn.Module,
    features: FeatureNetwork,
    batches: Iterable[dict[str, Any]],
    config: EBFTConfig,
    end_token_ids: Tensor | None,
    device: torch.device,
) -> dict[str, float]:
    """Metrics by name, with `<name>_se` beside each. The same model gives the same numbers at any time."""
    samples = config.eval_samples or config.samples
    found: dict[str, list[Tensor]] = defaultdict(list)
    with evaluating(model):
        for batch in batches:
            on_host = batch.pop("on_host")
            batch = {name: value.to(device) for name, value in batch.items()}
            input_ids, layout = batch["input_ids"], make_layout(on_host, config, samples).to(device)
            log_probs = truth_log_probs(model, input_ids, layout, config.attention_backend)
            real = batch["document_ids"] != PADDING
            if config.document_masks:  # the first token of a document has nothing to be predicted from
                real[:, 1:] &= batch["document_ids"][:, 1:] == batch["document_ids"][:, :-1]
            real[:, 0] = False
            found["log_probs"].append(log_probs.cpu())
            found["real"].append(real.cpu())
            found["answers"].append((real & batch["answer_mask"]).cpu())

            seeds = sequence_seeds(config.eval_seed, 0, batch["sequence_id"])
            scores = score(model, features, input_ids, layout, seeds, config, end_token_ids)
            valid = layout.anchor_mask.expand(input_ids.shape[0], -1)
            has_anchor = valid.any(1)
            per_context = {
                "cfm": conditional_feature_matching_loss(scores.generated, scores.truth),
                "whitened_proxy": whitened_proxy(scores.alignment, scores.diversity),
                "reward": (scores.alignment - config.alpha * scores.diversity).mean(-1),
            }
            for name, values in per_context.items():
                per_sequence = torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp(min=1)
                found[name].append(per_sequence[has_anchor].cpu())

    log_probs, real, answers = (torch.cat(found[name]) for name in ("log_probs", "real", "answers"))
    estimates: dict[str, Estimate] = {"cross_entropy": cross_entropy(log_probs, real)}
    if bool(answers.any()):
        estimates["answer_cross_entropy"] = cross_entropy(log_probs, answers)
    for name in ("cfm", "whitened_proxy", "reward"):
        values = torch.cat(found[name])
        if len(values):
            estimates[name] = mean_and_standard_error(values)
    results = {}
    for name, estimate in estimates.items():
        results[name] = float(estimate.mean)
        results[f"{name}_se"] = float(estimate.standard_error)
    return results
