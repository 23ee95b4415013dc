"""Do the packed and the reference implementation compute the same?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from packed_implementation import PackedImplementation
from reference_implementation import ReferenceImplementation
from step_settings import SEED, Settings
from trained_model import build_model
from trained_model import contexts as some_contexts

CHECK_SEQUENCES = 2
# Largest relative differences that float32 rounding explains; whitening divides by small singular values.
TOLERANCES = {
    "features": 1e-4,
    "rewards_none": 1e-4,
    "rewards_reference": 1e-3,
    "loss": 1e-5,
    "gradient": 1e-4,
}


def check_equality(settings: Settings) -> dict[str, Any]:
    """Largest relative differences between the two implementations on the same completions, in float32.

    Rewards under `reference` are compared on contexts whose samples are all distinct: the reference implementation
    gives two equal samples features that differ by rounding, which whitening turns into two directions, while ebft
    counts them as equal. For the same reason both gradients are taken with the same advantages.
    """
    settings = replace(
        settings, dtype="float32", sequences=min(settings.sequences, CHECK_SEQUENCES), compile=False, lora=False
    )
    packed = PackedImplementation(build_model(settings), settings)
    reference = ReferenceImplementation(build_model(settings), settings)
    contexts = some_contexts(settings)
    torch.manual_seed(SEED)
    sequences = packed.rollout(contexts)
    copies = reference.pack(contexts, sequences.rollouts.completions)

    generated, truth = packed.features(sequences)
    generated_too, truth_too = reference.features(copies)
    distinct = (sequences.rollouts.groups == torch.arange(settings.samples, device=contexts.device)).all(-1)
    plain = torch.sub(*packed.rewards(sequences, generated, truth, "none"))  # alignment - diversity
    plain_too = torch.sub(*reference.rewards(generated_too, truth_too, whitened=False))
    whitened = torch.sub(*packed.rewards(sequences, generated, truth, "reference"))
    whitened_too = torch.sub(*reference.rewards(generated_too, truth_too))

    advantages = packed.advantages(sequences, generated, truth)
    loss, loss_too = packed.update(sequences, advantages), reference.update(copies, advantages.float())
    parameters_too = dict(reference.model.named_parameters())
    gradients = [relative_difference(p.grad, parameters_too[name].grad) for name, p in packed.model.named_parameters()]
    differences = {
        "features": max(relative_difference(generated, generated_too), relative_difference(truth, truth_too)),
        "rewards_none": relative_difference(plain, plain_too),
        "rewards_reference": relative_difference(whitened[distinct], whitened_too[distinct]),
        "loss": relative_difference(loss, loss_too),
        "gradient": max(gradients),
    }
    return {
        "relative_differences": differences,
        "tolerances": TOLERANCES,
        "equal": all(differences[name] <= tolerance for name, tolerance in TOLERANCES.items()),
        "contexts": distinct.numel(),
        "distinct_contexts": int(distinct.sum()),
    }


def relative_difference(a: Tensor | None, b: Tensor | None) -> float:
    """Largest difference, relative to the largest entry."""
    assert a is not None
    assert b is not None
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
