"""The first half of an iteration: layouts under the settings, joined scores, and micro-batches that add up."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ebft.config.method import MethodConfig
from ebft.config.training import EBFTConfig
from ebft.data.packing import DocumentIndex, OnHost, SequenceDataset, TokenStore, collate
from ebft.data.row_format import Document
from ebft.errors import DataError
from ebft.iteration import Rollouts, check_sequences, loss_of, make_layout, prepare_window, score
from ebft.method.losses import counted_tokens
from ebft.method.rewards import leave_one_out_advantages, token_groups
from ebft.model.features import FeatureNetwork
from tests.models import VOCABULARY, tiny_model

T, END = 24, 7


def method(**changes: Any) -> MethodConfig:
    return MethodConfig(
        **{"context_length": T, "horizon": 3, "stride": 4, "samples": 3, "answer_only": False, **changes}
    )


def dataset(lengths: list[int], packing: bool = True) -> SequenceDataset:
    """Random tokens in documents of these lengths; the second half of each is an answer."""
    generator = torch.Generator().manual_seed(4)
    made = []
    for length in lengths:
        tokens = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
        made.append(Document(tokens, [2 * place >= length for place in range(length)]))
    return SequenceDataset(DocumentIndex.of(TokenStore.from_documents(made)), T, packing)


@pytest.fixture(scope="module")
def networks() -> tuple[Any, FeatureNetwork]:
    model = tiny_model("llama")
    return model, FeatureNetwork(model)


class TestWindow:
    def window(self, networks: Any, tmp_path: Path, sizes: list[int], ends: Tensor | None, **changes: Any) -> Any:
        given = {"context_length": T, "horizon": 3, "stride": 4, "answer_only": False, **changes}
        config = EBFTConfig(output_dir=str(tmp_path), use_cpu=True, **given)
        data = dataset([10, 17, 9, 30, 24, 6])
        rows = iter(range(len(data)))
        batches = [collate([data[next(rows)] for _ in range(size)]) for size in sizes]
        return prepare_window(*networks, batches, config, step=3, end_token_ids=ends)

    def by_sequence(self, micro_batches: list[dict[str, Any]]) -> dict[Any, Any]:
        """The advantages of every sequence, told by its text, completions and their lengths, where anchors count."""
        found = {}
        for batch in micro_batches:
            layout, lengths = batch["layout"], batch["completion_lengths"]
            completions = layout.completions(batch["input_ids"])
            kept = layout.anchor_mask.expand(len(completions), -1)
            for row, (ids, at) in enumerate(zip(batch["input_ids"][:, :T].tolist(), kept, strict=True)):
                own = () if lengths is None else tuple(lengths[row, at].flatten().tolist())
                drawn = tuple(completions[row, at].flatten().tolist())
                found[tuple(ids), drawn, own] = batch["advantages"][row, at].tolist()
        return found

    @pytest.mark.parametrize("samples", [2, 4])
    @pytest.mark.parametrize("kl_weight", [0.0, 0.1])
    @pytest.mark.parametrize("ends", [None, torch.tensor([END])], ids=["no ends", "ends"])
    def test_micro_batches_are_the_window_cut_up_and_trees_change_nothing(
        self, networks: Any, tmp_path: Path, ends: Tensor | None, kl_weight: float, samples: int
    ) -> None:
        model, frozen = networks[0], tiny_model("llama", seed=1)
        changes = {"document_masks": ends is not None, "kl_weight": kl_weight, "samples": samples, "gamma": 0.2}
        changes |= {"temperature": 0.3 if samples == 2 else 0.1, "alpha": 0.5}

        def loss_and_gradients(window: Any) -> tuple[Tensor, list[Tensor]]:
            reference = (frozen, nullcontext())
            loss = sum(loss_of(model, b, method(**changes), lambda: reference).loss for b in window.micro_batches)
            return loss, torch.autograd.grad(loss, list(model.parameters()))

        whole = self.window(networks, tmp_path, [4], ends, trees=False, **changes)
        (one,), (plain_loss, plain_gradients) = whole.micro_batches, loss_and_gradients(whole)
        completions = one["layout"].completions(one["input_ids"])
        equal = (completions == completions[:, :, :1]).all(-1).all(-1)
        assert bool(equal.any()), "completions that are all equal, or less is shown"
        assert not bool(equal.all())
        for sizes, at_once, trees in ([1, 3], None, True), ([2, 2], 1, False), ([1, 1, 1, 1], 3, True):
            cut = self.window(networks, tmp_path, sizes, ends, rollout_batch_size=at_once, trees=trees, **changes)
            assert [len(batch["input_ids"]) for batch in cut.micro_batches] == sizes
            found, expected = (self.by_sequence(window.micro_batches) for window in (cut, whole))
            assert found.keys() == expected.keys()
            for sequence, advantages in found.items():
                torch.testing.assert_close(torch.tensor(advantages), torch.tensor(expected[sequence]))
            widths = [batch["layout"].packed_length for batch in cut.micro_batches]
            assert widths == sorted(widths), "rows with small trees go together"
            for name in ("generated_tokens", "truth_tokens"):
                assert {int(batch[name]) for batch in cut.micro_batches} == {int(one[name])}, "of the whole window"
            assert whole.metrics.keys() == cut.metrics.keys()
            for name in whole.metrics.keys() - {"ebft/shared"}:
                assert float(cut.metrics[name]) == pytest.approx(float(whole.metrics[name]), rel=1e-4, abs=1e-6), name
            assert float(whole.metrics["ebft/shared"]) == 0
            assert (float(cut.metrics["ebft/shared"]) > 0) == trees
            plain = int(whole.totals["scored_tokens"])
            trained, scored = (int(cut.totals[name]) for name in ("trained_tokens", "scored_tokens"))
            assert trained < scored < plain if trees else trained == scored == plain
            counted, truth = 0, 0
            for n, batch in zip(sizes, cut.micro_batches, strict=True):
                counted += int(counted_tokens(batch["layout"], n, batch["completion_lengths"]).sum())
                truth += int(batch["layout"].truth_mask.expand(n, -1)[:, 1:].sum())
            assert (counted, truth) == (int(cut.totals["generated_tokens"]), int(one["truth_tokens"]))
            loss, gradients = loss_and_gradients(cut)
            assert float(loss.detach()) == pytest.approx(float(plain_loss.detach()), rel=1e-5, abs=1e-6)
            for mine, other in zip(gradients, plain_gradients, strict=True):
                assert (mine - other).abs().max() <= 1e-5 * other.abs().max().clamp(min=1e-2)

    def test_counts_and_means_by_hand(self, networks: Any, tmp_path: Path) -> None:
        found = self.window(networks, tmp_path, [4], None, alpha=0.5, whitening="none")
        (batch,) = found.micro_batches
        assert batch["layout"].anchors.tolist() == [4, 8, 12, 16, 20]  # every stride, with room for the horizon of 3
        generated = 5 * 4 * 3  # of each of the four rows, which are full, and all of whose anchors count
        counts = {name: int(found.totals[name]) for name in ("sequences", "tokens", "generated_tokens")}
        assert counts == {"sequences": 4, "tokens": 4 * T, "generated_tokens": 4 * generated}
        assert float(found.metrics["ebft/anchors"]) == 5
        assert float(found.metrics["ebft/packed_tokens"]) == 4 * (T + generated)
        alignment, diversity = found.metrics["ebft/alignment"], found.metrics["ebft/diversity"]
        assert diversity > 0.01, "whitened, distinct samples have none, and alpha would weigh nothing"
        assert float(found.metrics["reward"]) == pytest.approx(float(alignment - 0.5 * diversity), abs=1e-6)
        example = found.example
        expected = leave_one_out_advantages(example["alignment"][None], example["diversity"][None], 0.5)[0]
        torch.testing.assert_close(example["advantages"], expected)
        assert example["advantages"].tolist() in batch["advantages"].tolist()
        cold = self.window(networks, tmp_path, [1], None, temperature=0.3)
        shares = [len({tuple(c.tolist()) for c in anchor}) / len(anchor) for anchor in cold.example["completions"]]
        assert float(cold.metrics["ebft/distinct"]) == pytest.approx(sum(shares) / len(shares))
        assert sum(shares) < len(shares), "some are alike, or this shows nothing"


def test_sequences_need_an_anchor() -> None:
    check_sequences(dataset([2] * 20), method(), None)  # packed, an anchor reaches over several documents
    check_sequences(dataset([10]), method(answer_only=True, stride=5), None)
    check_sequences(dataset([10, T], packing=False), method(anchors="answer_start"), None)
    for data, changes, longest in (
        (dataset([3] * 4, packing=False), {"packing": False}, "document has 3"),
        (dataset([4, 5]), {"answer_only": True}, "answer has [23]"),
        (dataset([2 * T, 1], packing=False), {"anchors": "answer_start"}, f"answer has {T}"),
    ):
        with pytest.raises(DataError, match=f"the longest {longest} tokens"):
            check_sequences(data, method(**changes), None)


@pytest.mark.parametrize("ended", [False, True])
def test_a_sample_that_is_the_truth_has_its_features(ended: bool) -> None:
    """In bf16 the features of the two differ by rounding. Whitened rewards of a sample that is the truth: 2 and 0."""
    model = tiny_model("llama").bfloat16()
    ids = torch.randint(VOCABULARY, (1, T), generator=torch.Generator().manual_seed(0))
    if ended:
        ids[:, 2::4] = ids[:, 1::4]  # a sample that ends with its second token looks like the truth
    config = method(whitening="paper")
    on_host = OnHost(torch.zeros_like(ids), torch.ones_like(ids).bool(), input_ids=ids)
    layout = make_layout(on_host, config, 3, None)
    samples = torch.randint(VOCABULARY, (1, layout.num_anchors, 3, 3), generator=torch.Generator().manual_seed(1))
    samples[:, :, 1] = layout.truths(ids)
    lengths = torch.tensor([3, 2, 3]).expand(1, layout.num_anchors, 3) if ended else None
    rollouts = Rollouts(samples, lengths, torch.zeros(samples.shape), token_groups(samples))
    found = score(FeatureNetwork(model), ids, layout, rollouts, config)
    off = (found.alignment - torch.tensor([0.0, 2.0, 0.0])).abs().amax(-1)
    assert off.min() > 1e-3 if ended else off.max() < 1e-9
