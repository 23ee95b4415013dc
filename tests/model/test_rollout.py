from __future__ import annotations

from collections import deque
from functools import partial

import pytest
import torch
from torch import Tensor

from ebft.method.layout import StridedLayout
from ebft.method.sampling import uniforms
from ebft.model import backbone
from ebft.model import rollout as rollout_module
from ebft.model.attention import Computed
from ebft.model.backbone import output_head, packed_hidden_states, prepare_model
from ebft.model.rollout import _generate, rollout
from tests.model import compiled_models as gpu
from tests.model.batches import DOCUMENTS, T
from tests.models import EXTRA_CONFIGS, FAMILIES, VOCABULARY, tiny_model
from tests.plain import places, plain_logits, untouched

SEEDS = torch.tensor([11, 5])


def some_ids(seed: int = 0, rows: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (rows, T), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", [*FAMILIES, *EXTRA_CONFIGS])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one document", "documents"])
def test_every_token_is_the_inverse_cdf_of_the_plain_sequence(family: str, documents: Tensor | None) -> None:
    """Token by token, by a loop over plain uncached sequences: the same uniform number gives the same token."""
    model = tiny_model(family)
    plain = untouched(model)
    layout = StridedLayout(T, 4, 4, 2, document_ids=documents)
    ids = some_ids()
    completions = rollout(model, ids, layout, temperature=0.8, seeds=SEEDS)
    assert completions.shape == (2, layout.num_anchors, 2, 4)
    uniform = uniforms(SEEDS, layout.anchors, 2, 4)
    for place in places(ids, completions, layout, documents):
        probabilities = (plain_logits(plain, place.sequence)[-5:-1].double() / 0.8).softmax(-1)
        tokens = place.sequence[-4:]
        for step in range(4):
            u = float(uniform[place.row, place.anchor_index, place.sample, step])
            upper = float(probabilities[step, : tokens[step] + 1].sum())
            lower = upper - float(probabilities[step, tokens[step]])
            assert lower - 1e-5 <= u <= upper + 1e-5


@pytest.mark.parametrize("family", [*FAMILIES, *EXTRA_CONFIGS])
def test_cached_and_packed_distributions_are_the_same(
    family: str, device_and_backend: tuple[str, str], tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, backend = device_and_backend
    rows: list[Tensor] = []
    original = rollout_module._sample_rows

    def spy(head, hidden, uniform, *rest):  # type: ignore[no-untyped-def]
        rows.append(head.logits(hidden))
        return original(head, hidden, uniform, *rest)

    monkeypatch.setattr(rollout_module, "_sample_rows", spy)
    model = tiny_model(family).to(device)
    layout = StridedLayout(T, 5, 3, 3, document_ids=DOCUMENTS)
    ids = some_ids().to(device)
    completions = rollout(model, ids, layout, temperature=0.9, seeds=SEEDS, backend=backend)
    with torch.no_grad():
        hidden = packed_hidden_states(model, layout.pack(ids, completions), layout, backend=backend)
        logits = output_head(model).logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
    n, B, G = layout.samples, layout.num_anchors, layout.horizon
    assert len(rows) == G
    anchors = rows[0].view(2, B, VOCABULARY)
    assert (anchors - logits[:, layout.anchors - 1]).abs().max() < tolerance * logits.abs().max()
    for step in range(1, G):
        cached = rows[step]
        if device == "cpu":
            kept = layout.anchor_mask.expand(2, B)
            alike, _ = Computed.of_samples(completions[..., :step], kept)
            assert alike is not None
            begun = completions[..., :step][kept].tolist()
            distinct = sum(len({tuple(sample) for sample in anchor}) for anchor in begun)
            assert len(cached) == distinct + (not kept[0, 0]), "each once, and none of a dropped anchor but the first"
            cached = cached[alike.standing]
        cached = cached.view(2, B, n, VOCABULARY)
        packed = logits[:, layout.completion_slots[:, :, step - 1]]
        valid = layout.anchor_mask.expand(2, B)
        assert (cached - packed)[valid].abs().max() < tolerance * logits.abs().max()


def test_samples_that_share_are_those_that_do_not(
    device_and_backend: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enough samples for a GPU to leave some out, of which some fill up a rounded number."""
    device, backend = device_and_backend
    computed: list[int] = []
    original = rollout_module._sample_rows

    def spy(head, hidden, *rest):  # type: ignore[no-untyped-def]
        computed.append(len(hidden))
        return original(head, hidden, *rest)

    monkeypatch.setattr(rollout_module, "_sample_rows", spy)
    model = tiny_model().to(device)
    layout, ids = StridedLayout(T, 5, 1, 20, document_ids=DOCUMENTS), some_ids().to(device)
    shared, alone = (
        rollout(model, ids, layout, temperature=0.05, seeds=SEEDS, backend=backend, share=share)
        for share in (True, False)
    )
    kept = layout.anchor_mask.expand(2, -1)
    assert torch.equal(shared.cpu()[kept], alone.cpu()[kept])
    assert sum(computed[:5]) < sum(computed[5:])
    assert device == "cpu" or all(rows % 128 == 0 for rows in computed[1:5])


@pytest.mark.cuda
def test_samples_share_on_a_gpu_whether_enough_were_expected_or_not() -> None:
    model, layout = tiny_model().cuda(), StridedLayout(T, 5, 1, 40)
    base, sampling = prepare_model(model), (0.05, None, None)
    for trial in range(6):  # sizes are asked for, then expected; then far too few are expected
        if trial == 4:
            rollout_module._LED[base] = {(2, layout.num_anchors, 40, 5, sampling): deque([[1, 1, 1, 1]], 64)}
        ids, seeds = some_ids(trial).cuda(), SEEDS + trial
        shared, alone = (
            rollout(model, ids, layout, sampling[0], seeds=seeds, backend="flex", share=share)
            for share in (True, False)
        )
        assert torch.equal(shared, alone)
    (led,) = rollout_module._LED[base].values()
    assert all(count < 2 * layout.num_anchors * 40 for count in led[-1]), led


@torch.no_grad()
def test_a_number_of_samples_that_is_fixed_beforehand() -> None:
    """Those that fill it up change nothing; too few are noticed at the first step where they are."""
    model, ids = tiny_model(), some_ids()
    layout = StridedLayout(T, 5, 2, 6, document_ids=DOCUMENTS)
    given = (prepare_model(model), "sdpa", (0.3, None, None), layout, ids, SEEDS)
    drawn, leading = _generate(*given, (None,) * 4)
    kept, counts = layout.anchor_mask.expand(2, -1), leading.tolist()
    for more in (0, 1, 7, 1000):
        again, found = _generate(*given, tuple(count + more for count in counts))
        assert torch.equal(again.completions[kept], drawn.completions[kept])
        assert torch.equal(found, leading)
        assert torch.allclose(again.entropy[kept], drawn.entropy[kept], atol=1e-5)
    for step in range(4):
        sizes = tuple(count - (place == step) for place, count in enumerate(counts))
        _, found = _generate(*given, sizes)
        assert found[: step + 1].tolist() == counts[: step + 1]
        assert any(count > size for count, size in zip(found.tolist(), sizes, strict=True))


@torch.no_grad()
def test_layers_are_compiled_once_for_any_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    backbone._compiled_class.cache_clear()
    try:
        base, ids, layout = prepare_model(tiny_model()), some_ids(), StridedLayout(T, 5, 2, 6)
        backbone.compile_layers(backbone.decoder_of(base))
        compiled = torch._dynamo.utils.counters["stats"]
        seen = []
        for sizes in (10, 20, 30, 40), (12, 22, 33, 41), (15, 25, 35, 45):
            _generate(base, "sdpa", (0.5, None, None), layout, ids, SEEDS, sizes)
            seen.append(compiled["unique_graphs"])
    finally:
        backbone._compiled_class.cache_clear()
    assert 0 < seen[0] == seen[1] == seen[2]


def test_what_is_sampled_depends_on_the_sequence_and_its_seed_alone() -> None:
    model = tiny_model()
    ids, seeds = some_ids(rows=5), torch.tensor([3, 1, 4, 1, 5])
    layout = StridedLayout(T, 4, 4, 3)
    together = rollout(model, ids, layout, seeds=seeds)
    for row in range(5):
        alone = rollout(model, ids[row : row + 1], layout, seeds=seeds[row : row + 1])
        assert torch.equal(alone[0], together[row])
    order = torch.tensor([4, 2, 0, 3, 1])
    assert torch.equal(rollout(model, ids[order], layout, seeds=seeds[order]), together[order])
    fewer = rollout(model, ids, StridedLayout(T, 3, 8, 2), seeds=seeds)
    assert torch.equal(fewer, together[:, 1::2, :2, :3])
    assert not torch.equal(rollout(model, ids, layout, seeds=seeds + 1), together)
    torch.manual_seed(0)
    assert torch.equal(rollout(model, ids, layout, seeds=seeds), together)


def test_end_tokens_end_completions() -> None:
    model, ids, layout = tiny_model(), some_ids(), StridedLayout(T, 6, 2, 4)
    ends = torch.tensor([3, 17, 20, 40, 41, 42])
    running_on = rollout(model, ids, layout, temperature=1.5, seeds=SEEDS)
    ended = rollout(model, ids, layout, temperature=1.5, seeds=SEEDS, end_token_ids=ends)
    assert bool(torch.isin(running_on, ends).any())
    for long, short in zip(running_on.reshape(-1, 6).tolist(), ended.reshape(-1, 6).tolist(), strict=True):
        stop = next((g for g, token in enumerate(long) if token in ends), 5)
        assert short == long[: stop + 1] + [long[stop]] * (5 - stop)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"seeds": torch.tensor([1])}, "one seed per sequence"),
        ({"backend": "flex"}, "needs a CUDA device"),
        ({"layout": StridedLayout(T, 4, 4, 2, lengths=torch.tensor([T, T, T]))}, "the batch has 2"),
    ],
)
def test_bad_input_gets_one_clear_line(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout(tiny_model(), **{"input_ids": some_ids(), "layout": StridedLayout(T, 4, 4, 2), **change})


def test_dropout_in_the_training_pass() -> None:
    layout = StridedLayout(T, 4, 4, 2)
    with pytest.raises(ValueError, match="attention dropout"):
        packed_hidden_states(tiny_model("gpt2").train(), torch.zeros(1, layout.packed_length).long(), layout)


@pytest.mark.cuda
@pytest.mark.parametrize("head", [32, 64, 128])
def test_sampled_log_probs_are_training_log_probs(head: int) -> None:
    """Tokens drawn from the cached pass, in bf16, are as likely under the packed pass up to rounding."""
    model = gpu.compiled_model("llama", torch.bfloat16, head)
    ids, where = gpu.some_ids(0).cuda(), StridedLayout(gpu.T, 5, 4, 3)
    flex, sdpa = (rollout(model, ids, where, temperature=0.0, backend=b) for b in ("flex", "sdpa"))  # type: ignore[arg-type]
    assert float((flex == sdpa).float().mean()) > 0.9, "but for ties in bf16"
    completions = rollout(model, ids, where, temperature=1.0, seeds=torch.tensor([1, 2]), backend="flex")
    packed = where.pack(ids, completions)
    rows = []
    for backend in ("flex", "sdpa"):
        with torch.no_grad():
            hidden = packed_hidden_states(model, packed, where, backend)  # type: ignore[arg-type]
            log_p = output_head(model).logits(hidden.flatten(0, 1)).log_softmax(-1).unflatten(0, hidden.shape[:2])
        of_completions = where.completions(log_p)[:, :, :, :-1]
        rows.append(of_completions.gather(-1, completions[..., 1:, None]))
    assert float((rows[0] - rows[1]).abs().mean()) < 0.05
    assert float((rows[0].exp().mean() - rows[1].exp().mean()).abs()) < 0.01
