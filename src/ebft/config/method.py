"""The method's settings, for training, baselines, evaluation and sweeps alike. docs/method.md has the paper's.

`changes` says which validation numbers depend on a setting: all of them ("text"), those that the frozen network gives
("features"), or only the whitened proxy and the reward ("proxy"). `ebft eval` takes the settings that have it, and
`ebft compare` looks at them to say which numbers of two runs compare.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal, get_args

from ebft.config.fields import at_least, check_choices, option
from ebft.errors import ConfigError
from ebft.method.choices import Anchors, Backend, Normalize, Pooling, Whitening

_method, _features = partial(option, group="method"), partial(option, group="features")


@dataclass
class MethodConfig:
    context_length: int = _method(1024, "T: tokens of a sequence", changes="text")
    horizon: int = _method(8, "G: tokens of a rollout", changes="features")
    stride: int = _method(8, "s: tokens between anchors", changes="features")
    samples: int = _method(4, "n: rollouts from every anchor", changes="proxy")
    temperature: float = _method(
        0.6, "sampling temperature of the rollouts, and of their log-probs", changes="features"
    )
    anchors: Anchors = _method(
        "strided",
        "strided: every `stride` tokens; answer_start: one anchor at the start of each answer, for whole-answer "
        "rollouts with a long horizon, which end at end tokens",
        changes="features",
    )
    whitening: Whitening = _method(
        "reference",
        f"form of the reward: {', '.join(get_args(Whitening))}. reference is what the released code computes and what "
        "the paper's numbers come from",
        changes="proxy",
    )
    alpha: float = _method(1.0, "weight of the diversity term in the reward, 0 to 1", changes="proxy")
    gamma: float = _method(0.0, "weight of next-token cross-entropy beside feature matching")
    kl_weight: float = _method(0.0, "weight of the KL divergence from the model at the start (beta in TRL); 0 is off")
    answer_only: bool = _method(
        True,
        "use only anchors and cross-entropy targets inside answers: completions, assistant turns, and all of plain "
        "text; the released runs train on every position",
        changes="features",
    )
    document_masks: bool = _method(
        False,
        "a token sees only its own document, and completions end at end tokens (with answer_start anchors they always "
        "do); the released runs went without",
        changes="text",
    )
    short_truths: bool = _method(
        False,
        "with document_masks, also use anchors whose text ends before a rollout does, in training and in validation; "
        "without them feature matching teaches a model not to end",
        changes="features",
    )

    # ---- the frozen feature network
    feature_layers: list[int | float] = _features(
        [0.25, 0.5, 0.75],
        "hidden states to tap: fractions of the depth (0.25, 1.0) or layer numbers (1, 8; 0 is the embeddings)",
        changes="features",
    )
    feature_pooling: Pooling = _features(
        "last", "last token of the completion, or mean over its tokens, each normalised", changes="features"
    )
    feature_normalize: Normalize = _features(
        "per_layer",
        "per_layer: unit length per tapped layer, as in the paper's text; joint: once, as the released code does",
        changes="features",
    )
    feature_source: Literal["auto", "copy", "adapter_off", "random", "average"] = _features(
        "auto",
        "auto: a copy of the model at the start, or with LoRA the base model with its adapter off; or copy, "
        "adapter_off, random, average",
    )
    feature_model: str | None = _features(
        None,
        "another checkpoint (folder, hub name or output folder of a run) with the same vocabulary as the feature "
        "network",
    )
    feature_decay: float = _features(0.999, "decay of the moving average with feature_source=average")

    # ---- around the method: how text becomes sequences, what computes, how validation draws
    packing: bool = option(
        True, "documents one after the other; otherwise one document a row, padded", "data", changes="text"
    )
    attention_backend: Backend = option("auto", "auto, sdpa, or flex (CUDA)", "running")
    trees: bool = option(
        True,
        "compute what completions have in common once. The numbers are the same to rounding; off is for comparison",
        "running",
    )
    eval_samples: int | None = option(
        None, "rollouts per anchor in evaluation; default: samples", "running", changes="proxy"
    )
    eval_seed: int = option(
        0, "seed of the rollouts in evaluation, the same at every step", "running", changes="features"
    )

    def __post_init__(self) -> None:
        self.check_method()

    def check_method(self) -> None:
        """All checks on the method's settings."""
        check_choices(self, MethodConfig)
        at_least(self, 1, "context_length", "horizon", "stride", "samples", "eval_samples")
        if self.anchors == "strided" and self.context_length - self.horizon < self.stride:
            longest = self.context_length - self.stride
            way_out = f"use horizon<={longest}" if longest >= 1 else "use a smaller stride"
            raise ConfigError(
                f"horizon={self.horizon} with stride={self.stride} does not fit in context_length="
                f"{self.context_length}; {way_out} or a longer context"
            )
        if self.short_truths and not (self.document_masks and self.anchors == "strided"):
            raise ConfigError(
                "short_truths=true needs document_masks=true and strided anchors: without masks, texts run on into the "
                "next document, and whole answers (anchors=answer_start) have their ends already; set "
                "short_truths=false"
            )
        if not self.temperature > 0:
            raise ConfigError(
                f"temperature={self.temperature} must be above 0: greedy rollouts have no policy gradient"
            )
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha={self.alpha} must lie between 0 and 1")
        for name in ("gamma", "kl_weight"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} must not be negative")
        if self.samples < 2 and (self.eval_samples or 1) < 2:
            raise ConfigError(
                "samples=1 leaves no unbiased feature-matching loss to evaluate; set eval_samples=2 or more"
            )
        if self.feature_model is not None and self.feature_source != "auto":
            raise ConfigError(
                f"feature_model={self.feature_model!r} and feature_source={self.feature_source!r} exclude each "
                "other; give one of them"
            )

    @property
    def completions_end(self) -> bool:
        """Whether a completion ends at an end token. Whole answers do; the released code's completions do not."""
        return self.document_masks or self.anchors == "answer_start"

    @property
    def leaves_ends_out(self) -> bool:
        """Whether no anchor is where a text ends within a rollout, so that rollouts that end are never right."""
        return self.document_masks and self.anchors == "strided" and not self.short_truths

    @property
    def feature_taps(self) -> list[float | int]:
        """`feature_layers` as the feature network takes them: 1 is the first layer, 1.0 the whole depth."""
        return [int(layer) if layer > 1 else layer for layer in self.feature_layers]


def settings_that_change(*kinds: str) -> tuple[str, ...]:
    """Names of the settings that validation numbers of these kinds depend on."""
    return tuple(f.name for f in fields(MethodConfig) if f.metadata.get("changes") in kinds)
