"""How much memory a run needs on one GPU, by rule: from a model's config.json and the settings, without torch.

A run has stages, which do not hold the same things (keys and values are gone when the loss is computed, gradients are
not there during rollouts), so what it needs is that of its largest stage. Not counted: what CUDA and NCCL keep for
themselves, and fragmentation; `ROOM` is left for these. tests/test_plan_memory.py compares with measured peaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from ebft.config.settings import Values
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


class Shape:
    """Sizes of a model, numbers of elements, without biases and norms, which are a thousandth of it."""

    def __init__(self, config: Values) -> None:
        """From what is in a config.json. In a mixture of experts every layer is taken for one."""
        config = config.get("text_config") or config
        known = {_ALIASES.get(name, name): value for name, value in config.items() if value is not None}
        kind = known.get("model_type", "a model")
        if "kv_lora_rank" in known or not known.keys() >= {*_NEEDED}:
            raise ConfigError(f"config.json: the sizes of {kind} without ordinary attention heads are not known here")
        width, heads, depth, vocabulary = (known[name] for name in _NEEDED)
        head = known.get("head_dim", width // heads)
        queries, keys = heads * head, known.get("num_key_value_heads", heads) * head  # of all heads together
        met, inner = 0, known.get("intermediate_size", 4 * width)
        whole = inner
        if experts := known.get("num_experts", 0):
            met, shared = known.get("num_experts_per_tok", 1), known.get("shared_expert_intermediate_size", 0)
            of_expert = known.get("moe_intermediate_size", inner)
            whole, inner = experts * of_expert + shared, met * of_expert + shared
        attention, matrices = 2 * width * (queries + keys), 2 if kind in _TWO_MATRICES else 3
        tables = vocabulary * (1 if known.get("tie_word_embeddings", kind in _TIED) else 2)
        self.width, self.queries, self.keys, self.vocabulary, self.depth = width, queries, keys, vocabulary, depth
        self.inner = inner  # width of the feed-forward that a token meets
        self.copies = met  # experts that a token's state is copied to; 0: no mixture
        self.outside = width * (tables + known.get("n_positions", 0))  # weights of embeddings, positions and head
        self.layer = attention + matrices * width * whole
        self.parameters = self.outside + depth * self.layer
        self.active = self.outside + depth * (attention + matrices * width * inner)  # those that a token meets
        self.adapter = depth * (4 * width + 2 * (queries + keys) + matrices * (width + inner))  # LoRA of rank 1

    def below(self, taps: Sequence[float | int]) -> int:
        """Weights of the feature network: everything up to its highest tap."""
        highest = max(int(tap) if tap > 1 or isinstance(tap, int) else int(tap * self.depth) for tap in taps)
        return self.vocabulary * self.width + highest * self.layer


class Run:
    """What decides how much memory a run needs: a model, GPUs, and settings of `ebft train` by their names."""

    def __init__(self, shape: Shape, settings: Values, gpus: int = 1, features: Shape | None = None) -> None:
        """settings: all of them, also where they are the defaults. features: None for the model itself."""
        self.shape, self.settings, self.gpus, self.features = shape, settings, gpus, features
        of = self.of = SimpleNamespace(**settings)
        self.adapted = of.lora or of.peft is not None
        self.sharded = of.fsdp not in (None, False, "", "none")
        self.bf16 = of.bf16 or of.bf16_if_fast
        strided = (of.context_length - of.horizon) // of.stride
        self.anchors = strided if of.anchors == "strided" else 1  # of one sequence, at most
        self.rows_per_step = of.per_device_train_batch_size * of.gradient_accumulation_steps * gpus
        self.packed = of.context_length + self.anchors * of.samples * of.horizon  # tokens of one packed sequence
        names = [("qlora" if of.load_in_4bit else "lora") if self.adapted else "", "fsdp2" if self.sharded else ""]
        self.strategy = "+".join(filter(None, names)) or ("whole model" if gpus == 1 else "ddp")
        # Weights of a reference model and of the feature network. With an adapter both are the model without it.
        self.frozen = shape.parameters if of.kl_weight and not self.adapted else 0
        if features or not self.adapted or of.feature_source not in ("auto", "adapter_off"):
            self.frozen += (features or shape).below(of.feature_layers)

    def but(self, **settings: object) -> Run:
        return Run(self.shape, {**self.settings, **settings}, self.gpus, self.features)

    def peak(self) -> float:
        """At most, with completions that have nothing in common."""
        return max(self.stages().values())

    def usual(self) -> dict[str, float]:
        """By stages, with completions that agree as a real model's do."""
        samples = min(_LEFT_BY_TREES, key=lambda n: abs(n - self.of.samples))
        return self.stages(_LEFT_BY_TREES[samples][self.of.temperature > 0.8])

    def stages(self, left: float = 1.0) -> dict[str, float]:
        """Bytes on one GPU at the peak of each stage, the optimiser's first step taken.

        left: of the generated tokens, what the update computes.
        """
        of, shape, shards = self.of, self.shape, self.gpus if self.sharded else 1
        whole, micro_batch = of.model_dtype == "float32", of.per_device_train_batch_size
        trained, behind = (of.lora_r * shape.adapter, 4) if self.adapted else (shape.parameters, 4 if whole else 2)
        size = 4 if whole and not self.bf16 else 2  # bytes of what computes
        # Of a sharded model, whole at one time: two layers, one of them prefetched, and all that is in no layer.
        gathered = size * (shape.outside + 2 * shape.layer) if self.sharded else 0
        if self.adapted:  # any adapter weighs little beside the rest
            weights = size * shape.parameters + behind * trained
            if of.load_in_4bit:  # a layer is taken out of its 4 bits for as long as it computes
                weights += size * shape.layer - (size - _FOUR_BIT) * (shape.parameters - shape.outside)
            weights = weights / shards + gathered
        elif self.sharded:
            weights = behind * trained / shards + gathered
        else:  # and float32 weights behind a copy in bf16
            weights = (size + (behind if size < behind else 0)) * trained
        optimizer = _OPTIMIZERS.get(of.optim.removeprefix("paged_"), 8) * trained * behind / 4
        frozen = (4 if of.feature_source == "average" or not self.bf16 else 2) * self.frozen
        always, gradients = weights + (optimizer + frozen) / shards, behind * trained / shards

        generated = self.anchors * of.samples * of.horizon
        if of.trees:  # the last token of a completion predicts nothing
            generated *= min(left, 1 - 1 / of.horizon)
        # What a compiled layer keeps of a token for the backward pass: inputs, residuals and outputs; queries and what
        # attention returns, twice, since its product with the output matrix wants another order; the feed-forward's
        # two, whose product is made again, as norms are; what goes into a mixture's experts, and out.
        tokens = size * micro_batch * (of.context_length + generated)
        backward = tokens * ((4 + 2 * shape.copies) * shape.width + 3 * shape.queries + 2 * shape.inner)
        activations = shape.depth * (tokens * shape.width if of.gradient_checkpointing else backward)
        backward *= 2 if of.gradient_checkpointing else 1
        rows = self.anchors * (1 + of.samples * (of.horizon - 1)) + (of.context_length - 1 if of.gamma else 0)
        logits = (4 + size) * self._logits(micro_batch * rows) + 2 * size * shape.width * micro_batch * rows
        head = shape.vocabulary * shape.width
        if not self.adapted:
            logits += 4 * head  # its gradient
            # Gradients of weights before they are accumulated: a tied head's waits for that of the embedding.
            backward += gathered + 4 * shape.layer if self.sharded else size * head
        stepping = {"adamw_torch": 4 * trained, "adafactor": 12 * min(head, trained)}.get(of.optim, 0) / shards
        rollouts, features = self._passes(size, of.rollout_batch_size or micro_batch * of.gradient_accumulation_steps)
        found = {
            "rollouts": always + rollouts,
            "features": always + features,
            "update": always + gradients + activations + max(logits, backward),
            "optimizer step": always + gradients + stepping,
        }
        if of.validation_dataset is not None or of.validation_split:  # before and after, at least
            n = of.per_device_eval_batch_size
            passes = self.but(samples=of.eval_samples or of.samples)._passes(size, n)
            found["evaluation"] = always + max(4 * self._logits(n * (of.context_length - 1)), *passes)
        return found

    def _logits(self, rows: int) -> int:
        """Logits that are there at once."""
        return min(rows, max(_LOGITS // self.shape.vocabulary, self.shape.width)) * self.shape.vocabulary

    def _passes(self, size: int, rows: int) -> tuple[int, int]:
        """Of so many sequences, what rollouts hold and what the feature network does."""
        of, shape, completions = self.of, self.shape, self.anchors * self.of.samples
        token = size * ((2 + shape.copies) * shape.width + 3 * shape.inner)  # in a layer, without gradients
        # Keys and values of all sequences, and one step: the contexts' layers, or logits to sample from.
        kept = size * 2 * shape.keys * shape.depth * rows * (of.context_length + completions * (of.horizon - 1))
        step = max(token * rows * max(of.context_length, completions), 4 * self._logits(rows * completions))
        return kept + step, token * rows * self.packed
