"""The method's settings, for training, baselines, evaluation and sweeps alike. docs/method.md has the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ebft.config.settings import Named, check, option
from ebft.errors import ConfigError
from ebft.method import Anchors, Backend, Normalize, Pooling, Whitening

Source = Literal["auto", "copy", "adapter_off", "random", "average"]
# Which validation numbers depend on a setting: all of them ("text"), those that the frozen network gives ("features"),
# or only the whitened proxy and the reward ("proxy").
CHANGES = {
    "text": ("context_length", "document_masks", "packing"),
    "features": ("horizon", "stride", "temperature", "anchors", "answer_only", "short_truths", "eval_seed"),
    "proxy": ("samples", "whitening", "alpha", "eval_samples"),
}
CHANGES["features"] += ("feature_layers", "feature_pooling", "feature_normalize")
# Settings of `ebft train` that say how EBFT trains and not how validation measures: idle in a baseline.
ONLY_EBFT = ("gamma", "kl_weight", "rollout_batch_size", "max_reward", "compile_layers", "disable_dropout")


def settings_that_change(*kinds: str) -> tuple[str, ...]:
    """Names of the settings that validation numbers of these kinds depend on."""
    return tuple(name for kind in kinds for name in CHANGES[kind])


@dataclass
class MethodConfig(Named):
    context_length: int = option(1024, "T: tokens of a sequence", 1)
    horizon: int = option(8, "G: tokens of a rollout", 1)
    stride: int = option(8, "s: tokens between anchors", 1)
    samples: int = option(4, "n: rollouts from every anchor", 1)
    temperature: float = option(0.6, "sampling temperature of the rollouts, and of their log-probs")
    anchors: Anchors = option("strided", "strided: every `stride` tokens; answer_start: whole answers (long horizon)")
    whitening: Whitening = option("reference", "the reward: none, plain, paper, both, truth, reference (as released)")
    alpha: float = option(1.0, "weight of the diversity term in the reward, 0 to 1", 0)
    gamma: float = option(0.0, "weight of next-token cross-entropy beside feature matching", 0)
    kl_weight: float = option(0.0, "weight of the KL divergence from the model at the start (beta in TRL); 0 is off", 0)
    answer_only: bool = option(True, "anchors and targets only in completions, assistant turns and plain text")
    document_masks: bool = option(False, "a token sees only its own document, and completions end at end tokens")
    short_truths: bool = option(False, "with document_masks, also anchors near ends: without, models unlearn to end")
    # ---- the frozen feature network
    feature_layers: list[int | float] = option([0.25, 0.5, 0.75], "taps: shares of the depth (0.25, 1.0) or layers (1)")
    feature_pooling: Pooling = option("last", "last token of the completion, or mean over its tokens")
    feature_normalize: Normalize = option("per_layer", "unit length: per_layer (the paper's text) or joint (its code)")
    feature_source: Source = option("auto", "copy of the first model, adapter_off (LoRA), random, moving average, auto")
    feature_model: str | None = option(None, "another checkpoint with the same vocabulary as the feature network")
    feature_decay: float = option(0.999, "decay of the moving average with feature_source=average", 0)
    # ---- around the method: how text becomes sequences, what computes, how validation draws
    packing: bool = option(True, "documents one after the other; otherwise one document a row, padded")
    attention_backend: Backend = option("auto", "auto, sdpa, or flex (CUDA)")
    trees: bool = option(True, "compute what completions have in common once: the same numbers, to rounding")
    eval_samples: int | None = option(None, "rollouts per anchor in evaluation; default: samples", 1)
    eval_seed: int = option(0, "seed of the rollouts in evaluation, the same at every step", 0)

    def __post_init__(self) -> None:
        """What would go wrong only after the first rollouts, or without a word."""
        check(self)
        strided, longest = self.anchors == "strided", self.context_length - self.stride
        if strided and self.horizon > longest:
            way_out = f"use horizon<={longest}, or a longer context" if longest > 0 else "use a longer context"
            fits = f"does not fit in context_length={self.context_length}; {way_out}"
            raise ConfigError(f"horizon={self.horizon} with stride={self.stride} {fits}")
        if self.short_truths and not (self.document_masks and strided):
            raise ConfigError("short_truths=true needs document_masks=true and anchors=strided")
        if not 0 < self.temperature < float("inf") or self.alpha > 1:
            raise ConfigError(f"temperature={self.temperature} must be above 0, and alpha={self.alpha} at most 1")
        if self.samples < 2 and (self.eval_samples or 1) < 2:
            raise ConfigError("samples=1 leaves no unbiased feature-matching loss; set eval_samples=2 (eval: rollouts)")
        if self.feature_model is not None and self.feature_source != "auto":
            raise ConfigError("feature_model and feature_source exclude each other; give one of them")

    @property
    def completions_end(self) -> bool:
        """Whether a completion ends at an end token. Whole answers do; the released code's completions do not."""
        return self.document_masks or self.anchors == "answer_start"

    @property
    def leaves_ends_out(self) -> bool:
        """Whether no anchor is where a text ends within a rollout, so that rollouts that end are never right."""
        return self.document_masks and self.anchors == "strided" and not self.short_truths
