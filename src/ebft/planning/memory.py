"""How much memory a run needs on one GPU, computed from its sizes: nothing is loaded, nothing is run.

Each part below is the size of something that the code makes, and says what. A run has stages, which do not hold the
same things (keys and values are gone when the loss is computed, gradients are not there during rollouts and in
evaluation), so what a run needs is that of its largest stage and not the sum of all parts.
tests/planning/test_memory.py compares the parts with real models and the whole with measured peaks.

Not counted: what CUDA, its graphs and NCCL keep for themselves, and fragmentation. `ROOM` is left for these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ebft.errors import ConfigError
from ebft.planning.strategies import Strategy
from ebft.planning.workload import Workload

if TYPE_CHECKING:  # imports torch and transformers
    from ebft.planning.model_shape import FeedForward, ModelShape

GIB = 2**30
ROOM = 0.1
_FLOAT = 4
# 4 bits a weight, a byte of scale for every 64 weights, and 4 bytes for every 256 of those (bitsandbytes' nf4 with
# nested quantisation).
_FOUR_BIT = 0.5 + 1 / 64 + 4 / (64 * 256)
# Bytes of optimiser state for a trained weight of 4 bytes; an optimiser that is not here is taken for Adam.
_OPTIMIZERS = {
    "sgd": 0.0,
    "adagrad": 4.0,
    "lion_32bit": 4.0,
    "lion_8bit": 1.0,
    "adamw_8bit": 2.0,
    "adamw_bnb_8bit": 2.0,
}


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    weights: float  # that compute
    master: float  # float32 weights behind a bf16 copy
    optimizer: float
    gradients: float
    frozen: float  # the feature network, and the reference model of a KL term
    activations: float  # kept from forward to backward, of one micro-batch
    backward: float  # gradients of activations, and with gradient checkpointing a layer's recomputed activations
    logits: float  # a chunk of them with its gradient, and the gradient of the head
    kv_cache: float  # keys and values of the sequences that are rolled out at once
    forward: float  # states of the feature network's pass over the sequences that are rolled out at once
    rolling: float  # states of one step of a rollout, or a chunk of logits to sample from
    stepping: float  # temporary tensors of the optimiser's step
    evaluation: float  # most of what a batch of evaluation needs at once, with its own numbers of sequences and samples

    def stages(self) -> dict[str, float]:
        """What is there at the peak of each stage of a run."""
        always = self.weights + self.master + self.optimizer + self.frozen
        stages = {
            "rollout": always + self.kv_cache + self.rolling,
            "features": always + self.forward,
            "update": always + self.gradients + self.activations + max(self.logits, self.backward),
            "step": always + self.gradients + self.stepping,
        }
        # Between two steps: the optimiser's state is there, and no gradients.
        return stages | {"evaluation": always + self.evaluation} if self.evaluation else stages

    @property
    def peak(self) -> float:
        return max(self.stages().values())

    @property
    def peak_stage(self) -> str:
        stages = self.stages()
        return max(stages, key=lambda stage: stages[stage])


def estimate(shape: ModelShape, work: Workload, strategy: Strategy) -> Memory:
    """The memory of one GPU. The first optimiser step has been taken, and a window has several micro-batches."""
    if strategy.adapter and not work.adapter:
        raise ConfigError(f"{strategy.name} needs the number of the adapter's parameters")
    shards = work.gpus if strategy.sharded else 1
    trained = work.adapter if strategy.adapter else shape.parameters
    # Adapters are float32 whatever the base model is in.
    trained_bytes = _FLOAT if strategy.adapter else work.trained_bytes
    tokens = work.micro_batch * work.packed
    kept = [work.compute_bytes * tokens * _kept_by(layer, shape) for layer in shape.feed_forward]
    between_layers = work.compute_bytes * shape.width * shape.layers * tokens
    rebuilt = _rebuilt_experts(shape, work, strategy)
    kv_cache, rolling, forward = _without_gradients(shape, work, strategy)
    weights, master = _weights(shape, work, strategy)
    return Memory(
        weights=weights,
        master=master,
        optimizer=_optimizer(shape, work, trained, trained_bytes) / shards,
        gradients=trained_bytes * trained / shards,
        frozen=_frozen(shape, work, strategy) / shards,
        activations=between_layers if work.checkpointing else sum(kept) + shape.mixtures * rebuilt,
        backward=(max(kept) + rebuilt) * (2 if work.checkpointing else 1) + _arriving_gradients(shape, work, strategy),
        logits=_logits(shape, work, strategy),
        kv_cache=kv_cache,
        forward=forward,
        rolling=rolling,
        stepping=_stepping(shape, work, trained) / shards,
        evaluation=_evaluation(shape, work.evaluation, strategy) if work.eval_rows else 0,
    )


def _kept_by(layer: FeedForward, shape: ModelShape) -> int:
    """Elements that a compiled layer keeps of a token for the backward pass: inputs, norms, residuals and outputs;
    queries and what attention returns, twice, since its product with the output matrix wants another order; the
    feed-forward's three; and of a mixture, what goes into each of the token's experts and what comes out.

    Norms and activations are made again in the backward pass where torch finds that cheap (`prepare_compiling`), a
    tenth of the peak of Qwen2.5-1.5B. That is not taken off: with adapters and mixtures it has not been measured."""
    return 5 * shape.width + 3 * shape.queries + 3 * layer.inner + 2 * layer.experts * shape.width


def _passing(shape: ModelShape) -> int:
    """Elements that the largest layer holds of a token without gradients. What goes into experts is gone when their
    output is there."""
    return 2 * shape.width + max(3 * layer.inner + layer.experts * shape.width for layer in shape.feed_forward)


def _without_gradients(shape: ModelShape, work: Workload, strategy: Strategy) -> tuple[float, float, float]:
    """Of the sequences that are rolled out at once: keys and values, a step of the rollout, and features."""
    passing = work.compute_bytes * _passing(shape)
    completions = work.anchors * work.samples  # of a sequence, generated side by side
    sampled = min(work.rows * completions, shape.rows_of_logits(work.device)) * shape.vocabulary
    rolled_out = work.rows * (work.context + completions * (work.horizon - 1))
    kv_cache = work.compute_bytes * (shape.keys + shape.values) * shape.layers * rolled_out
    rolling = max(
        passing * work.rows * max(work.context, completions) + _rebuilt_experts(shape, work, strategy),
        sampled * _FLOAT,
    )
    forward = passing * work.rows * work.packed + _gathered_features(shape, work, strategy)
    return kv_cache, rolling, forward


def _evaluation(shape: ModelShape, work: Workload, strategy: Strategy) -> float:
    """The largest of what evaluation does one after the other: cross-entropy, rollouts and features."""
    kv_cache, rolling, forward = _without_gradients(shape, work, strategy)
    rows = work.rows * (work.context - 1)
    logits = _FLOAT * min(rows, shape.rows_of_logits(work.device)) * shape.vocabulary
    return max(logits + work.compute_bytes * shape.width * rows, kv_cache + rolling, forward)


def _rebuilt_experts(shape: ModelShape, work: Workload, strategy: Strategy) -> float:
    """A layer's experts with the adapter's part added, which a product needs and the backward pass needs again."""
    return work.compute_bytes * work.rebuilt / shape.mixtures if strategy.adapter and work.rebuilt else 0


def _weights(shape: ModelShape, work: Workload, strategy: Strategy) -> tuple[float, float]:
    """Weights that compute, and the float32 weights behind them."""
    gathered = work.compute_bytes * shape.gathered if strategy.sharded else 0
    if strategy.adapter:
        base: float = work.compute_bytes * shape.parameters
        if strategy.four_bit:
            # A matrix is taken out of its 4 bits for as long as it is multiplied with.
            outside = shape.parameters - shape.in_linear + shape.largest_linear
            base = work.compute_bytes * outside + _FOUR_BIT * shape.in_linear
        return (base + _FLOAT * work.adapter) / (work.gpus if strategy.sharded else 1) + gathered, 0
    if strategy.sharded:
        return gathered, work.trained_bytes * shape.parameters / work.gpus
    master = work.trained_bytes * shape.parameters if work.compute_bytes < work.trained_bytes else 0
    return work.compute_bytes * shape.parameters, master


def _frozen(shape: ModelShape, work: Workload, strategy: Strategy) -> int:
    """The feature network and the reference model, on all GPUs together if they are sharded."""
    features = work.other_features
    if features is None:
        # Without a copy of its own, it is the base model itself, with its adapter off.
        features = 0 if strategy.adapter and not work.own_features else shape.frozen
    reference = shape.parameters if work.divergence and not strategy.adapter else 0
    return work.feature_bytes * features + work.compute_bytes * reference


def _gathered_features(shape: ModelShape, work: Workload, strategy: Strategy) -> int:
    """Of a sharded feature network, what is whole while it computes: embeddings and two layers."""
    if not strategy.sharded or (strategy.adapter and not work.own_features):
        return 0
    return work.feature_bytes * (2 * shape.layer + shape.vocabulary * shape.width)


def _optimizer(shape: ModelShape, work: Workload, trained: int, trained_bytes: int) -> float:
    if work.optimizer == "adafactor":
        # An adapter's matrices are narrow, so that rows and columns are not far from all of it.
        return _FLOAT * (shape.factored if trained == shape.parameters else trained)
    name = work.optimizer.removeprefix("paged_")
    return _OPTIMIZERS.get(name, 8.0) * trained * trained_bytes / _FLOAT


def _stepping(shape: ModelShape, work: Workload, trained: int) -> int:
    if work.optimizer == "adafactor":
        return 3 * _FLOAT * min(shape.largest, trained)  # squares, their mean and the update, parameter by parameter
    return _FLOAT * trained if work.optimizer == "adamw_torch" else 0  # the roots of all second moments at once


def _logits(shape: ModelShape, work: Workload, strategy: Strategy) -> int:
    """Logits in float32 with their gradient, hidden states with theirs, and the gradient of the head."""
    rows = work.micro_batch * work.loss_rows
    chunk = min(rows, shape.rows_of_logits(work.device)) * shape.vocabulary
    head = 0 if strategy.adapter else _FLOAT * shape.vocabulary * shape.width
    return chunk * (_FLOAT + work.compute_bytes) + 2 * work.compute_bytes * shape.width * rows + head


def _arriving_gradients(shape: ModelShape, work: Workload, strategy: Strategy) -> int:
    """Gradients of weights before they are accumulated."""
    if strategy.adapter:
        return 0
    if strategy.sharded:
        # Two layers' and the embedding's and head's, whole, until they are sharded in float32.
        return work.compute_bytes * shape.gathered + _FLOAT * shape.layer
    head = shape.vocabulary * shape.width
    return work.compute_bytes * (head if shape.tied else shape.layer)  # a tied head's waits for the embedding's


def largest_micro_batch(shape: ModelShape, work: Workload, strategy: Strategy, room: float) -> int:
    """How many sequences a pass with gradients can take in `room` bytes; 0: not even one."""

    def needed(sequences: int) -> float:
        stages = estimate(shape, replace(work, micro_batch=sequences), strategy).stages()
        return max(stages["update"], stages["step"])

    return _largest(needed, room)


def largest_rollout_batch(shape: ModelShape, work: Workload, strategy: Strategy, room: float) -> int:
    """How many sequences can be rolled out at once, and their features computed."""

    def needed(sequences: int) -> float:
        stages = estimate(shape, replace(work, rows=sequences), strategy).stages()
        return max(stages["rollout"], stages["features"])

    return _largest(needed, room)


def largest_eval_batch(shape: ModelShape, work: Workload, strategy: Strategy, room: float) -> int:
    """How many sequences a batch of evaluation can have."""
    return _largest(lambda n: estimate(shape, replace(work, eval_rows=n), strategy).stages()["evaluation"], room)


def _largest(needed: Callable[[int], float], room: float, at_most: int = 4096) -> int:
    fits, too_many = 0, at_most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if needed(middle) <= room:
            fits = middle
        else:
            too_many = middle
    return fits
