"""Time and memory of one whole EBFT iteration: ebft's packed path against the released code's way.

Both run on the same weights and the same contexts, in the same process. An iteration is rollout, features, rewards and
advantages, update (loss and gradient) and the optimiser's step; in bf16 both train float32 weights. Before anything is
timed the two are shown to compute the same thing: on the same completions they must give the same features, rewards
and gradient. README.md beside this file says how to run it and what the fields of the JSON mean.

    python benchmarks/step.py --size small-cpu --threads 2 --json benchmarks/results/step-cpu-small.json
    python benchmarks/step.py --size qwen2.5-1.5b --device cuda --json FILE
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, get_args

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config

from ebft.method.advantages import leave_one_out_advantages
from ebft.method.layout import StridedLayout
from ebft.method.losses import ebft_loss
from ebft.method.rewards import Whitening, feature_matching_rewards, token_groups
from ebft.model.attention import Backend
from ebft.model.backbone import compile_layers, decoder_of, output_head, packed_hidden_states
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout
from ebft.model.working_copy import WorkingCopy, copy_in_dtype
from ebft.runtime.timing import Clock
from released_way import FEATURE_PASSES, Attention, ReleasedWay

TEMPERATURE = 0.6
SEED = 0
LORA_RANK = 16
PHASES = ("rollout", "features", "rewards", "update", "optimizer")
WAYS = ("packed", "released")
CHECK_SEQUENCES = 2
# Largest relative differences that float32 rounding explains; whitening divides by small singular values.
TOLERANCES = {
    "features": 1e-4,
    "rewards_none": 1e-4,
    "rewards_reference": 1e-3,
    "loss": 1e-5,
    "gradient": 1e-4,
}


# ---- models: shapes only, random weights ------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    family: type[PreTrainedConfig]
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    tied: bool

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * self.kv_heads

    @property
    def layer_parameters(self) -> int:
        """Weights of all matrices in the layers."""
        return self.layers * (2 * self.width**2 + 2 * self.width * self.kv_width + 3 * self.width * self.ffn)

    @property
    def adapter_parameters(self) -> int:
        """Weights of an adapter on all of those matrices."""
        sides = 2 * (self.width + self.width) + 2 * (self.width + self.kv_width) + 3 * (self.width + self.ffn)
        return self.layers * LORA_RANK * sides

    @property
    def parameters(self) -> int:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config())
        return sum(p.numel() for p in model.parameters())

    def config(self) -> PreTrainedConfig:
        sizes: dict[str, Any] = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 8192,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        return self.family(**sizes)


SIZES = {
    "tiny": Shape(LlamaConfig, 4, 64, 4, 2, 96, 512, tied=False),
    "small-cpu": Shape(LlamaConfig, 4, 256, 4, 2, 688, 32000, tied=False),
    "smollm2-135m": Shape(LlamaConfig, 30, 576, 9, 3, 1536, 49152, tied=True),
    "llama3.2-1b": Shape(LlamaConfig, 16, 2048, 32, 8, 8192, 128256, tied=True),
    "qwen2.5-1.5b": Shape(Qwen2Config, 28, 1536, 12, 2, 8960, 151936, tied=True),
}


@dataclass(frozen=True)
class Defaults:
    """What a size is measured with unless told otherwise: the paper's settings for the models of the paper."""

    context_length: int = 256
    horizon: int = 8
    stride: int = 8
    sequences: int = 16
    micro_batch: int | None = None
    released_micro_batch: int | None = None


DEFAULTS = {
    "tiny": Defaults(sequences=2),
    "small-cpu": Defaults(sequences=2),
    "smollm2-135m": Defaults(released_micro_batch=4),
    "llama3.2-1b": Defaults(1024, 4, 2, 16, micro_batch=2, released_micro_batch=1),
    "qwen2.5-1.5b": Defaults(1024, micro_batch=2, released_micro_batch=1),
}


@dataclass(frozen=True)
class Settings:
    size: str
    context_length: int
    horizon: int
    stride: int
    samples: int
    sequences: int
    gamma: float
    device: str
    dtype: str
    backend: Backend
    micro_batch: int | None
    released_attention: Attention
    released_micro_batch: int | None
    repeats: int
    released_repeats: int
    warmup: int
    threads: int
    compile: bool
    gradient_checkpointing: bool
    lora: bool
    optimizer: str
    skip_released: bool


def build_model(settings: Settings) -> PreTrainedModel:
    """The same float32 weights at every call: the ones that are trained."""
    torch.manual_seed(SEED)
    with torch.device(settings.device):
        return AutoModelForCausalLM.from_config(
            SIZES[settings.size].config(), dtype=torch.float32, attn_implementation="sdpa"
        )


class Training:
    """The float32 weights, the copy to compute with if that is in bf16, and the optimiser."""

    def __init__(self, settings: Settings) -> None:
        self.trained: Any = build_model(settings)
        self.model: Any = self.trained
        self.working: WorkingCopy | None = None
        if settings.lora:
            from peft import LoraConfig, get_peft_model

            copied, _ = copy_in_dtype(self.trained, getattr(torch, settings.dtype))
            config = LoraConfig(r=LORA_RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
            self.trained = self.model = get_peft_model(copied, config)
        elif settings.dtype != "float32":
            self.working = WorkingCopy(self.trained, getattr(torch, settings.dtype))
            self.model = self.working.model
        if settings.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
            self.model.train()
        weights = [p for p in self.trained.parameters() if p.requires_grad]
        if settings.optimizer == "adafactor":
            from transformers import Adafactor

            self.optimizer: Any = Adafactor(weights, lr=1e-6, relative_step=False, scale_parameter=False)
        else:
            fused = settings.device == "cuda"
            self.optimizer = torch.optim.AdamW(weights, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.trained.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.working is not None:
            self.working.refresh()


def random_contexts(settings: Settings, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(vocabulary, (settings.sequences, settings.context_length), generator=generator)
    return tokens.to(settings.device)


# ---- the two ways ------------------------------------------------------------


class Way(Protocol):
    """`sequences` is what a way's own rollout returns; advantages are [b, B, n] in both."""

    model: Any

    def rollout(self, contexts: Tensor) -> Tensor: ...
    def features(self, sequences: Tensor) -> tuple[Tensor, Tensor]: ...
    def advantages(self, sequences: Tensor, generated: Tensor, truth: Tensor) -> Tensor: ...
    def update(self, sequences: Tensor, advantages: Tensor) -> Tensor: ...


class PackedWay:
    """ebft's own path: `sequences` are packed, [b, S]."""

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model = model
        self.autocast = settings.lora and settings.dtype == "bfloat16"
        self.layout = StridedLayout(settings.context_length, settings.horizon, settings.stride, settings.samples).to(
            settings.device
        )
        # "joint" is what the released code does; the cost is that of the default.
        source: Any = "adapter_off" if settings.lora else "copy"
        self.frozen = FeatureNetwork(model, normalize="joint", source=source, backend=settings.backend)
        if settings.compile:
            compile_layers(decoder_of(model))
            self.frozen.compile_layers()
        self.gamma, self.backend, self.micro_batch = settings.gamma, settings.backend, settings.micro_batch

    def rollout(self, contexts: Tensor) -> Tensor:
        completions = rollout(self.model, contexts, self.layout, TEMPERATURE, backend=self.backend)
        return self.layout.pack(contexts, completions)

    def features(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        generated, truth = self.frozen(sequences, self.layout)
        return generated, truth

    def rewards(
        self, sequences: Tensor, generated: Tensor, truth: Tensor, whitening: Whitening = "reference"
    ) -> tuple[Tensor, Tensor]:
        return feature_matching_rewards(generated, truth, whitening, self.groups(sequences))

    def groups(self, sequences: Tensor) -> Tensor:
        """[b, B, n]: samples of a context with the same tokens have the same number."""
        return token_groups(self.layout.completions(sequences))

    def advantages(self, sequences: Tensor, generated: Tensor, truth: Tensor) -> Tensor:
        alignment, diversity = self.rewards(sequences, generated, truth)
        return leave_one_out_advantages(alignment, diversity)

    def update(self, sequences: Tensor, advantages: Tensor) -> Tensor:
        b, T = sequences.shape[0], self.layout.context_length
        generated_tokens = float(sequences[:, T:].numel())
        truth_tokens = float(b * (T - 1))
        total = torch.zeros((), device=sequences.device)
        size = self.micro_batch or b
        for ids, weights in zip(sequences.split(size), advantages.split(size), strict=True):
            with torch.autocast(sequences.device.type, torch.bfloat16, enabled=self.autocast):
                hidden = packed_hidden_states(self.model, ids, self.layout, self.backend)
            terms = ebft_loss(
                hidden,
                output_head(self.model),
                ids,
                self.layout,
                weights,
                TEMPERATURE,
                self.gamma,
                generated_tokens=generated_tokens,
                truth_tokens=truth_tokens,
            )
            terms.loss.backward()
            total += terms.loss.detach()
        return total


def build_released(model: Any, settings: Settings) -> ReleasedWay:
    return ReleasedWay(
        model,
        settings.context_length,
        settings.horizon,
        settings.stride,
        settings.samples,
        TEMPERATURE,
        settings.gamma,
        settings.released_attention,
        settings.released_micro_batch,
    )


def build_way(name: str, model: Any, settings: Settings) -> Way:
    return PackedWay(model, settings) if name == "packed" else build_released(model, settings)


# ---- do both compute the same? ------------------------------------------------------------


def check_equality(settings: Settings) -> dict[str, Any]:
    """Largest relative differences between the two ways on the same completions, in float32.

    Rewards under `reference` are compared on contexts whose samples are all distinct: two equal samples come out
    of the released way with features that differ by rounding, which whitening turns into two directions, while
    ebft counts them as equal. For the same reason both gradients are taken with the same advantages.
    """
    settings = replace(
        settings, dtype="float32", sequences=min(settings.sequences, CHECK_SEQUENCES), compile=False, lora=False
    )
    packed, released = PackedWay(build_model(settings), settings), build_released(build_model(settings), settings)
    contexts = random_contexts(settings, packed.model.config.vocab_size)
    torch.manual_seed(SEED)
    sequences = packed.rollout(contexts)
    copies = released.pack(contexts, packed.layout.completions(sequences))

    generated, truth = packed.features(sequences)
    their_generated, their_truth = released.features(copies)
    distinct = (packed.groups(sequences) == torch.arange(settings.samples, device=contexts.device)).all(-1)
    plain = torch.sub(*packed.rewards(sequences, generated, truth, "none"))  # alignment - diversity
    their_plain = torch.sub(*released.rewards(their_generated, their_truth, whitened=False))
    reference = torch.sub(*packed.rewards(sequences, generated, truth, "reference"))
    their_reference = torch.sub(*released.rewards(their_generated, their_truth))

    advantages = packed.advantages(sequences, generated, truth)
    loss, their_loss = packed.update(sequences, advantages), released.update(copies, advantages.float())
    their_parameters = dict(released.model.named_parameters())
    gradients = [
        relative_difference(p.grad, their_parameters[name].grad) for name, p in packed.model.named_parameters()
    ]
    differences = {
        "features": max(relative_difference(generated, their_generated), relative_difference(truth, their_truth)),
        "rewards_none": relative_difference(plain, their_plain),
        "rewards_reference": relative_difference(reference[distinct], their_reference[distinct]),
        "loss": relative_difference(loss, their_loss),
        "gradient": max(gradients),
    }
    return {
        "relative_differences": differences,
        "tolerances": TOLERANCES,
        "equal": all(differences[name] <= tolerance for name, tolerance in TOLERANCES.items()),
        "contexts": distinct.numel(),
        "distinct_contexts": int(distinct.sum()),
    }


class WaysDiffer(Exception):
    pass


def relative_difference(a: Tensor | None, b: Tensor | None) -> float:
    """Largest difference, relative to the largest entry."""
    assert a is not None
    assert b is not None
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


# ---- time ------------------------------------------------------------


@contextmanager
def stopwatch(seconds: dict[str, float], phase: str, device: str) -> Iterator[None]:
    synchronize(device)
    start = time.perf_counter()
    yield
    synchronize(device)
    seconds[phase] = time.perf_counter() - start


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def run_iteration(way: Way, training: Training, contexts: Tensor, device: str) -> dict[str, float]:
    """Seconds of each phase and of the iteration. On a GPU the host does not wait between the phases."""
    seconds: dict[str, float] = {}
    clock = Clock(torch.device(device))
    with stopwatch(seconds, "iteration", device):
        with clock.phase("rollout"):
            sequences = way.rollout(contexts)
        with clock.phase("features"):
            generated, truth = way.features(sequences)
        with clock.phase("rewards"):
            advantages = way.advantages(sequences, generated, truth)
        with clock.phase("update"):
            way.update(sequences, advantages)
        with clock.phase("optimizer"):
            training.step()
    return clock.read() | seconds


# Entered around everything that is timed; grid.py lets several processes take turns here.
turn_to_measure: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass
class Measured:
    runs: list[dict[str, float]]  # seconds by phase, one entry per repeat
    matrix_rate: float = 0.0
    peak_bytes: int = 0  # CUDA only: everything that was allocated, weights and optimiser included
    warmup_seconds: float = 0.0


def measure_time(names: Sequence[str], settings: Settings) -> dict[str, Measured]:
    """On a CPU turn by turn, so that a machine that slows down slows both; on a GPU one way after the other."""
    groups = [names] if settings.device == "cpu" else [[name] for name in names]
    measured: dict[str, Measured] = {}
    for group in groups:
        if group == ["released"]:  # nothing to compile there
            settings = replace(settings, repeats=settings.released_repeats, warmup=min(settings.warmup, 1))
        measured |= _measure_together(group, settings)
        gc.collect()
        if settings.device == "cuda":
            torch.cuda.empty_cache()
    return measured


def _measure_together(names: Sequence[str], settings: Settings) -> dict[str, Measured]:
    measured = {name: Measured([]) for name in names}
    trainings = {name: Training(settings) for name in names}
    ways = {name: build_way(name, trainings[name].model, settings) for name in names}
    contexts = random_contexts(settings, SIZES[settings.size].vocabulary)
    torch.manual_seed(SEED)
    for _ in range(settings.warmup):
        for name, way in ways.items():
            seconds = run_iteration(way, trainings[name], contexts, settings.device)
            measured[name].warmup_seconds += seconds["iteration"]
    with turn_to_measure():
        for _ in range(settings.repeats):
            for name, way in ways.items():
                if settings.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                measured[name].runs.append(run_iteration(way, trainings[name], contexts, settings.device))
                if settings.device == "cuda":
                    measured[name].peak_bytes = max(measured[name].peak_bytes, torch.cuda.max_memory_allocated())
        measured[names[0]].matrix_rate = matrix_rate(settings.device, settings.dtype)
    return measured


def summarize(runs: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Median, least, most and all repeats of every phase and of the iteration as a whole."""
    columns = {phase: [run[phase] for run in runs] for phase in runs[0]}
    return {
        phase: {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": values}
        for phase, values in columns.items()
    }


# ---- memory on a CPU ------------------------------------------------------------


def measure_cpu_memory(name: str, settings: Settings) -> int:
    """Peak resident memory of one iteration above the level just before it. Meant for a fresh process.

    A short iteration first loads what is loaded once. The peak that the system reports never falls, so if the
    iteration does not raise it, what is returned is only an upper bound.
    """
    vocabulary = SIZES[settings.size].vocabulary
    short = replace(settings, context_length=settings.horizon + 2 * settings.stride, sequences=1)
    training = Training(short)
    run_iteration(build_way(name, training.model, short), training, random_contexts(short, vocabulary), settings.device)
    del training
    training = Training(settings)
    way = build_way(name, training.model, settings)
    contexts = random_contexts(settings, vocabulary)
    gc.collect()
    before, peak_before = resident_bytes(), peak_resident_bytes()
    run_iteration(way, training, contexts, settings.device)
    peak = peak_resident_bytes()
    if peak == peak_before:
        print(f"{name}: the iteration stayed below the peak of building the model", file=sys.stderr)
    return peak - before


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_cpu_memory_apart(name: str) -> int:
    """The same, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--measure-memory", name]
    # glibc then returns every freed tensor to the system at once: the peak is that of live tensors, as on a GPU,
    # and not of what the allocator happens to keep, which differs from run to run by half.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(output.splitlines()[-1])


# ---- report ------------------------------------------------------------


def report(settings: Settings) -> dict[str, Any]:
    load_average = os.getloadavg()[0]  # before this program adds to it: what else the machine is doing
    names = WAYS[:1] if settings.skip_released else WAYS
    memory = {name: measure_cpu_memory_apart(name) for name in names} if settings.device == "cpu" else {}
    equality = None if settings.skip_released else check_equality(settings)
    if equality is not None and not equality["equal"]:
        raise WaysDiffer(f"the two ways do not agree, nothing was timed: {json.dumps(equality)}")
    gc.collect()
    if settings.device == "cuda":
        torch.cuda.empty_cache()

    measured = measure_time(names, settings)
    seconds = {name: summarize(m.runs) for name, m in measured.items()}
    memory = memory or {name: m.peak_bytes for name, m in measured.items()}

    T, G, n = settings.context_length, settings.horizon, settings.samples
    B = (T - G) // settings.stride
    flops = count_flops(settings)
    rate = measured["packed"].matrix_rate
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/step.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "settings": asdict(settings) | {"temperature": TEMPERATURE, "released_feature_passes": FEATURE_PASSES},
        "shape": {
            "parameters": SIZES[settings.size].parameters,
            "anchors": B,
            "packed_tokens": settings.sequences * (T + B * n * G),
            "released_tokens": settings.sequences * n * (T + B * G),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "machine": {
            "device": device_name(settings.device),
            "threads": torch.get_num_threads(),
            "load_average": load_average,
        },
        "seconds": seconds,
        "warmup_seconds": {name: m.warmup_seconds for name, m in measured.items()},
        "tokens_per_second": settings.sequences * (T + B * n * G) / seconds["packed"]["iteration"]["median"],
        "flops": flops,
        "matrix_rate": rate,
        "utilization": {
            phase: flops[phase] / rate / seconds["packed"][phase]["median"]
            for phase in ("rollout", "features", "update", "iteration")
        },
        "peak_memory_bytes": memory,
    }
    if equality is not None:
        result["speed_up"] = {
            phase: seconds["released"][phase]["median"] / seconds["packed"][phase]["median"]
            for phase in (*PHASES, "iteration")
        }
        result["memory_share"] = memory["packed"] / memory["released"]
        result["equality"] = equality
    return result


def count_flops(settings: Settings) -> dict[str, float]:
    """Floating-point operations of the packed path's products: what any implementation of the packed layout must do.

    Norms, activations and softmaxes are left out, and so is whatever a backward pass computes again.
    """
    shape, T, G, n, b = (
        SIZES[settings.size],
        settings.context_length,
        settings.horizon,
        settings.samples,
        settings.sequences,
    )
    B = (T - G) // settings.stride
    head = shape.vocabulary * shape.width
    sampled_rows = b * B * (1 + n * (G - 1))
    truth_rows = b * (T - 1) if settings.gamma else 0
    # Pairs of tokens that see each other: causal in the context, all before the anchor, causal in the completion.
    among_context = T * (T + 1) / 2
    before_anchors = sum(anchor * settings.stride for anchor in range(1, B + 1)) * n
    pairs = b * (among_context + before_anchors * G + B * n * G * (G + 1) / 2)
    sampled_pairs = b * (among_context + before_anchors * (G - 1) + B * n * G * (G - 1) / 2)
    attention = 4 * shape.layers * shape.width
    packed, sampled = b * (T + B * n * G), b * (T + B * n * (G - 1))
    tapped = math.floor(0.75 * shape.layers) / shape.layers
    matrices, adapter = shape.layer_parameters, shape.adapter_parameters if settings.lora else 0
    updated_rows = sampled_rows + truth_rows
    # A pass back makes the gradients of inputs and of weights. With an adapter only its own weights have any, and
    # nothing that is trained stands before the first layer's queries, keys and values.
    passes = 2 if settings.lora else 3
    before_first = 2 * shape.width * (shape.width + 2 * shape.kv_width) * packed if settings.lora else 0
    flops = {
        "rollout": 2 * (matrices + adapter) * sampled + attention * sampled_pairs + 2 * head * sampled_rows,
        "features": tapped * (2 * matrices * packed + attention * pairs),
        "update": passes * (2 * matrices * packed + 2 * head * updated_rows)
        - before_first
        + 3 * (2 * adapter * packed + attention * pairs),
    }
    return flops | {"iteration": sum(flops.values())}


def matrix_rate(device: str, dtype: str, repeats: int = 20) -> float:
    """Floating-point operations a second of one large product of random numbers, measured now."""
    size = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    times = []
    for turn in range(repeats + 3):
        seconds: dict[str, float] = {}
        with stopwatch(seconds, "product", device):
            a @ b
        if turn >= 3:
            times.append(seconds["product"])
    return 2 * size**3 / statistics.median(times)


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str | None:
    """Of the code that is measured, if git knows it."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    found, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "src", "benchmarks/*.py")
    return f"{found} with changes" if found and changed else found


def print_table(result: dict[str, Any]) -> None:
    seconds, memory = result["seconds"], result["peak_memory_bytes"]
    machine, settings = result["machine"], result["settings"]
    compared = "released" in seconds
    print(f"{settings['size']} on {machine['device']}, {machine['threads']} threads, {settings['dtype']}")
    print(f"{'':16}" + "".join(f"{name:>26}" for name in seconds) + ("     ratio" if compared else ""))
    for phase in seconds["packed"]:
        row = f"{phase:16}"
        for way in seconds.values():
            spread = f"({way[phase]['min']:.3f}-{way[phase]['max']:.3f})"
            row += f"{way[phase]['median']:.3f} s {spread}".rjust(26)
        if compared and phase in result["speed_up"]:
            row += f"{result['speed_up'][phase]:9.2f}x"
        print(row)
    unit, name = (1e12, "TFLOP") if result["matrix_rate"] > 1e13 else (1e9, "GFLOP")
    for phase, share in result["utilization"].items():
        print(f"{phase:16}{result['flops'][phase] / unit:10.1f} {name}, {share:.0%} of the measured matrix rate")
    print(f"matrix rate {result['matrix_rate'] / unit:.1f} {name}/s; {result['tokens_per_second']:.0f} tokens/s")
    warmup = ", ".join(f"{name} {value:.1f} s" for name, value in result["warmup_seconds"].items())
    print(f"warm-up: {warmup}")
    row = f"{'peak memory':16}" + "".join(f"{value / 2**20:22.0f} MiB" for value in memory.values())
    print(row + (f"{1 / result['memory_share']:9.2f}x" if compared else ""))
    if compared:
        print(
            f"the packed path is {result['speed_up']['iteration']:.2f} times faster, "
            f"with {result['memory_share']:.2f} of the peak memory"
        )
        differences = result["equality"]["relative_differences"]
        shown = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
        print(f"largest relative differences: {shown}")


class Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def check_device(self, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            self.error("--device cuda: torch sees no CUDA device; use --device cpu")

    def check_output(self, file: Path | None) -> None:
        """Before anything is measured, not after."""
        try:
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.open("a").close()
                if not file.stat().st_size:
                    file.unlink()
        except OSError as error:
            self.error(f"--json {file}: {error.strerror}")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def parse_arguments() -> tuple[Settings, argparse.Namespace]:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add("--size", choices=SIZES, default="small-cpu", help="shape of the model; weights are random")
    add("--context-length", type=positive, help="T; this and the next default to the paper's setting for the size")
    add("--horizon", type=positive, help="G")
    add("--stride", type=positive, help="s")
    add("--samples", type=positive, default=4, help="n, at least 3")
    add("--sequences", type=positive, help="sequences per iteration")
    add("--gamma", type=float, default=0.1, help="weight of the cross-entropy")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, bfloat16 on a GPU")
    add("--backend", choices=get_args(Backend), default="auto", help="attention of the packed path")
    add("--micro-batch", type=positive, help="sequences per pass in the packed path's update")
    add("--no-compile", action="store_true", help="do not compile the layers (CUDA)")
    add("--gradient-checkpointing", action="store_true", help="in both ways: less memory, more time")
    add(
        "--lora",
        action="store_true",
        help="train an adapter of rank 16 instead of the whole model; skips the released way",
    )
    add("--optimizer", choices=("adamw", "adafactor"), default="adamw")
    add("--released-attention", choices=get_args(Attention), help="default: sdpa on a CPU, eager on a GPU")
    add("--released-micro-batch", type=positive, help="sequences per pass in the released way")
    add("--repeats", type=positive, default=5)
    add("--released-repeats", type=positive, help="on a GPU (default: as --repeats); on a CPU they take turns")
    add("--warmup", type=int, help="iterations before the timed ones (default: 1 on a CPU, 2 on a GPU)")
    add("--threads", type=positive, help="CPU threads (default: torch's choice)")
    add("--skip-released", action="store_true", help="only the packed path; nothing to compare with")
    add("--json", type=Path, metavar="FILE", help="write the results here")
    add("--measure-memory", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.samples < 3:
        parser.error(f"--samples {args.samples}: the leave-one-out baseline needs at least 3")
    on_cpu = args.device == "cpu"
    parser.check_device(args.device)
    if on_cpu and args.backend == "flex":
        parser.error("--backend flex needs --device cuda; use sdpa")
    if on_cpu and args.released_repeats not in (None, args.repeats):
        parser.error("--released-repeats is for a GPU: on a CPU the two ways take turns")
    if args.gamma < 0 or (args.warmup or 0) < 0:
        parser.error("--gamma and --warmup must not be negative")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    default = DEFAULTS[args.size]
    settings = Settings(
        size=args.size,
        context_length=args.context_length or default.context_length,
        horizon=args.horizon or default.horizon,
        stride=args.stride or default.stride,
        samples=args.samples,
        sequences=args.sequences or default.sequences,
        gamma=args.gamma,
        device=args.device,
        dtype=args.dtype or ("float32" if on_cpu else "bfloat16"),
        backend=args.backend,
        micro_batch=args.micro_batch or default.micro_batch,
        released_attention=args.released_attention or ("sdpa" if on_cpu else "eager"),
        released_micro_batch=args.released_micro_batch or default.released_micro_batch,
        repeats=args.repeats,
        released_repeats=args.released_repeats or args.repeats,
        warmup=args.warmup if args.warmup is not None else (1 if on_cpu else 2),
        threads=torch.get_num_threads(),
        compile=not on_cpu and not args.no_compile,
        gradient_checkpointing=args.gradient_checkpointing,
        lora=args.lora,
        optimizer=args.optimizer,
        skip_released=args.skip_released or args.lora,
    )
    try:
        StridedLayout(settings.context_length, settings.horizon, settings.stride, settings.samples)
    except ValueError as error:
        parser.error(str(error))
    parser.check_output(args.json)
    return settings, args


def main() -> int:
    settings, args = parse_arguments()
    if args.measure_memory:
        print(measure_cpu_memory(args.measure_memory, settings))
        return 0
    try:
        result = report(settings)
    except WaysDiffer as error:
        print(f"step.py: {error}", file=sys.stderr)
        return 1
    print_table(result)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
