"""How much memory a run needs on one GPU, counted from its shapes: nothing is loaded, nothing is run.

Each part below is the size of something that the code makes, and says what. An iteration has four stages, which do not
hold the same things (keys and values are gone when the loss is computed, gradients are not there during rollouts), so
what a run needs is that of its largest stage and not the sum of all parts. tests/planning/test_memory.py compares the
parts with real models and the whole with peaks that were measured.

Not counted: what CUDA, its graphs and NCCL keep for themselves, and room lost between tensors. `ROOM` is left for it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ebft.config.recipe import Recipe
from ebft.errors import ConfigError
from ebft.method.cross_entropy import rows_per_chunk
from ebft.method.head import Head
from ebft.model.backbone import decoder_config, decoder_layers, decoder_of
from ebft.model.features import cut_decoder, resolve_taps

Way = Literal["ddp", "fsdp2", "lora", "lora+fsdp2", "qlora"]
WAYS: dict[Way, str] = {
    "ddp": "the whole model on every GPU",
    "fsdp2": "the model, its gradients and optimiser cut into as many pieces as there are GPUs",
    "lora": "an adapter on a frozen base model in bf16, on every GPU",
    "lora+fsdp2": "the same, in pieces",
    "qlora": "an adapter on a frozen base model in 4 bits, on every GPU",
}
ADAPTED: tuple[Way, ...] = ("lora", "lora+fsdp2", "qlora")
SHARDED: tuple[Way, ...] = ("fsdp2", "lora+fsdp2")
GIB = 2**30
ROOM = 0.1
_FLOAT = 4
# 4 bits a weight, a byte of scale for every 64 weights, and 4 bytes for every 256 of those (bitsandbytes' nf4 with
# nested quantisation).
_FOUR_BIT = 0.5 + 1 / 64 + 4 / (64 * 256)
# Bytes of optimiser state for a trained number of 4 bytes; whatever is not here is taken for Adam.
_OPTIMIZERS = {
    "sgd": 0.0,
    "adagrad": 4.0,
    "lion_32bit": 4.0,
    "lion_8bit": 1.0,
    "adamw_8bit": 2.0,
    "adamw_bnb_8bit": 2.0,
}


@dataclass(frozen=True)
class Shape:
    """A model's numbers, all in elements."""

    parameters: int
    layers: int
    layer: int  # parameters of one
    frozen: int  # of the feature network: everything up to its highest tap
    in_linear: int  # in the layers' matrices: what is kept in 4 bits with qlora
    largest: int  # of the largest parameter
    largest_linear: int  # of the largest matrix in a layer
    factored: int  # rows + columns of all matrices, and all of the rest: what Adafactor keeps
    width: int
    queries: int  # width of all heads together
    keys: int  # width of all key-value heads together
    feed_forward: int
    vocabulary: int
    tied: bool  # the head is the embedding

    @classmethod
    def of(cls, model: nn.Module, feature_layers: list[float]) -> Shape:
        """Of a model of transformers, on any device, the meta device included."""
        decoder = decoder_of(model)
        config, layers = decoder_config(decoder), decoder_layers(decoder)[1]
        parameters = list(model.parameters())
        taps = resolve_taps([int(x) if float(x) > 1 else float(x) for x in feature_layers], len(layers))
        linear = [m.weight.numel() for m in layers.modules() if isinstance(m, nn.Linear)]
        heads = config.num_attention_heads
        head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        return cls(
            parameters=count(parameters),
            layers=len(layers),
            layer=max(count(layer.parameters()) for layer in layers),
            frozen=count(cut_decoder(decoder, max(taps)).parameters()),
            in_linear=sum(linear),
            largest=max(p.numel() for p in parameters),
            largest_linear=max(linear, default=0),
            factored=sum(sum(p.shape[-2:]) if p.dim() >= 2 else p.numel() for p in parameters),
            width=config.hidden_size,
            queries=heads * head_width,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * head_width,
            feed_forward=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
            vocabulary=head.weight.shape[0],
            tied=head.weight is embeddings.weight,
        )

    @property
    def outside_layers(self) -> int:
        return self.parameters - self.layers * self.layer


@dataclass(frozen=True)
class Work:
    """What of a recipe decides its memory."""

    micro_batch: int  # sequences in one pass with gradients
    rows: int  # sequences rolled out at once
    context: int
    anchors: int  # of a sequence
    samples: int
    horizon: int
    bf16: bool = True
    trained_bytes: int = _FLOAT  # of a trained number: model_dtype
    truth: bool = True  # the loss has next-token cross-entropy, so every token's logits are made
    checkpointing: bool = False
    optimizer: str = "adamw_torch_fused"
    divergence: bool = False  # a KL term, and so a reference model
    own_features: bool = False  # a copy for the feature network even with an adapter
    other_features: int | None = None  # parameters of another feature network
    average_features: bool = False
    adapter: int = 0  # parameters of the adapter, for lora and qlora
    gpus: int = 1
    device: str = "cuda"

    @classmethod
    def of(cls, recipe: Recipe, gpus: int = 1, anchors: int | None = None, device: str = "cuda") -> Work:
        """From a recipe; anchors where the data have been looked at, otherwise as many as fit."""
        t, dtypes = recipe.training, {"float32": 4, "bfloat16": 2, "float16": 2}
        if anchors is None:
            anchors = 1 if t.anchors == "answer_start" else (t.context_length - t.horizon) // t.stride
        window = t.per_device_train_batch_size * t.gradient_accumulation_steps
        return cls(
            micro_batch=t.per_device_train_batch_size,
            rows=max(t.rollout_batch_size or window, t.per_device_eval_batch_size),  # evaluation rolls out as well
            context=t.context_length,
            anchors=anchors,
            samples=t.samples,
            horizon=t.horizon,
            bf16=bool(t.bf16 or (t.bf16_if_fast and device == "cuda")),
            trained_bytes=dtypes[recipe.model.model_dtype],
            truth=t.gamma != 0,
            checkpointing=t.gradient_checkpointing,
            optimizer=str(getattr(t.optim, "value", t.optim)),
            divergence=t.kl_weight != 0,
            own_features=t.feature_source in ("copy", "random", "average"),
            average_features=t.feature_source == "average",
            gpus=gpus,
            device=device,
        )

    @property
    def packed(self) -> int:
        """Tokens of one packed sequence: the context, and every completion."""
        return self.context + self.anchors * self.samples * self.horizon

    @property
    def number(self) -> int:
        """Bytes of a number that is computed with."""
        return 2 if self.bf16 else self.trained_bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    weights: float  # that compute
    master: float  # float32 weights behind a bf16 copy
    optimizer: float
    gradients: float
    frozen: float  # the feature network, and the reference model of a KL term
    activations: float  # kept from forward to backward, of one micro-batch
    backward: float  # gradients of activations, and with gradient checkpointing those of a layer made again
    logits: float  # a chunk of them with its gradient, and the gradient of the head
    kv_cache: float  # keys and values of the sequences that are rolled out at once
    forward: float  # states of the feature network's pass over the sequences that are rolled out at once
    rolling: float  # states of one step of a rollout, or a chunk of logits to sample from
    stepping: float  # what the optimiser makes on the way

    def stages(self) -> dict[str, float]:
        """What is there at the fullest moment of each stage of an iteration."""
        always = self.weights + self.master + self.optimizer + self.frozen
        return {
            "rollout": always + self.kv_cache + self.rolling,
            "features": always + self.forward,
            "update": always + self.gradients + self.activations + max(self.logits, self.backward),
            "step": always + self.gradients + self.stepping,
        }

    @property
    def peak(self) -> float:
        return max(self.stages().values())

    def parts(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def estimate(shape: Shape, work: Work, way: Way) -> Memory:
    """The memory of one GPU. The first optimiser step has been taken, and a window has several micro-batches."""
    adapted, shards = way in ADAPTED, work.gpus if way in SHARDED else 1
    if adapted and not work.adapter:
        raise ConfigError(f"{way} needs the number of the adapter's parameters")
    trained = work.adapter if adapted else shape.parameters
    # Adapters are float32 whatever the base model is in.
    trained_bytes = _FLOAT if adapted else work.trained_bytes
    tokens = work.micro_batch * work.packed
    # What a compiled layer keeps of a token: inputs, norms, residuals and outputs; queries and what attention returns,
    # twice, since its product with the output matrix wants another order; and the feed-forward's three.
    per_token = work.number * (5 * shape.width + 3 * shape.queries + 3 * shape.feed_forward)
    between_layers = work.number * shape.width * shape.layers * tokens
    chunk = _chunk_rows(shape, work, work.micro_batch * _loss_rows(work)) * shape.vocabulary
    passing = work.number * (2 * shape.width + 3 * shape.feed_forward)  # what a layer holds of a token on its way
    side_by_side = work.anchors * work.samples
    sampled = _chunk_rows(shape, work, work.rows * side_by_side) * shape.vocabulary
    rolled_out = work.rows * (work.context + side_by_side * (work.horizon - 1))
    weights, master = _weights(shape, work, way)
    return Memory(
        weights=weights,
        master=master,
        optimizer=_optimizer(shape, work, trained, trained_bytes) / shards,
        gradients=trained_bytes * trained / shards,
        frozen=_frozen(shape, work, way),
        activations=between_layers if work.checkpointing else per_token * shape.layers * tokens,
        backward=per_token * tokens * (2 if work.checkpointing else 1) + _arriving_gradients(shape, work, way),
        # Logits in float32, their gradient in what is computed with; rows of hidden states and of their gradients.
        logits=chunk * (_FLOAT + work.number)
        + 2 * work.number * shape.width * work.micro_batch * _loss_rows(work)
        + (0 if adapted else _FLOAT * shape.vocabulary * shape.width),
        kv_cache=2 * work.number * shape.keys * shape.layers * rolled_out,
        forward=passing * work.rows * work.packed + _gathered_features(shape, work, way),
        rolling=max(passing * work.rows * max(work.context, side_by_side), sampled * _FLOAT),
        stepping=_stepping(shape, work, trained) / shards,
    )


def _weights(shape: Shape, work: Work, way: Way) -> tuple[float, float]:
    """What computes, and the float32 weights behind it."""
    if way == "lora":
        return work.number * shape.parameters + _FLOAT * work.adapter, 0
    if way == "lora+fsdp2":
        pieces = (work.number * shape.parameters + _FLOAT * work.adapter) / work.gpus
        return pieces + work.number * _gathered(shape), 0
    if way == "qlora":
        # A matrix is taken out of its 4 bits for as long as it is multiplied with.
        outside = work.number * (shape.parameters - shape.in_linear + shape.largest_linear)
        return outside + _FOUR_BIT * shape.in_linear + _FLOAT * work.adapter, 0
    if way == "fsdp2":
        return work.number * _gathered(shape), work.trained_bytes * shape.parameters / work.gpus
    if work.number < work.trained_bytes:
        return work.number * shape.parameters, work.trained_bytes * shape.parameters
    return work.number * shape.parameters, 0


def _gathered(shape: Shape) -> int:
    """Of a model in pieces, the layer that computes, the one that is on its way, and all that is in no layer."""
    return shape.outside_layers + 2 * shape.layer


def _frozen(shape: Shape, work: Work, way: Way) -> float:
    adapted, shards = way in ADAPTED, work.gpus if way in SHARDED else 1
    number = _FLOAT if work.average_features else work.number
    features: float
    if work.other_features is not None:
        features = work.number * work.other_features / shards
    elif adapted and not work.own_features:
        features = 0  # the base model itself, with its adapter off
    else:
        features = number * shape.frozen / shards
    reference = work.number * shape.parameters / shards if work.divergence and not adapted else 0
    return features + reference


def _gathered_features(shape: Shape, work: Work, way: Way) -> float:
    """Of a feature network in pieces, what is whole while it computes: embeddings and two layers."""
    if way not in SHARDED or (way in ADAPTED and not work.own_features):
        return 0
    number = _FLOAT if work.average_features else work.number
    return number * (2 * shape.layer + shape.vocabulary * shape.width)


def _optimizer(shape: Shape, work: Work, trained: int, trained_bytes: int) -> float:
    if work.optimizer == "adafactor":
        # An adapter's matrices are narrow, so that rows and columns are not far from all of it.
        return _FLOAT * (shape.factored if trained == shape.parameters else trained)
    name = work.optimizer.removeprefix("paged_")
    return _OPTIMIZERS.get(name, 8.0) * trained * trained_bytes / _FLOAT


def _stepping(shape: Shape, work: Work, trained: int) -> float:
    if work.optimizer == "adafactor":
        return 3 * _FLOAT * min(shape.largest, trained)  # squares, their mean and the update, parameter by parameter
    return _FLOAT * trained if work.optimizer == "adamw_torch" else 0  # the roots of all second moments at once


def _arriving_gradients(shape: Shape, work: Work, way: Way) -> float:
    """Gradients of weights on their way to where they are added up."""
    if way in ADAPTED:
        return 0
    head = shape.vocabulary * shape.width
    if way == "fsdp2":
        # Two layers' and the embedding's and head's, whole, until they are shared out in float32.
        return work.number * (shape.outside_layers + 2 * shape.layer) + _FLOAT * shape.layer
    return work.number * (head if shape.tied else shape.layer)  # a tied head's waits for the embedding's


def _loss_rows(work: Work) -> int:
    """Rows of one sequence that predict something (losses._Predictors)."""
    truth = work.context - 1 if work.truth else 0
    return work.anchors * (1 + work.samples * (work.horizon - 1)) + truth


def _chunk_rows(shape: Shape, work: Work, rows: int) -> int:
    weight = torch.empty(shape.vocabulary, shape.width, device="meta")
    return min(rows, rows_per_chunk(Head(weight), torch.device(work.device)))


def largest_micro_batch(shape: Shape, work: Work, way: Way, room: float) -> int:
    """How many sequences a pass with gradients can take in `room` bytes; 0: not even one."""
    return _largest(lambda n: estimate(shape, replace(work, micro_batch=n), way).stages(), ("update", "step"), room)


def largest_rollout_batch(shape: Shape, work: Work, way: Way, room: float) -> int:
    """How many sequences can be rolled out and looked at at once."""
    return _largest(lambda n: estimate(shape, replace(work, rows=n), way).stages(), ("rollout", "features"), room)


def _largest(stages: Any, names: tuple[str, ...], room: float, at_most: int = 4096) -> int:
    fits, too_many = 0, at_most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        found = stages(middle)
        if max(found[name] for name in names) <= room:
            fits = middle
        else:
            too_many = middle
    return fits


def meta_model(config: Any) -> Any:
    """The model of a configuration without weights."""
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def way_of(recipe: Recipe) -> Way:
    """How the recipe trains."""
    sharded = getattr(recipe.training, "sharding", None) or recipe.training.fsdp
    if recipe.model.load_in_4bit:
        return "qlora"
    if recipe.model.adapted:
        return "lora+fsdp2" if sharded else "lora"
    return "fsdp2" if sharded else "ddp"


def count(parameters: Any) -> int:
    return sum(p.numel() for p in parameters)
