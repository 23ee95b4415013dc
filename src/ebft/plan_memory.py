"""How much memory a run needs on one GPU, computed from a model's config.json and the settings: nothing is loaded, and
torch is not imported.

A run has stages, which do not hold the same things (keys and values are gone when the loss is computed, gradients are
not there during rollouts), so what it needs is that of its largest stage. Not counted: what CUDA and NCCL keep for
themselves, and fragmentation; `ROOM` is left for these. Completions are taken to have nothing in common; `Run.usual` is
less. tests/test_plan_memory.py compares both with real models and measured peaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
# Of all generated tokens, what trees leave for the update, where completions agree as a real model's do: by samples, at
# temperatures 0.6 and 1 (benchmarks/results/sharing-smollm2-135m.json).
_LEFT_BY_TREES = {2: (0.48, 0.58), 4: (0.41, 0.54), 8: (0.35, 0.51), 16: (0.29, 0.48)}


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
    """What decides how much memory a run needs: a model, GPUs, and settings of `ebft train` by their names."""

    shape: Shape
    settings: Mapping[str, Any]  # all of them, also where they are the defaults
    gpus: int = 1
    feature_model: Shape | None = None  # None: the model itself

    def but(self, **settings: object) -> Run:
        return replace(self, settings={**self.settings, **settings})

    @property
    def adapted(self) -> bool:
        return self.settings["lora"] or self.settings["peft"] is not None

    @property
    def sharded(self) -> bool:
        return self.settings["fsdp"] not in (None, False, "", "none")

    @property
    def bf16(self) -> bool:
        return self.settings["bf16"] or self.settings["bf16_if_fast"]

    @property
    def anchors(self) -> int:
        """Of one sequence, at most."""
        settings = self.settings
        if settings["anchors"] == "answer_start":
            return 1
        return (settings["context_length"] - settings["horizon"]) // settings["stride"]

    @property
    def packed(self) -> int:
        """Tokens of one packed sequence: the context, and every completion."""
        return self.settings["context_length"] + self.anchors * self.settings["samples"] * self.settings["horizon"]

    @property
    def strategy(self) -> str:
        name = ("qlora" if self.settings["load_in_4bit"] else "lora") if self.adapted else ""
        shards = "fsdp2" if self.sharded else ""
        return "+".join(filter(None, (name, shards))) or ("whole model" if self.gpus == 1 else "ddp")

    @property
    def frozen(self) -> int:
        """Weights of the feature network, and of a reference model. With an adapter both are the model without it."""
        settings, reference = self.settings, 0
        if settings["kl_weight"] and not self.adapted:
            reference = self.shape.parameters
        if self.feature_model is None and self.adapted and settings["feature_source"] in ("auto", "adapter_off"):
            return reference
        taps = [int(tap) if tap > 1 else tap for tap in settings["feature_layers"]]
        return reference + (self.feature_model or self.shape).below(taps)

    @property
    def peak(self) -> float:
        """At most, with completions that have nothing in common."""
        return max(self.stages().values())

    @property
    def usual(self) -> float:
        """With completions that agree as a real model's do."""
        samples = min(_LEFT_BY_TREES, key=lambda n: abs(n - self.settings["samples"]))
        return max(self.stages(_LEFT_BY_TREES[samples][self.settings["temperature"] > 0.8]).values())

    def stages(self, left: float = 1.0) -> dict[str, float]:
        """Bytes on one GPU at the peak of each stage, the optimiser's first step taken.

        left: of the generated tokens, what the update computes.
        """
        settings, shape = self.settings, self.shape
        width, head, shards = shape.width, shape.vocabulary * shape.width, self.gpus if self.sharded else 1
        context, horizon, samples = settings["context_length"], settings["horizon"], settings["samples"]
        micro_batch, checkpointing = settings["per_device_train_batch_size"], settings["gradient_checkpointing"]
        trained, behind = shape.parameters, 4 if settings["model_dtype"] == "float32" else 2
        of = 2 if self.bf16 else behind  # bytes of what computes
        # Of a sharded model, whole at one time: two layers, one of them prefetched, and all that is in no layer.
        gathered = of * (shape.outside + 2 * shape.layer) if self.sharded else 0
        if self.adapted:  # any adapter weighs little beside the rest
            trained, behind = settings["lora_r"] * shape.adapter, 4
            base = float(of * shape.parameters)
            if settings["load_in_4bit"]:  # a layer is taken out of its 4 bits for as long as it computes
                base = of * (shape.outside + shape.layer) + _FOUR_BIT * (shape.parameters - shape.outside)
            weights = (base + 4 * trained) / shards + gathered
        elif self.sharded:
            weights = behind * trained / shards + gathered
        else:  # and float32 weights behind a copy in bf16
            weights = (of + (behind if of < behind else 0)) * trained
        optimizer = _OPTIMIZERS.get(settings["optim"].removeprefix("paged_"), 8) * trained * behind / 4
        frozen = (4 if settings["feature_source"] == "average" or not self.bf16 else 2) * self.frozen
        always = weights + (optimizer + frozen) / shards
        gradients = behind * trained / shards

        generated = self.anchors * samples * horizon
        if settings["trees"]:  # the last token of a completion predicts nothing
            generated *= min(left, 1 - 1 / horizon)
        # What a compiled layer keeps of a token for the backward pass: inputs, residuals and outputs; queries and what
        # attention returns, twice, since its product with the output matrix wants another order; the feed-forward's
        # two, whose product is made again, as norms are; what goes into a mixture's experts, and out.
        tokens = of * micro_batch * (context + generated)
        backward = tokens * (4 * width + 3 * shape.queries + 2 * shape.inner + 2 * shape.copies * width)
        activations = shape.depth * (tokens * width if checkpointing else backward)
        backward *= 2 if checkpointing else 1
        rows = micro_batch * (self.anchors * (1 + samples * (horizon - 1)) + (context - 1 if settings["gamma"] else 0))
        logits = (4 + of) * self._logits(rows) + 2 * of * width * rows
        if not self.adapted:
            logits += 4 * head  # its gradient
            # Gradients of weights before they are accumulated: a tied head's waits for that of the embedding.
            backward += gathered + 4 * shape.layer if self.sharded else of * head
        stepping = {"adamw_torch": 4 * trained, "adafactor": 12 * min(head, trained)}.get(settings["optim"], 0) / shards
        at_once = settings["rollout_batch_size"] or micro_batch * settings["gradient_accumulation_steps"]
        found = {
            "rollouts": always + self._rollouts(of, at_once, samples),
            "features": always + self._features(of, at_once, samples),
            "update": always + gradients + activations + max(logits, backward),
            "optimizer step": always + gradients + stepping,
        }
        if settings["validation_dataset"] is not None or settings["validation_split"]:  # before and after, at least
            n, drawn = settings["per_device_eval_batch_size"], settings["eval_samples"] or samples
            passes = (self._rollouts(of, n, drawn), self._features(of, n, drawn))
            found["evaluation"] = always + max(4 * self._logits(n * (context - 1)), *passes)
        return found

    def _logits(self, rows: int) -> int:
        """Logits that are there at once."""
        return min(rows, max(_LOGITS // self.shape.vocabulary, self.shape.width)) * self.shape.vocabulary

    def _passing(self, of: int, tokens: int) -> int:
        """What a layer holds of tokens without gradients."""
        return of * tokens * ((2 + self.shape.copies) * self.shape.width + 3 * self.shape.inner)

    def _rollouts(self, of: int, rows: int, samples: int) -> int:
        """Keys and values of all sequences, and one step: the contexts' layers, or logits to sample from."""
        shape, completions, context = self.shape, self.anchors * samples, self.settings["context_length"]
        kept = context + completions * (self.settings["horizon"] - 1)
        step = self._passing(of, rows * max(context, completions))
        return of * 2 * shape.keys * shape.depth * rows * kept + max(step, 4 * self._logits(rows * completions))

    def _features(self, of: int, rows: int, samples: int) -> int:
        return self._passing(
            of, rows * (self.settings["context_length"] + self.anchors * samples * self.settings["horizon"])
        )
