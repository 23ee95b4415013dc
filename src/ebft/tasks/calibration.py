"""Calibration: how close a model's own rollouts come to real text, in the feature space of a named frozen network.

Per sequence: cross-entropy over all and over answer tokens, at several temperatures; the unbiased conditional
feature-matching loss (CFM) and the whitened proxy at one horizon, and the CFM's profile over completion lengths. The
profile rolls out the longest length once from every anchor and looks at its prefixes: a prefix of a rollout is a
rollout of that length. All its points are over the same contexts, those whose truth window is whole at the longest
length, so that points differ by length and nothing else. The floor of the profile, the loss of a perfect model, is
non-decreasing in the length (paper, appendix on the profile); estimates of a model's loss need not be.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ebft.config.method import MethodConfig
from ebft.config.profile import Profile
from ebft.data.packing import SequenceDataset, collate, to_device
from ebft.method import measures
from ebft.method.measures import Estimate, Record
from ebft.method.rewards import conditional_feature_matching_loss
from ebft.model.backbone import base_model, evaluating, input_embeddings, text_config
from ebft.model.features import FeatureNetwork
from ebft.rollouts import pack_to_score
from ebft.tasks.temperatures import TEMPERATURES, TOKENS, best
from ebft.validation import mean_over_contexts, measure, of_rollouts, records_of, rolled_out


def measure_sequences(
    model: nn.Module,
    features: FeatureNetwork,
    dataset: SequenceDataset,
    batches: Sequence[Sequence[int]],
    config: MethodConfig,
    profile: Profile,
    end_token_ids: Tensor | None,
    temperatures: Sequence[float] = (),
    document_ends: Tensor | None = None,
) -> Iterator[list[Record]]:
    """A record of each sequence, for batches of rows of the dataset. temperatures: of further rollouts."""
    profile.check(config.context_length)
    device = input_embeddings(model).device
    with attention_restored(model):
        for rows in batches:
            batch = to_device(collate([dataset[row] for row in rows]), device)
            with torch.no_grad(), evaluating(model):
                further = [temperature for temperature in TEMPERATURES if temperature != 1]
                found = measure(model, features, batch, config, end_token_ids, further, document_ends)
                for temperature in temperatures:
                    found[f"cfm_temperature_{temperature:g}"] = cfm_at_temperature(
                        model, features, batch, config, temperature, end_token_ids
                    )
                if profile.lengths:
                    found |= profile_of(model, features, batch, config, profile, end_token_ids)
            yield records_of(found)


def cfm_at_temperature(
    model: nn.Module,
    features: FeatureNetwork,
    batch: dict[str, Any],
    config: MethodConfig,
    temperature: float,
    end_token_ids: Tensor | None,
) -> Tensor:
    """The feature-matching loss of each sequence with rollouts at another temperature, [b]."""
    settings = copy.copy(config)
    settings.temperature = temperature
    layout, rollouts, _ = rolled_out(model, batch, settings, end_token_ids, turn=0)
    return of_rollouts(features, batch["input_ids"], layout, rollouts, settings)["cfm"]


def profile_of(
    model: nn.Module,
    features: FeatureNetwork,
    batch: dict[str, Any],
    config: MethodConfig,
    profile: Profile,
    end_token_ids: Tensor | None,
) -> dict[str, Tensor]:
    """`profile_contexts` and `cfm_at_<length>` for each sequence of a batch, [b] each."""
    settings = copy.copy(config)
    settings.horizon, settings.stride = max(profile.lengths), profile.stride
    input_ids = batch["input_ids"]
    layout, rollouts, _ = rolled_out(model, batch, settings, end_token_ids, turn=1)
    used = layout.anchor_mask
    if not config.short_truths:
        # Anchors at answer starts may have a shorter truth; a profile needs one that is whole at every length.
        used = used & (layout.truth_lengths == settings.horizon)
    valid = used.expand(input_ids.shape[0], -1)
    packed = pack_to_score(layout, input_ids, rollouts, config)
    packed_ids = packed.pack(input_ids, rollouts.completions)
    at_lengths = features.at_lengths(packed_ids, packed, profile.lengths, rollouts.lengths)
    found = {"profile_contexts": valid.sum(1)}
    for length, (generated, truth) in zip(profile.lengths, at_lengths, strict=True):
        found[f"cfm_at_{length}"] = mean_over_contexts(conditional_feature_matching_loss(generated, truth), valid)
    return found


def estimates(records: Sequence[Record]) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """Metrics over all sequences, and apart from them the points of curves: over lengths and over temperatures."""
    found = measures.estimates(records)
    points = {name for name in found if name.startswith("cfm_at_") or "cross_entropy_temperature_" in name}
    metrics = {name: value for name, value in found.items() if name != "reward" and name not in points}
    for of in TOKENS:
        if (least := best(records, of)) is not None:
            metrics[f"{of}best_temperature"] = least.estimate
    return metrics, {name: found[name] for name in found if name in points}


@contextmanager
def attention_restored(model: nn.Module) -> Iterator[None]:
    """Whatever attention the model had, it has again afterwards."""
    base = base_model(model)
    before = text_config(base)._attn_implementation
    try:
        yield
    finally:
        if text_config(base)._attn_implementation != before:
            base.set_attn_implementation(before)
