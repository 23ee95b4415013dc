from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ebft.config.evaluation import EvalOptions, Profile
from ebft.data.packing import DocumentIndex, SequenceDataset, collate
from ebft.data.row_format import Document
from ebft.data.store import TokenStore
from ebft.errors import ConfigError
from ebft.evaluate.calibration import estimates, measure_sequences
from ebft.iteration import make_layout
from ebft.method.layout import StridedLayout
from ebft.method.sampling import sequence_seeds
from ebft.model.backbone import text_config
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from tests.models import VOCABULARY, tiny_model
from tests.plain import places, plain_hidden_states, plain_logits, untouched

END = 7
LENGTHS = (1, 3, 6)


def options(**changes: Any) -> EvalOptions:
    given = dict(context_length=24, horizon=4, stride=4, rollouts=3, profile_lengths=list(LENGTHS), profile_stride=5)
    return EvalOptions.from_values({**given, "calibration_batch_size": 2, "seed": 3, **changes})


def sequences(documents: list[int], T: int = 24, packing: bool = True) -> SequenceDataset:
    """Random tokens in documents of the given lengths; the second half of each is an answer."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for length in documents:
        tokens = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
        made.append(Document(tokens, [2 * place >= length for place in range(length)]))
    return SequenceDataset(DocumentIndex.of(TokenStore.from_documents(made)), T, packing, 0)


def measured(
    model: Any, features: FeatureNetwork, dataset: SequenceDataset, chosen: EvalOptions
) -> list[dict[str, Any]]:
    config, profile = chosen.method, chosen.profile
    ends = torch.tensor([END]) if config.document_masks else None
    rows = [range(start, min(start + 2, len(dataset))) for start in range(0, len(dataset), 2)]
    more = chosen.also_at_temperatures
    return [
        record
        for batch in measure_sequences(
            model, features, dataset, rows, config, profile, ends, more, torch.tensor([END, END + 1])
        )
        for record in batch
    ]


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
    dataset = sequences([15, 20, 22, 15])
    chosen = options(document_masks=document_masks, feature_pooling=pooling)
    records = measured(model, features, dataset, chosen)

    batch = collate([dataset[row] for row in range(len(dataset))])
    config, profile = copy.copy(chosen.method), chosen.profile
    config.horizon, config.stride = max(LENGTHS), profile.stride
    ends = torch.tensor([END]) if document_masks else None
    layout = make_layout(batch["on_host"], config, 3, ends)
    seeds = sequence_seeds(3, 1, batch["sequence_id"])
    completions = rollout(model, batch["input_ids"], layout, 0.6, seeds=seeds, end_token_ids=ends)
    documents = batch["document_ids"] if document_masks else None
    found = places(batch["input_ids"], completions, layout, documents)
    plain = untouched(network)
    for length in LENGTHS:
        losses: dict[int, list[float]] = {}
        by_context = itertools.groupby(found, key=lambda place: (place.row, place.anchor_index))
        for (row, _), group in by_context:
            samples, truth = [], None
            for place in group:
                context = len(place.sequence) - max(LENGTHS)
                assert len(place.truth_sequence) == len(place.sequence), "the truth window is not whole"
                own = place.sequence[context:].tolist()
                ended = own.index(END) + 1 if document_masks and END in own else len(own)
                samples.append(plain_feature(plain, place.sequence, context, min(length, ended), pooling))
                truth = plain_feature(plain, place.truth_sequence, context, length, pooling)
            assert truth is not None
            pairs = [float(a @ b) for a, b in itertools.permutations(samples, 2)]
            alignment = sum(float(s @ truth) for s in samples) / len(samples)
            losses.setdefault(row, []).append(float(truth @ truth) - 2 * alignment + sum(pairs) / len(pairs))
        for record in records:
            mine = losses.get(record["sequence"], [])
            assert record["profile_contexts"] == len(mine)
            if mine:
                assert record[f"cfm_at_{length}"] == pytest.approx(sum(mine) / len(mine), abs=1e-4)
            else:
                assert record[f"cfm_at_{length}"] is None
    assert {record["profile_contexts"] for record in records} != {0}


@pytest.mark.parametrize("document_masks", [False, True], ids=["no-masks", "masks"])
def test_cross_entropy_equals_plain_sequences(document_masks: bool) -> None:
    model = tiny_model("llama")
    dataset = sequences([15, 20, 22, 12])  # 69 tokens: the last sequence is padded
    chosen = options(document_masks=document_masks)
    records = measured(model, FeatureNetwork(model, source="shared"), dataset, chosen)
    plain = untouched(model)
    sums = {name: [0.0] * 3 for name in ("", "answer_", "sharp", "flat", "without")}
    counts = {"": [0] * 3, "answer_": [0] * 3, "without": [0] * 3}
    for row in range(3):
        item = dataset[row]
        documents = item["document_ids"]
        real = int((documents >= 0).sum())
        for t in range(1, real):
            start = 0
            if document_masks:
                start = int((documents == documents[t]).nonzero()[0])
                if t == start:
                    continue
            logits = plain_logits(plain, item["input_ids"][start:t])[-1].double()
            sharp, log_prob, flat = (float((logits / T).log_softmax(-1)[item["input_ids"][t]]) for T in (0.5, 1, 1.5))
            sums["sharp"][row] += sharp
            sums["flat"][row] += flat if item["answer_mask"][t] else 0.0
            if item["answer_mask"][t] and int(item["input_ids"][t]) not in (END, END + 1):
                sums["without"][row] += log_prob
                counts["without"][row] += 1
            for name in ("", "answer_") if item["answer_mask"][t] else ("",):
                sums[name][row] += log_prob
                counts[name][row] += 1
    metrics, points = estimates(records)
    assert [record["log_probs_temperature_0.5"] for record in records] == pytest.approx(sums["sharp"], rel=1e-4)
    assert [record["answer_log_probs_temperature_1.5"] for record in records] == pytest.approx(sums["flat"], rel=1e-4)
    sharp, flat = -sum(sums["sharp"]) / sum(counts[""]), -sum(sums["flat"]) / sum(counts["answer_"])
    assert points["cross_entropy_temperature_0.5"].mean == pytest.approx(sharp, rel=1e-4)
    assert points["answer_cross_entropy_temperature_1.5"].mean == pytest.approx(flat, rel=1e-4)
    assert sum(counts["without"]) < sum(counts["answer_"]), "no end token among the answers: the test shows nothing"
    without = -sum(sums["without"]) / sum(counts["without"])
    assert metrics["answer_cross_entropy_without_end"].mean == pytest.approx(without, rel=1e-4)
    for name, metric in (("", "cross_entropy"), ("answer_", "answer_cross_entropy")):
        assert [record[f"{name}tokens"] for record in records] == counts[name]
        assert [record[f"{name}log_probs"] for record in records] == pytest.approx(sums[name], rel=1e-4)
        assert float(metrics[metric].mean) == pytest.approx(-sum(sums[name]) / sum(counts[name]), rel=1e-4)


@pytest.mark.parametrize("document_masks", [False, True], ids=["no-masks", "masks"])
def test_what_rollouts_are_like_by_hand(document_masks: bool) -> None:
    model = tiny_model("llama")
    dataset = sequences([15, 20, 22, 15])
    chosen = options(document_masks=document_masks, rollout_temperature=0.2, profile_lengths=[])
    records = measured(model, FeatureNetwork(model, source="shared"), dataset, chosen)
    batch = collate([dataset[row] for row in range(len(dataset))])
    ends = torch.tensor([END]) if document_masks else None
    layout = make_layout(batch["on_host"], chosen.method, 3, ends)
    seeds = sequence_seeds(3, 0, batch["sequence_id"])
    completions = rollout(model, batch["input_ids"], layout, 0.2, seeds=seeds, end_token_ids=ends)
    plain = untouched(model)
    shares: dict[int, list[float]] = {}
    entropies: dict[int, list[float]] = {}
    found = places(batch["input_ids"], completions, layout, batch["document_ids"] if document_masks else None)
    for (row, _), group in itertools.groupby(found, key=lambda place: (place.row, place.anchor_index)):
        texts, of_tokens = set(), []
        for place in group:
            context = len(place.sequence) - 4
            own = place.sequence[context:].tolist()
            own = own[: own.index(END) + 1] if document_masks and END in own else own
            texts.add(tuple(own))
            log_probs = (plain_logits(plain, place.sequence)[context - 1 :].double() / 0.2).log_softmax(-1)
            of_tokens += [float(-(row.exp() * row).sum()) for row in log_probs[: len(own)]]
        shares.setdefault(row, []).append(len(texts) / 3)
        entropies.setdefault(row, []).append(sum(of_tokens) / len(of_tokens))
    assert len({share for row in shares.values() for share in row}) > 1, "some are equal, or this shows nothing"
    for record in records:
        for name, by_hand in ("distinct", shares), ("entropy", entropies):
            mine = by_hand[record["sequence"]]
            assert record[name] == pytest.approx(sum(mine) / len(mine), rel=1e-4), name


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
def test_temperatures_that_are_none(wrong: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        options(also_at_temperatures=[wrong])


def test_another_temperature_is_as_if_measured_at_it() -> None:
    model, features = tiny_model("llama"), FeatureNetwork(tiny_model("llama", seed=9))
    dataset = sequences([15, 20, 22, 15, 30])
    both = measured(model, features, dataset, options(also_at_temperatures=[1.5]))
    alone = measured(model, features, dataset, options(rollout_temperature=1.5))
    assert [record["cfm_temperature_1.5"] for record in both] == [record["cfm"] for record in alone]
    assert [record["cfm"] for record in both] != [record["cfm"] for record in alone]
    metrics, _ = estimates(both)
    assert metrics["cfm_temperature_1.5"] == estimates(alone)[0]["cfm"]


def test_numbers_do_not_depend_on_the_batch() -> None:
    model = tiny_model("llama")
    features = FeatureNetwork(tiny_model("llama", seed=9))
    dataset = sequences([15, 20, 22, 15, 30])
    together = measured(model, features, dataset, options(calibration_batch_size=5))
    alone = measured(model, features, dataset, options(calibration_batch_size=1))
    for a, b in zip(together, alone, strict=True):
        assert {name for name in a if a[name] is None} == {name for name in b if b[name] is None}
        for name, value in b.items():
            assert value is None or a[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    other = measured(model, features, dataset, options(seed=4))
    assert other[0]["cfm"] != pytest.approx(together[0]["cfm"], abs=1e-6)


def test_estimates_are_means_over_contexts() -> None:
    """A sequence with two contexts weighs twice as much as one with one; sequences without any do not count."""
    base = {"log_probs": -4.0, "tokens": 2, "answer_log_probs": 0.0, "answer_tokens": 0, "reward": 0.0}
    records = [
        {
            **base,
            "sequence": 0,
            "contexts": 2,
            "cfm": 1.0,
            "whitened_proxy": 0.5,
            "profile_contexts": 3,
            "cfm_at_1": 3.0,
        },
        {
            **base,
            "sequence": 1,
            "contexts": 1,
            "cfm": 2.0,
            "whitened_proxy": 0.7,
            "profile_contexts": 0,
            "cfm_at_1": None,
        },
        {
            **base,
            "sequence": 2,
            "contexts": 0,
            "cfm": None,
            "whitened_proxy": None,
            "profile_contexts": 1,
            "cfm_at_1": 4.0,
        },
    ]
    metrics, points = estimates(records)
    assert set(metrics) == {"cross_entropy", "cfm", "whitened_proxy"}
    assert metrics["cfm"].mean == pytest.approx((1 + 1 + 2) / 3)
    # By hand: residuals of (2, 2) and (2, 1) about 4/3 are -2/3 and 2/3, on counts of 1.5 in the mean.
    assert metrics["cfm"].standard_error == pytest.approx(4 / 9)
    assert metrics["whitened_proxy"].mean == pytest.approx((0.5 + 0.5 + 0.7) / 3)
    assert metrics["cross_entropy"].mean == 2.0
    assert points == {"cfm_at_1": (pytest.approx((3 * 3 + 4) / 4), pytest.approx(0.75 / 2))}


def test_a_broken_model_shows() -> None:
    """NaN is what a sequence with contexts gives, not a sequence to leave out."""
    record = {"log_probs": None, "tokens": 2, "answer_log_probs": 0.0, "answer_tokens": 0, "contexts": 1}
    metrics, _ = estimates([{**record, "cfm": None, "whitened_proxy": 0.1, "reward": 0.0}] * 2)
    assert math.isnan(float(metrics["cfm"].mean))
    assert math.isnan(float(metrics["cross_entropy"].mean))


def test_lengths_cut_at_equal_shorter_rollouts() -> None:
    """What `at_lengths` reads off long completions is what a layout of that horizon gives for their beginnings."""
    network = FeatureNetwork(tiny_model("gpt2", seed=2))
    ids = torch.randint(VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(0))
    long = StridedLayout(20, 6, 5, 2)
    completions = torch.randint(VOCABULARY, (2, long.num_anchors, 2, 6), generator=torch.Generator().manual_seed(1))
    found = network.at_lengths(long.pack(ids, completions), long, [2, 6])
    short = StridedLayout(20, 2, 5, 2)
    begun = torch.zeros(2, short.num_anchors, 2, 2, dtype=torch.long)
    begun[:, : long.num_anchors] = completions[..., :2]
    expected = network(short.pack(ids, begun), short)
    for mine, theirs in zip(found[0], expected, strict=True):
        torch.testing.assert_close(mine, theirs[:, : long.num_anchors], atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(found[1], network(long.pack(ids, completions), long), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match=r"lengths=\[7\] must lie between 1 and the horizon of 6"):
        network.at_lengths(long.pack(ids, completions), long, [7])


def test_attention_and_mode_are_restored() -> None:
    model = tiny_model("llama")
    model.train()
    features = FeatureNetwork(tiny_model("llama", seed=9))
    before = text_config(model)._attn_implementation
    measured(model, features, sequences([24]), options())
    assert text_config(model)._attn_implementation == before != "ebft"
    assert model.training


def test_no_profile_is_fine() -> None:
    model = tiny_model("llama")
    records = measured(model, FeatureNetwork(model), sequences([24]), options(profile_lengths=[]))
    assert not any(name.startswith("cfm_at_") for name in estimates(records)[1])


@pytest.mark.parametrize("context", [100, 64])
def test_a_profile_that_does_not_fit_says_so(context: int) -> None:
    with pytest.raises(ConfigError, match=f"do not fit in context_length={context}"):
        Profile((64,), 64).check(context)


@pytest.mark.parametrize("context", [2, 3, 24, 64, 100, 128, 192, 1024])
def test_the_usual_profile_fits(context: int) -> None:
    chosen = EvalOptions.from_values({"tasks": ["calibration"], "context_length": context, "horizon": 1, "stride": 1})
    chosen.profile.check(context)
    assert chosen.profile == (Profile() if context >= 192 else Profile.fitting(context))
    for none in ("none", ["none"], []):
        values: dict[str, Any] = {"tasks": ["calibration"], "context_length": 24, "profile_lengths": none}
        assert EvalOptions.from_values(values).profile_lengths == []
