"""Every option of `ebft eval`, with its help text and its checks, in one place. In training, `eval_task_options` takes
the same names."""

from __future__ import annotations

import argparse
import typing
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_args

from ebft.config.recipe import convert
from ebft.errors import ConfigError, nearest
from ebft.method.rewards import Whitening

TASKS = ("calibration", "humaneval", "mbpp", "multipl-e", "translation")
LANGUAGES = ("cpp", "js", "ts", "rs", "cs", "go", "php", "java")
GROUPS = {
    "what": "What to evaluate",
    "generation": "Generation",
    "code": "Code",
    "translation": "Translation",
    "calibration": "Calibration",
    "running": "Running",
}


def _option(default: Any, group: str, help: str) -> Any:
    metadata = {"help": help, "group": group}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class EvalOptions:
    model: list[str] = _option([], "what", "checkpoint folder, hub name or LoRA adapter folder; several are compared")
    tasks: list[str] = _option([], "what", f"one or more of {', '.join(TASKS)}")
    output: str = _option("", "what", "folder for results.json, results.md, generations and plots")
    compare: list[str] = _option(
        [], "what", "instead of evaluating: folders with results.json, put into one table and one plot"
    )
    limit: int | None = _option(None, "what", "only the first so many problems of each task")
    seed: int = _option(0, "what", "seed of all samples and rollouts")

    greedy: bool = _option(True, "generation", "also one completion at temperature 0")
    samples: int = _option(16, "generation", "completions per prompt at the temperature; 0: greedy only")
    temperature: float = _option(0.6, "generation", "temperature of the samples")
    top_p: float | None = _option(None, "generation", "sample from the smallest set of tokens with this probability")
    max_new_tokens: int | None = _option(
        None, "generation", "longest completion in tokens; default: 512 for code, 256 for translation"
    )
    prompt_style: str = _option("raw", "generation", "raw, or chat for the tokenizer's chat template")
    system_prompt: str | None = _option(None, "generation", "what a chat begins with")
    too_long: str = _option("error", "generation", "a prompt longer than the model's context: error, or truncate")
    backend: str = _option("transformers", "generation", "transformers, or vllm if it is installed")

    humaneval: str = _option("openai/openai_humaneval", "code", "HumanEval: JSONL file or hub name")
    mbpp: str = _option("google-research-datasets/mbpp:full", "code", "MBPP: JSONL file or hub name")
    multipl_e: str = _option(
        "nuprl/MultiPL-E", "code", "MultiPL-E: hub name, or a folder with humaneval-LANGUAGE.jsonl files"
    )
    languages: list[str] = _option(list(LANGUAGES), "code", "languages of MultiPL-E")
    workers: int | None = _option(None, "code", "programs run at once; default: one per core")
    timeout: float | None = _option(None, "code", "seconds a program may run; default: each task's own")
    unsafe_exec: bool = _option(False, "code", "run programs without a sandbox if there is none: at your own risk")

    translation_data: str | None = _option(None, "translation", "file, folder or hub name (name:configuration)")
    translation_split: str = _option("test", "translation", "its split")
    source_field: str | None = _option(
        None, "translation", "field of the source, such as en; default: src, source, or the first of two"
    )
    target_field: str | None = _option(
        None, "translation", "field of the reference(s), such as de; default: ref, refs, or the second of two"
    )
    source_language: str | None = _option(None, "translation", "its name for the prompt, if the field is no code")
    target_language: str | None = _option(None, "translation", "its name for the prompt, if the field is no code")
    prompt_template: str | None = _option(
        None, "translation", "with {source}, {source_language} and {target_language}; default: ALMA's"
    )
    bleu_tokenize: str | None = _option(None, "translation", "sacrebleu's tokenizer; default: by target language")
    comet_model: str | None = _option(None, "translation", "name or path of a COMET model; default: no COMET")
    comet_python: str | None = _option(
        None, "translation", "Python of an environment with unbabel-comet; default: the running one"
    )

    calibration_data: str | None = _option(
        None, "calibration", "file, folder, hub name or built-in (stdlib-functions, stdlib-code)"
    )
    calibration_split: str = _option("validation", "calibration", "its split")
    held_out: float = _option(
        0.0, "calibration", "only the documents that training with this validation_split held out; 0: all"
    )
    split_seed: int = _option(0, "calibration", "split_seed of that training")
    limit_documents: int | None = _option(None, "calibration", "read at most so many documents")
    text_column: str = _option("text", "calibration", "column of plain text")
    prompt_column: str = _option("prompt", "calibration", "column of prompts")
    completion_column: str = _option("completion", "calibration", "column of completions")
    messages_column: str = _option("messages", "calibration", "column of conversations")
    sequences: int = _option(128, "calibration", "at most so many sequences")
    context_length: int = _option(1024, "calibration", "T: tokens of a sequence")
    packing: bool = _option(True, "calibration", "documents one after the other; otherwise one a sequence, padded")
    horizon: int = _option(8, "calibration", "G: tokens of a rollout")
    stride: int = _option(8, "calibration", "s: tokens between anchors")
    rollouts: int = _option(4, "calibration", "n: rollouts from every anchor")
    rollout_temperature: float = _option(0.6, "calibration", "temperature of the rollouts")
    anchors: str = _option("strided", "calibration", "strided, or answer_start")
    answer_only: bool = _option(False, "calibration", "only anchors whose truth lies inside an answer")
    document_masks: bool = _option(
        False, "calibration", "a token sees only its own document, and rollouts end at end tokens"
    )
    whitening: str = _option("reference", "calibration", "of the whitened proxy: " + ", ".join(get_args(Whitening)))
    feature_model: str | None = _option(
        None, "calibration", "the frozen feature network: folder or hub name; default: the first model, as it says"
    )
    feature_layers: list[float] = _option(
        [0.25, 0.5, 0.75], "calibration", "hidden states to tap: up to 1, fractions of the depth; above, layer numbers"
    )
    feature_pooling: str = _option("last", "calibration", "last token of the completion, or mean over its tokens")
    feature_normalize: str = _option("per_layer", "calibration", "per_layer, or joint as in the released code")
    profile_lengths: list[int] = _option(
        [1, 2, 4, 8, 16, 32, 64, 128], "calibration", "completion lengths of the profile; none: no profile"
    )
    profile_stride: int = _option(64, "calibration", "tokens between the profile's anchors")
    calibration_batch_size: int = _option(4, "calibration", "sequences at once")

    batch_size: int = _option(16, "running", "completions generated at once")
    dtype: str = _option("auto", "running", "auto (float32 on a CPU, bfloat16 on a GPU), float32, bfloat16 or float16")
    device: str = _option("auto", "running", "auto, cpu, cuda, cuda:1, ...")
    trust_remote_code: bool = _option(False, "running", "run code that comes with a model from the hub")
    overwrite: bool = _option(False, "running", "make everything again, also what another setting made")

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise ConfigError(f"unknown task {task!r}; there is {', '.join(TASKS)}{nearest(task, TASKS)}")
        for language in self.languages:
            if language not in LANGUAGES:
                raise ConfigError(
                    f"unknown language {language!r}; there is {', '.join(LANGUAGES)}{nearest(language, LANGUAGES)}"
                )
        for name, choices in (
            ("prompt_style", ("raw", "chat")),
            ("too_long", ("error", "truncate")),
            ("backend", ("transformers", "vllm")),
            ("dtype", ("auto", "float32", "bfloat16", "float16")),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        for name in ("limit", "sequences", "batch_size", "calibration_batch_size", "workers", "max_new_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.samples < 0:
            raise ConfigError(f"samples={self.samples} must be 0 (greedy only) or more")
        if self.samples and not self.temperature > 0:
            raise ConfigError(f"temperature={self.temperature} must be above 0 for samples; for greedy, use samples=0")
        if not self.samples and not self.greedy:
            raise ConfigError("samples=0 without greedy leaves nothing to generate")
        if self.rollouts < 2:
            raise ConfigError(f"rollouts={self.rollouts} must be at least 2 for the unbiased feature-matching loss")

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> EvalOptions:
        """From the text of flags or from a recipe: names and types are checked."""
        hints = typing.get_type_hints(cls)
        for name in values:
            if name not in hints:
                raise ConfigError(f"unknown option {name!r} of an evaluation{nearest(name, hints)}")
        return cls(**{name: convert(name, value, hints[name]) for name, value in values.items()})


def parse(arguments: list[str], parser: argparse.ArgumentParser) -> EvalOptions:
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for f in fields(EvalOptions):
        groups[f.metadata["group"]].add_argument("--" + f.name.replace("_", "-"), **_argument(f))
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    for name in ("tasks", "languages", "profile_lengths", "feature_layers"):
        if name in given:
            given[name] = [item for value in given[name] for item in value.split(",") if item not in ("", "none")]
    return EvalOptions.from_values(given)


def _argument(f: Field[Any]) -> dict[str, Any]:
    default = f.default_factory() if f.default_factory is not MISSING else f.default
    shown = ",".join(map(str, default)) if isinstance(default, list) else default
    help = f.metadata["help"].replace("%", "%%")
    if shown not in ("", None, False) and "default:" not in help:
        help += f" [{shown}]"
    if isinstance(default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": help}
    if isinstance(default, list):
        return {"nargs": "+", "action": "extend", "metavar": f.name.upper(), "help": help}
    return {"metavar": "VALUE", "help": help}
