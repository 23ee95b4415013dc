"""What every number means, and which direction is better: for tables, hover texts and verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ebft.method.measures import NAMES, OF_ROLLOUTS, smaller_is_better, title


@dataclass(frozen=True)
class MetricFacts:
    title: str
    meaning: str
    smaller_is_better: bool = False
    is_rate: bool = False  # a share of problems, between 0 and 1
    most: float = math.inf  # no value is above


_FACTS = {
    "cross_entropy": MetricFacts(
        NAMES["cross_entropy"],
        "Mean of -log p(token) over all tokens of held-out text, at temperature 1, in nats. Lower is better.",
        smaller_is_better=True,
    ),
    "answer_cross_entropy": MetricFacts(
        NAMES["answer_cross_entropy"],
        "The same over tokens of answers only. Lower is better.",
        smaller_is_better=True,
    ),
    "cfm": MetricFacts(
        NAMES["cfm"],
        "Squared distance between the mean feature of the model's own short completions and the feature of the real "
        "text, estimated without bias, under a frozen network. It does not reach 0, not even for a perfect model; "
        "lower is better, and only values under the same network compare.",
        smaller_is_better=True,
    ),
    "whitened_proxy": MetricFacts(
        NAMES["whitened_proxy"],
        "Mean of alignment minus half the diversity term, in whitened features: close to what EBFT optimises. The "
        "paper calls it a loss, but larger is better.",
    ),
    "distinct": MetricFacts(
        OF_ROLLOUTS["distinct"],
        "Share of the rollouts from one place that differ from each other: 1 if all do. Neither way is better.",
        most=1.0,
    ),
    "entropy": MetricFacts(
        OF_ROLLOUTS["entropy"],
        "Mean entropy of the distributions that the tokens of rollouts were drawn from, at their temperature, in nats. "
        "Neither way is better.",
    ),
    "reward": MetricFacts(
        "training reward",
        "RLVR's own reward: mean over the answers that it drew in the last tenth of its training, on training "
        "prompts. It says what was optimised, not how good the model is on new problems.",
    ),
}
_PASS = "Share of problems whose tests pass"
_SCORES = {
    "bleu": "corpus BLEU by sacrebleu, 0 to 100",
    "chrf": "corpus chrF by sacrebleu, 0 to 100",
    "comet": "mean COMET over sentences",
    "sentence_bleu": "mean of sentence BLEU, 0 to 100",
    "sentence_chrf": "mean of sentence chrF, 0 to 100",
}


def facts(metric: str) -> MetricFacts:
    """Of a validation metric, or of `<task> <metric>` as evaluation has it; for anything else its name."""
    if metric in _FACTS:
        return _FACTS[metric]
    task, _, name = metric.rpartition(" ")
    if name in _FACTS:  # of the task calibration
        return _FACTS[name]
    if found := re.fullmatch(r"cfm_at_(\d+)", name):
        meaning = f"{_FACTS['cfm'].meaning} Here of completions of {found[1]} tokens."
        return MetricFacts(title(name), meaning, smaller_is_better=True)
    if found := re.fullmatch(r"cfm_temperature_(.+)", name):
        meaning = f"{_FACTS['cfm'].meaning} Here of completions at temperature {found[1]}."
        return MetricFacts(title(name), meaning, smaller_is_better=True)
    if name == "greedy_pass@1":
        return MetricFacts(f"{task} greedy", f"{_PASS}, with one answer at temperature 0 to each.", is_rate=True)
    if found := re.fullmatch(r"(?:greedy_)?pass@(\d+)", name):
        k = int(found[1])
        how = "one sample" if k == 1 else f"at least one of {k} samples"
        return MetricFacts(f"{task} pass@{k}", f"{_PASS} with {how}, estimated without bias.", is_rate=True)
    decoding, score = ("greedy", name.removeprefix("greedy_")) if name.startswith("greedy_") else ("", name)
    if found := re.fullmatch(r"best_of_(\d+)_(.+)", score):
        decoding, score = f"best of {found[1]}", found[2]
    if score in _SCORES:
        words = f"{score.replace('_', ' ').replace('bleu', 'BLEU').replace('chrf', 'chrF').replace('comet', 'COMET')}"
        meaning = f"{_SCORES[score][0].upper()}{_SCORES[score][1:]}"
        return MetricFacts(f"{words} {decoding}".strip(), f"{meaning}{f', {decoding}' if decoding else ''}.")
    return MetricFacts(metric, metric, smaller_is_better=smaller_is_better(metric))


def better(metric: str) -> Callable[..., Any]:
    """`min` or `max`: losses are better when smaller; rates, rewards and scores of tasks when larger."""
    return min if facts(metric).smaller_is_better else max
