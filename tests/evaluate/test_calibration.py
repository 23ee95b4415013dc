"""Calibration against plain sequences: one forward pass for each, and pairs by brute force."""

import copy
import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from ebft.config.evaluation import EvalOptions
from ebft.data.packing import SequenceDataset, collate
from ebft.evaluate.calibration import measure_sequences
from ebft.iteration import make_layout
from ebft.method.measures import TEMPERATURES, differences, estimates, metric_at
from ebft.method.sampling import sequence_seeds
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from tests.models import tiny_model
from tests.plain import Place, places, plain_hidden_states, plain_logits, untouched
from tests.test_iteration import dataset as dataset_of

END = 7
LENGTHS = (1, 3, 6)
DOCUMENTS = [15, 20, 22, 15]
Groups = list[tuple[int, list[Place]]]  # of each context: its row, and its rollouts


def options(**changes: Any) -> EvalOptions:
    given = dict(context_length=24, horizon=4, stride=4, rollouts=3, profile_lengths=list(LENGTHS), profile_stride=5)
    return EvalOptions.from_values({**given, "seed": 3, **changes})


def measured(
    model: Any, features: FeatureNetwork, dataset: SequenceDataset, chosen: EvalOptions, size: int = 2
) -> list[dict[str, Any]]:
    batches = [range(start, min(start + size, len(dataset))) for start in range(0, len(dataset), size)]
    found = measure_sequences(model, features, dataset, batches, chosen, torch.tensor([END]))
    return [record for batch in found for record in batch]


def rolled_out(model: Any, dataset: SequenceDataset, chosen: EvalOptions, turn: int, **changes: int) -> Groups:
    """The rollouts that calibration draws, each as a plain sequence."""
    config = copy.copy(chosen.method)
    vars(config).update(changes)
    batch = collate([dataset[row] for row in range(len(dataset))])
    ends = torch.tensor([END]) if config.document_masks else None
    layout = make_layout(batch["on_host"], config, 3, ends)
    seeds = sequence_seeds(3, turn, batch["sequence_id"])
    completions = rollout(model, batch["input_ids"], layout, config.temperature, seeds=seeds, end_token_ids=ends)
    found = places(batch["input_ids"], completions, layout, batch["document_ids"] if config.document_masks else None)
    by_context = itertools.groupby(found, key=lambda place: (place.row, place.anchor_index))
    return [(row, list(group)) for (row, _), group in by_context]


def until_end(tokens: Tensor, ends: bool) -> list[int]:
    own = tokens.tolist()
    return own[: own.index(END) + 1] if ends and END in own else own


def plain_feature(network: Any, sequence: Tensor, context: int, length: int, pooling: str) -> Tensor:
    """Layers 1, 2, 3 of 4 at the last token, or the mean over the completion; each of unit length."""
    states = plain_hidden_states(network, sequence[: context + length])
    pooled = [states[tap][-1] if pooling == "last" else states[tap][context:].mean(0) for tap in (1, 2, 3)]
    return torch.cat([p / p.norm() for p in pooled]).double()


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("document_masks", [False, True], ids=["no-masks", "masks"])
def test_profile_equals_plain_sequences_and_brute_force_pairs(document_masks: bool, pooling: str) -> None:
    model, network = tiny_model("llama"), tiny_model("llama", seed=9)
    features = FeatureNetwork(copy.deepcopy(network), source="shared", pooling=pooling)
    dataset, chosen = dataset_of(DOCUMENTS), options(document_masks=document_masks, feature_pooling=pooling)
    records = measured(model, features, dataset, chosen)
    plain = untouched(network)
    found = rolled_out(model, dataset, chosen, turn=1, horizon=max(LENGTHS), stride=5)
    for length in LENGTHS:
        losses: dict[int, list[float]] = {}
        for row, group in found:
            samples = []
            for place in group:
                context = len(place.sequence) - max(LENGTHS)
                assert len(place.truth_sequence) == len(place.sequence), "the truth window is not whole"
                own = len(until_end(place.sequence[context:], document_masks))
                samples.append(plain_feature(plain, place.sequence, context, min(length, own), pooling))
                truth = plain_feature(plain, place.truth_sequence, context, length, pooling)
            pairs = [float(a @ b) for a, b in itertools.permutations(samples, 2)]
            alignment = sum(float(s @ truth) for s in samples) / len(samples)
            losses.setdefault(row, []).append(float(truth @ truth) - 2 * alignment + sum(pairs) / len(pairs))
        for record in records:
            mine = losses.get(record["sequence"], [])
            assert record["profile_contexts"] == len(mine)
            mean = pytest.approx(sum(mine) / len(mine), abs=1e-4) if mine else None
            assert record[f"cfm_at_{length}"] == mean
    assert {record["profile_contexts"] for record in records} != {0}


@pytest.mark.parametrize("document_masks", [False, True], ids=["no-masks", "masks"])
def test_cross_entropy_equals_plain_sequences(document_masks: bool) -> None:
    model, dataset = tiny_model("llama"), dataset_of([15, 20, 22, 12])  # 69 tokens: the last sequence is padded
    records = measured(model, FeatureNetwork(model, source="shared"), dataset, options(document_masks=document_masks))
    plain = untouched(model)
    expected: list[Counter[str]] = []
    for row in range(3):
        item, sums = dataset[row], Counter[str]()
        expected.append(sums)
        documents = item["document_ids"]
        for t in range(1, int((documents >= 0).sum())):
            start = int((documents == documents[t]).nonzero()[0]) if document_masks else 0
            if t == start:  # nothing predicts it
                continue
            token, of_answer = int(item["input_ids"][t]), bool(item["answer_mask"][t])
            logits = plain_logits(plain, item["input_ids"][start:t])[-1].double()
            for T, at in ((0.5, "_temperature_0.5"), (1, ""), (1.5, "_temperature_1.5")):
                log_prob = float((logits / T).log_softmax(-1)[token])
                sums[f"log_probs{at}"] += log_prob
                sums[f"answer_log_probs{at}"] += log_prob * of_answer
                if T == 1:
                    sums["answer_log_probs_without_end"] += log_prob * (of_answer and token != END)
            sums["tokens"] += 1
            sums["answer_tokens"] += of_answer
            sums["answer_tokens_without_end"] += of_answer and token != END
    for name in expected[0]:
        assert [record[name] for record in records] == pytest.approx([sums[name] for sums in expected], rel=1e-4), name
    every, answers, without, log_probs = (
        sum(sums[name] for sums in expected)
        for name in ("tokens", "answer_tokens", "answer_tokens_without_end", "answer_log_probs_without_end")
    )
    assert every > answers > without, "no end among the answers: nothing is shown"
    assert estimates(records)["answer_cross_entropy_without_end"].mean == pytest.approx(-log_probs / without, rel=1e-4)


@pytest.mark.parametrize("document_masks", [False, True], ids=["no-masks", "masks"])
def test_what_rollouts_are_like_by_hand(document_masks: bool) -> None:
    model, dataset = tiny_model("llama"), dataset_of(DOCUMENTS)
    chosen = options(document_masks=document_masks, rollout_temperature=0.2, profile_lengths=[])
    records = measured(model, FeatureNetwork(model, source="shared"), dataset, chosen)
    plain = untouched(model)
    by_hand: dict[str, dict[int, list[float]]] = {"distinct": {}, "entropy": {}}
    for row, group in rolled_out(model, dataset, chosen, turn=0):
        texts, entropies = set(), []
        for place in group:
            context = len(place.sequence) - 4
            own = until_end(place.sequence[context:], document_masks)
            texts.add(tuple(own))
            log_probs = (plain_logits(plain, place.sequence)[context - 1 :].double() / 0.2).log_softmax(-1)
            entropies += [float(-(token.exp() * token).sum()) for token in log_probs[: len(own)]]
        by_hand["distinct"].setdefault(row, []).append(len(texts) / 3)
        by_hand["entropy"].setdefault(row, []).append(sum(entropies) / len(entropies))
    assert len({share for shares in by_hand["distinct"].values() for share in shares}) > 1, "or nothing is shown"
    for record in records:
        for name, of_rows in by_hand.items():
            mine = of_rows[record["sequence"]]
            assert record[name] == pytest.approx(sum(mine) / len(mine), rel=1e-4), name


def test_numbers_do_not_depend_on_the_batch_or_on_what_else_is_measured() -> None:
    model, features = tiny_model("llama").train(), FeatureNetwork(tiny_model("llama", seed=9))
    dataset = dataset_of([*DOCUMENTS, 30])
    together = measured(model, features, dataset, options(also_at_temperatures=[1.5]), size=5)
    assert model.training
    alone = measured(model, features, dataset, options(also_at_temperatures=[1.5]), size=1)
    for a, b in zip(together, alone, strict=True):
        assert {name for name in a if a[name] is None} == {name for name in b if b[name] is None}
        for name, value in b.items():
            assert value is None or a[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    hot = measured(model, features, dataset, options(rollout_temperature=1.5, profile_lengths=[]), size=5)
    assert [record["cfm_temperature_1.5"] for record in together] == [record["cfm"] for record in hot]
    assert not any(name.startswith("cfm_at_") for name in hot[0])
    other = measured(model, features, dataset, options(seed=4), size=5)
    assert other[0]["cfm"] != pytest.approx(together[0]["cfm"], abs=1e-6)


# The temperature of the least cross-entropy, on records written by hand.
COUNTS, LOWEST = [3, 5, 4, 8, 6], [0.83, 0.97, 1.02, 0.9, 0.88]


def records(lowest: list[float]) -> list[dict[str, Any]]:
    """Sequences whose cross-entropy is a parabola over the temperature, each with its own lowest point."""
    names = {t: metric_at(t).replace("cross_entropy", "log_probs") for t in TEMPERATURES}
    return [
        {"sequence": n, "tokens": count, **{name: -count * (1 + 2 * (t - low) ** 2) for t, name in names.items()}}
        for n, (low, count) in enumerate(zip(lowest, COUNTS, strict=True))
    ]


def test_the_lowest_point_of_a_parabola_is_found_between_the_points_of_the_grid() -> None:
    both = list(zip(LOWEST, COUNTS, strict=True))
    mean = sum(low * count for low, count in both) / sum(COUNTS)
    # The lowest point of a sum of parabolas is the mean of theirs, whose error is that of a ratio of sums.
    pulls = [count * (low - mean) for low, count in both]
    error = math.sqrt(sum(p * p for p in pulls) / 4 / 5) / (sum(COUNTS) / 5)
    assert estimates(records(LOWEST))["best_temperature"] == (pytest.approx(mean), pytest.approx(error))
    ours = records([low + 0.13 for low in LOWEST])[::-1]
    found = differences(ours, records(LOWEST))["best_temperature"]
    assert found == (pytest.approx(0.13), pytest.approx(0, abs=1e-9))
    for lowest, edge in ([0.3] * 5, 0.5), ([1.7] * 5, 1.5):
        assert estimates(records(lowest))["best_temperature"] == (edge, pytest.approx(math.nan, nan_ok=True))
