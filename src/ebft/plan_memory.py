"""How much memory a run needs on one GPU, computed from a model's config.json and the settings: nothing is loaded, and
torch is not imported.

A run has stages, which do not hold the same things (keys and values are gone when the loss is computed, gradients are
not there during rollouts), so what it needs is that of its largest stage. Not counted: what CUDA and NCCL keep for
themselves, and fragmentation; `ROOM` is left for these. Completions are taken to have nothing in common: where they
agree for a while (trees), less is needed. tests/test_plan_memory.py compares this with real models and measured peaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebft.errors import ConfigError

GIB = 2**30
ROOM = 0.1
# 4 bits a weight, a byte of scale for every 64 weights, and 4 bytes for every 256 of those (nested nf4).
_FOUR_BIT = 0.5 + 1 / 64 + 4 / (64 * 256)
# Bytes of optimiser state for a trained weight of 4 bytes; an optimiser that is not here is taken for Adam.
_OPTIMIZERS = {"sgd": 0, "adafactor": 0, "adagrad": 4, "lion_8bit": 1, "adamw_8bit": 2, "adamw_bnb_8bit": 2}
_TWO_MATRICES = ("gpt2", "gpt_neox", "opt", "gptj", "phi", "starcoder2")  # feed-forwards without a gate
_TIED = ("gpt2", "gemma", "gemma2", "gemma3", "gemma3_text", "opt")  # where config.json does not say
_ALIASES = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
_ALIASES |= {"n_inner": "intermediate_size", "ffn_dim": "intermediate_size", "num_local_experts": "num_experts"}
_NEEDED = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_LOGITS = 2**28  # elements of a chunk of them, as in method/cross_entropy.py


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, numbers of elements, without biases and norms, which are a thousandth of it."""

    width: int
    queries: int  # width of all heads together
    keys: int  # width of all key heads together; values have the same
    vocabulary: int
    outside: int  # weights of embeddings, positions and head
    depth: int
    layer: int  # weights of one, with all experts
    active_layer: int  # that a token meets
    inner: int  # width of the feed-forward that a token meets
    copies: int  # experts that a token's state is copied to; 0: no mixture
    adapter: int  # rows and columns of all matrices: weights of LoRA of rank 1

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """From what is in a config.json. In a mixture of experts every layer is taken for one."""
        config = config.get("text_config") or config
        known = {_ALIASES.get(name, name): value for name, value in config.items() if value is not None}
        kind = known.get("model_type", "a model")
        if "kv_lora_rank" in known or not known.keys() >= {*_NEEDED}:
            raise ConfigError(f"config.json: the sizes of {kind} without ordinary attention heads are not known here")
        width, heads, depth, vocabulary = (known[name] for name in _NEEDED)
        head = known.get("head_dim", width // heads)
        queries, keys = heads * head, known.get("num_key_value_heads", heads) * head
        inner, matrices = known.get("intermediate_size", 4 * width), 2 if kind in _TWO_MATRICES else 3
        experts, met = known.get("num_experts", 0), 0
        whole = inner
        if experts:
            met, shared = known.get("num_experts_per_tok", 1), known.get("shared_expert_intermediate_size", 0)
            of_expert = known.get("moe_intermediate_size", inner)
            whole, inner = experts * of_expert + shared, met * of_expert + shared
        attention = 2 * width * (queries + keys)
        tables = vocabulary * (1 if known.get("tie_word_embeddings", kind in _TIED) else 2)
        return cls(
            width,
            queries,
            keys,
            vocabulary,
            outside=width * (tables + known.get("n_positions", 0)),
            depth=depth,
            layer=attention + matrices * width * whole,
            active_layer=attention + matrices * width * inner,
            inner=inner,
            copies=met,
            adapter=depth * (4 * width + 2 * (queries + keys) + matrices * (width + inner)),
        )

    @property
    def parameters(self) -> int:
        return self.outside + self.depth * self.layer

    @property
    def active(self) -> int:
        return self.outside + self.depth * self.active_layer

    def below(self, taps: Sequence[float | int]) -> int:
        """Weights of the feature network: everything up to its highest tap."""
        highest = max(tap if isinstance(tap, int) else int(tap * self.depth) for tap in taps)
        return self.vocabulary * self.width + highest * self.layer


@dataclass(frozen=True)
class Run:
    """The settings that decide how much memory a run needs."""

    shape: Shape
    micro_batch: int  # sequences in one pass with gradients
    rows: int  # sequences rolled out at once
    context: int
    anchors: int  # of a sequence
    samples: int
    horizon: int
    eval_rows: int = 0  # sequences in a batch of evaluation; 0: nothing to evaluate on
    eval_samples: int = 0
    bf16: bool = True
    trained_bytes: int = 4  # of a trained weight
    truth: bool = True  # the loss has next-token cross-entropy, which needs the logits of every token
    checkpointing: bool = False
    optimizer: str = "adamw_torch_fused"
    frozen: int = 0  # weights of frozen networks: features, and the reference of a KL term
    frozen_bytes: int = 2
    adapter: int = 0  # weights of the adapter; 0: the whole model is trained
    four_bit: bool = False  # the base model under an adapter
    sharded: bool = False
    gpus: int = 1

    @property
    def packed(self) -> int:
        """Tokens of one packed sequence: the context, and every completion."""
        return self.context + self.anchors * self.samples * self.horizon

    @property
    def strategy(self) -> str:
        name = ("qlora" if self.four_bit else "lora") if self.adapter else ""
        shards = "fsdp2" if self.sharded else ""
        return "+".join(filter(None, (name, shards))) or ("whole model" if self.gpus == 1 else "ddp")

    def stages(self) -> dict[str, float]:
        """Bytes on one GPU at the peak of each stage, the optimiser's first step taken."""
        shape, of, shards = self.shape, 2 if self.bf16 else self.trained_bytes, self.gpus if self.sharded else 1
        width, head = shape.width, shape.vocabulary * shape.width
        trained, trained_bytes = (self.adapter, 4) if self.adapter else (shape.parameters, self.trained_bytes)
        # Of a sharded model, whole at one time: two layers, one of them prefetched, and all that is in no layer.
        gathered = of * (shape.outside + 2 * shape.layer) if self.sharded else 0
        if self.adapter:
            base = float(of * shape.parameters)
            if self.four_bit:  # a layer is taken out of its 4 bits for as long as it computes
                base = of * (shape.outside + shape.layer) + _FOUR_BIT * (shape.parameters - shape.outside)
            weights = (base + 4 * trained) / shards + gathered
        elif self.sharded:
            weights = trained_bytes * trained / shards + gathered
        else:  # and float32 weights behind a copy in bf16
            weights = (of + (trained_bytes if of < trained_bytes else 0)) * trained
        optimizer = _OPTIMIZERS.get(self.optimizer.removeprefix("paged_"), 8) * trained * trained_bytes / 4
        always = weights + (optimizer + self.frozen_bytes * self.frozen) / shards
        gradients = trained_bytes * trained / shards

        # What a compiled layer keeps of a token for the backward pass: inputs, residuals and outputs; queries and what
        # attention returns, twice, since its product with the output matrix wants another order; the feed-forward's
        # two, whose product is made again, as norms are; what goes into a mixture's experts, and out.
        tokens = of * self.micro_batch * self.packed
        backward = tokens * (4 * width + 3 * shape.queries + 2 * shape.inner + 2 * shape.copies * width)
        activations = shape.depth * (tokens * width if self.checkpointing else backward)
        backward *= 2 if self.checkpointing else 1
        rows = self.anchors * (1 + self.samples * (self.horizon - 1)) + (self.context - 1 if self.truth else 0)
        logits = (4 + of) * self._logits(self.micro_batch * rows) + 2 * of * width * self.micro_batch * rows
        if not self.adapter:
            logits += 4 * head  # its gradient
            # Gradients of weights before they are accumulated: a tied head's waits for that of the embedding.
            backward += gathered + 4 * shape.layer if self.sharded else of * head
        stepping = {"adamw_torch": 4 * trained, "adafactor": 12 * min(head, trained)}.get(self.optimizer, 0) / shards
        found = {
            "rollouts": always + self._rollouts(of, self.rows, self.samples),
            "features": always + self._features(of, self.rows, self.samples),
            "update": always + gradients + activations + max(logits, backward),
            "optimizer step": always + gradients + stepping,
        }
        if n := self.eval_rows:
            passes = (self._rollouts(of, n, self.eval_samples), self._features(of, n, self.eval_samples))
            found["evaluation"] = always + max(4 * self._logits(n * (self.context - 1)), *passes)
        return found

    @property
    def peak(self) -> float:
        return max(self.stages().values())

    def _logits(self, rows: int) -> int:
        """Logits that are there at once."""
        return min(rows, max(_LOGITS // self.shape.vocabulary, self.shape.width)) * self.shape.vocabulary

    def _passing(self, of: int, tokens: int) -> int:
        """What a layer holds of tokens without gradients."""
        return of * tokens * ((2 + self.shape.copies) * self.shape.width + 3 * self.shape.inner)

    def _rollouts(self, of: int, rows: int, samples: int) -> int:
        """Keys and values of all sequences, and one step: the contexts' layers, or logits to sample from."""
        shape, completions = self.shape, self.anchors * samples
        cache = of * 2 * shape.keys * shape.depth * rows * (self.context + completions * (self.horizon - 1))
        step = self._passing(of, rows * max(self.context, completions))
        return cache + max(step, 4 * self._logits(rows * completions))

    def _features(self, of: int, rows: int, samples: int) -> int:
        return self._passing(of, rows * (self.context + self.anchors * samples * self.horizon))
