"""The settings of one measured iteration, and the command line of step.py that they come from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from command_line import Parser, positive
from ebft.method.layout import StridedLayout
from ebft.model.attention import Backend
from shapes import SIZES

TEMPERATURE = 0.6
SEED = 0

ReferenceAttention = Literal["eager", "sdpa"]


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
    released_attention: ReferenceAttention
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
    trees: bool = True
    sharing: bool = False
    model: str | None = None
    text: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The implementations to measure: ebft's, the same without trees, the reference implementation."""
        return ("packed", *(["untreed"] if self.trees else []), *([] if self.skip_released else ["released"]))

    @property
    def layout(self) -> StridedLayout:
        return StridedLayout(self.context_length, self.horizon, self.stride, self.samples)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@dataclass(frozen=True)
class Defaults:
    """How a size is measured unless options say otherwise: with the paper's settings for the models of the paper."""

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


def parse_arguments(arguments: Sequence[str], description: str = "") -> tuple[Settings, argparse.Namespace]:
    """Also sets torch's number of threads. An error ends the program with one line and exit code 2."""
    parser = _parser(description)
    args = parser.parse_args(arguments)
    _check(parser, args)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    on_cpu = args.device == "cpu"
    defaults = {
        **asdict(DEFAULTS.get(args.size, Defaults())),
        "dtype": "float32" if on_cpu else "bfloat16",
        "released_attention": "sdpa" if on_cpu else "eager",
        "released_repeats": args.repeats,
        "warmup": 1 if on_cpu else 2,
        "threads": torch.get_num_threads(),
        "compile": not on_cpu and not args.no_compile,
        "model": None,
        "text": None,
    }
    values: dict[str, Any] = defaults | {name: value for name, value in vars(args).items() if value is not None}
    values["skip_released"] = args.skip_released or args.lora
    values["trees"] = not args.no_trees
    settings = Settings(**{field.name: values[field.name] for field in fields(Settings)})
    try:
        _ = settings.layout
    except ValueError as error:
        parser.error(str(error))
    parser.check_output(args.json)
    return settings, args


def _parser(description: str) -> Parser:
    parser = Parser(prog="step.py", description=description)
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
    add("--backend", choices=get_args(Backend), default="auto", help="attention of the packed implementation")
    add("--micro-batch", type=positive, help="sequences per pass in the packed implementation's update")
    add("--no-compile", action="store_true", help="do not compile the layers (CUDA)")
    add("--gradient-checkpointing", action="store_true", help="in both implementations: less memory, more time")
    lora = "train an adapter of rank 16 instead of the whole model; skips the reference implementation"
    add("--lora", action="store_true", help=lora)
    add("--optimizer", choices=("adamw", "adafactor"), default="adamw")
    attention = "of the reference implementation; default: sdpa on a CPU, eager on a GPU"
    add("--released-attention", choices=get_args(ReferenceAttention), help=attention)
    add("--released-micro-batch", type=positive, help="sequences per pass in the reference implementation")
    add("--repeats", type=positive, default=5)
    repeats = "of the reference implementation on a GPU (default: as --repeats); on a CPU the two take turns"
    add("--released-repeats", type=positive, help=repeats)
    add("--warmup", type=int, help="iterations before the timed ones (default: 1 on a CPU, 2 on a GPU)")
    add("--threads", type=positive, help="CPU threads (default: torch's choice)")
    add("--no-trees", action="store_true", help="compute every token of every completion, and nothing beside it")
    sharing = "let completions agree for a while, as a real model's do; random weights give none that do"
    add("--sharing", action="store_true", help=sharing)
    add("--model", metavar="FOLDER", help="weights of this checkpoint, of the shape that --size names; needs --text")
    add("--text", metavar="FILE", help="contexts from rows of text, as `ebft train --dataset` takes them")
    add("--skip-released", action="store_true", help="only the packed implementation; nothing to compare with")
    add("--json", type=Path, metavar="FILE", help="write the results here")
    add("--measure-memory", action="store_true", help=argparse.SUPPRESS)  # what cpu_memory.py calls this program with
    return parser


def _check(parser: Parser, args: argparse.Namespace) -> None:
    if args.samples < 3:
        parser.error(f"--samples {args.samples}: the leave-one-out baseline needs at least 3")
    if (args.model is None) != (args.text is None):
        parser.error("--model and --text go together: a real model on random tokens measures neither")
    parser.check_device(args.device)
    if args.device == "cpu" and args.backend == "flex":
        parser.error("--backend flex needs --device cuda; use sdpa")
    if args.device == "cpu" and args.released_repeats not in (None, args.repeats):
        parser.error("--released-repeats is for a GPU: on a CPU the two implementations take turns")
    if args.gamma < 0 or (args.warmup or 0) < 0:
        parser.error("--gamma and --warmup must not be negative")
