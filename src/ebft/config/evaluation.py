"""Every option of `ebft eval`, with its help text and checks. In training, `eval_task_options` takes the same names.

Calibration measures with the method's own settings, and reads its documents by those of training: they are not declared
a second time, but taken from `MethodConfig` and `DataConfig` (`BORROWED`).
"""

from __future__ import annotations

import argparse
import math
import typing
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from functools import cache, partial
from typing import Any, Literal

from ebft.config.convert import convert
from ebft.config.fields import at_least, check_choices, default_of, option
from ebft.config.like_run import validation_options
from ebft.config.method import MethodConfig
from ebft.config.model_and_data import DataConfig
from ebft.config.profile import LENGTHS, STRIDE, Profile
from ebft.errors import ConfigError, nearest

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
_what, _generation, _code, _translation, _calibration, _running = (partial(option, group=group) for group in GROUPS)

# What calibration takes of the method's settings and of the data's, by the names it has there and here: `samples` and
# `temperature` are those of generation. `alpha` is left out, since no reward is reported, and seed and number of
# rollouts have options of their own.
BORROWED: dict[str, tuple[str, type]] = {
    {"samples": "rollouts", "temperature": "rollout_temperature"}.get(f.name, f.name): (f.name, MethodConfig)
    for f in fields(MethodConfig)
    if f.metadata.get("changes") and f.name not in ("alpha", "eval_samples", "eval_seed")
} | {
    name: (name, DataConfig)
    for name in (
        "limit_documents",
        "test_split",
        "split_seed",
        "text_column",
        "prompt_column",
        "completion_column",
        "messages_column",
        "prompt_separator",
    )
}
# Translation has a template of its own.
BORROWED["calibration_prompt_template"] = ("prompt_template", DataConfig)
# Options that results from before there were any do not have: left out where they are not set, so that these compare.
ONLY_IF_SET = (
    "test_split",
    "prompt_separator",
    "calibration_prompt_template",
    "short_truths",
    "also_at_temperatures",
)
NOT_SET = "not set"  # what messages call these then
# Options of calibration that change no other number, or are told apart in another way.
HARMLESS = ("feature_model", "also_at_temperatures")


@dataclass
class EvalOptions:
    model: list[str] = _what([], "checkpoint folder, hub name or LoRA adapter folder; several are compared")
    tasks: list[str] = _what([], f"one or more of {', '.join(TASKS)}")
    output: str = _what("", "folder for results.json, results.md, generations and plots")
    compare: list[str] = _what(
        [], "instead of evaluating: folders with results.json, for one table with differences and one plot"
    )
    like: str | None = _what(
        None,
        "output folder of a run: calibration as it validated, on the text that it held out, and of its final model "
        "unless --model says otherwise; other options win",
    )
    limit: int | None = _what(None, "use only the first N problems of each task")
    seed: int = _what(0, "seed of all samples and rollouts")

    greedy: bool = _generation(True, "also one completion at temperature 0")
    samples: int = _generation(16, "completions per prompt at the temperature; 0: greedy only")
    temperature: float = _generation(0.6, "temperature of the samples")
    top_p: float | None = _generation(None, "sample from the smallest set of tokens with this probability")
    max_new_tokens: int | None = _generation(
        None, "longest completion in tokens; default: 512 for code, 256 for translation"
    )
    prompt_style: Literal["auto", "raw", "chat"] = _generation(
        "auto", "chat for the tokenizer's chat template, raw without one; auto: chat if it has one"
    )
    system_prompt: str | None = _generation(None, "what a chat begins with")
    too_long: Literal["error", "truncate"] = _generation(
        "error", "a prompt longer than the model's context: error, or truncate"
    )
    backend: Literal["transformers", "vllm"] = _generation("transformers", "transformers, or vllm if it is installed")

    humaneval: str = _code("openai/openai_humaneval", "HumanEval: JSONL file or hub name")
    mbpp: str = _code("google-research-datasets/mbpp:full", "MBPP: JSONL file or hub name")
    multipl_e: str = _code("nuprl/MultiPL-E", "MultiPL-E: hub name, or a folder with humaneval-LANGUAGE.jsonl files")
    languages: list[str] = _code(list(LANGUAGES), "languages of MultiPL-E")
    workers: int | None = _code(None, "programs run at once; default: one per core")
    timeout: float | None = _code(None, "seconds a program may run; default: each task's own")
    score: bool = _code(
        True, "run the programs; --no-score only generates, for `ebft score OUTPUT` where there is a sandbox"
    )
    unsafe_exec: bool = _code(False, "run programs without a sandbox if there is none: at your own risk")

    translation_data: str | None = _translation(None, "file, folder or hub name (name:configuration)")
    translation_split: str = _translation("test", "its split")
    source_field: str | None = _translation(
        None, "field of the source, such as en; default: src, source, or the first of two"
    )
    target_field: str | None = _translation(
        None, "field of the reference(s), such as de; default: ref, refs, or the second of two"
    )
    source_language: str | None = _translation(None, "its name for the prompt, if the field is not a language code")
    target_language: str | None = _translation(None, "its name for the prompt, if the field is not a language code")
    prompt_template: str | None = _translation(
        None, "with {source}, {source_language} and {target_language}; default: ALMA's"
    )
    bleu_tokenize: str | None = _translation(None, "sacrebleu's tokenizer; default: by target language")
    comet_model: str | None = _translation(None, "name or path of a COMET model; default: no COMET")
    comet_python: str | None = _translation(
        None, "Python of an environment with unbabel-comet; default: the running one"
    )

    calibration_data: str | None = _calibration(
        None, "file, folder, hub name or built-in (stdlib-functions, stdlib-code, toy-functions)"
    )
    calibration_split: str = _calibration("validation", "its split")
    held_out: float = _calibration(0.0, "only the documents that training with this validation_split held out; 0: all")
    sequences: int = _calibration(128, "maximum number of sequences")
    feature_model: str | None = _calibration(
        None, "the frozen feature network: folder or hub name; default: the first model, as it says"
    )
    profile_lengths: list[int] = _calibration(
        list(LENGTHS), "completion lengths of the profile, by default as far as they fit; none: no profile"
    )
    profile_stride: int = _calibration(
        STRIDE, "tokens between the profile's anchors; by default at most half a context"
    )
    also_at_temperatures: list[float] = _calibration(
        [], "further temperatures at which the feature-matching loss is measured, such as 1.0"
    )
    calibration_batch_size: int = _calibration(4, "sequences at once")

    batch_size: int | None = _running(
        None, "completions generated at once; default: 16 on a CPU, on a GPU as many as fit in half its free memory"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _running(
        "auto", "auto (float32 on a CPU, bfloat16 on a GPU), float32, bfloat16 or float16"
    )
    device: str = _running("auto", "auto, cpu, cuda, cuda:1, ...")
    trust_remote_code: bool = _running(False, "run code that comes with a model from the hub")
    overwrite: bool = _running(False, "make everything again, also what another setting made")
    replace_changed: bool = _running(False, "make again what other settings or another model made, and nothing else")

    # ---- borrowed: given by their flags, kept as the objects that the method and the data are read by
    method: MethodConfig = field(default_factory=MethodConfig)
    data: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise ConfigError(f"unknown task {task!r}; there is {', '.join(TASKS)}{nearest(task, TASKS)}")
        for language in self.languages:
            if language not in LANGUAGES:
                raise ConfigError(
                    f"unknown language {language!r}; there is {', '.join(LANGUAGES)}{nearest(language, LANGUAGES)}"
                )
        if self.prompt_template is not None and self.tasks and "translation" not in self.tasks:
            raise ConfigError(
                "prompt_template is that of translation, which is not among the tasks; the prompts of calibration_data "
                "are made with calibration_prompt_template"
            )
        check_choices(self, EvalOptions)
        at_least(self, 1, "limit", "sequences", "batch_size", "calibration_batch_size", "workers", "max_new_tokens")
        if self.samples < 0:
            raise ConfigError(f"samples={self.samples} must be 0 (greedy only) or more")
        if self.samples and not self.temperature > 0:
            raise ConfigError(f"temperature={self.temperature} must be above 0 for samples; for greedy, use samples=0")
        if not all(0 < temperature < math.inf for temperature in self.also_at_temperatures):
            raise ConfigError(f"also_at_temperatures={self.also_at_temperatures} must be finite and above 0")
        if not self.samples and not self.greedy:
            raise ConfigError("samples=0 without greedy leaves nothing to generate")
        if "calibration" in self.tasks:
            self.profile.check(self.method.context_length)

    @property
    def profile(self) -> Profile:
        return Profile(tuple(sorted(self.profile_lengths)), self.profile_stride)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> EvalOptions:
        """From the text of flags or from a recipe: names and types are checked."""
        if values.get("like"):
            values = {**validation_options(values["like"], BORROWED, values.get("calibration_data")), **values}
        if values.get("profile_lengths") in ("none", ["none"]):
            values = {**values, "profile_lengths": []}
        types = {name: types_of(owner)[f.name] for name, f, owner in options()}
        given: dict[type, dict[str, Any]] = {EvalOptions: {}, MethodConfig: {}, DataConfig: {}}
        for name, value in values.items():
            if name not in types:
                raise ConfigError(f"unknown option {name!r} of an evaluation{nearest(name, types)}")
            inner, owner = BORROWED.get(name, (name, EvalOptions))
            given[owner][inner] = convert(name, value, types[name])
        usual = Profile.fitting(
            given[MethodConfig].get("context_length", MethodConfig().context_length),
            given[EvalOptions].get("profile_stride"),
        )
        given[EvalOptions] = {
            "profile_lengths": list(usual.lengths),
            "profile_stride": usual.stride,
            **given[EvalOptions],
        }
        rollouts = given[MethodConfig].get("samples")
        if rollouts is not None and rollouts < 2:  # by the name that was given
            raise ConfigError(f"rollouts={rollouts} must be at least 2 for the unbiased feature-matching loss")
        method = MethodConfig(**given[MethodConfig], eval_seed=given[EvalOptions].get("seed", 0))
        return cls(**given[EvalOptions], method=method, data=DataConfig(**given[DataConfig]))

    def values(self, *groups: str) -> dict[str, Any]:
        """The options of some groups, by the names of their flags."""
        owners: dict[type, Any] = {EvalOptions: self, MethodConfig: self.method, DataConfig: self.data}
        return {name: getattr(owners[owner], f.name) for name, f, owner in options() if group_of(name, f) in groups}


def options() -> Iterator[tuple[str, Field[Any], type]]:
    """Every option: its name, the field that declares it, and the class that the field is of."""
    for f in fields(EvalOptions):
        if "group" in f.metadata:
            yield f.name, f, EvalOptions
    for name, (inner, owner) in BORROWED.items():
        yield name, next(f for f in fields(owner) if f.name == inner), owner


def group_of(name: str, f: Field[Any]) -> str:
    return "calibration" if name in BORROWED else f.metadata["group"]


@cache
def types_of(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def parse(arguments: list[str], parser: argparse.ArgumentParser) -> EvalOptions:
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for name, f, _ in options():
        groups[group_of(name, f)].add_argument("--" + name.replace("_", "-"), **_argument(name, f))
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    for name in ("tasks", "languages", "profile_lengths", "also_at_temperatures", "feature_layers"):
        if name in given:
            given[name] = [item for value in given[name] for item in value.split(",") if item not in ("", "none")]
    return EvalOptions.from_values(given)


def _argument(name: str, f: Field[Any]) -> dict[str, Any]:
    default = default_of(f)
    shown = ",".join(map(str, default)) if isinstance(default, list) else default
    help = f.metadata["help"].replace("%", "%%")
    if shown not in ("", None, False) and "default:" not in help:
        help += f" [{shown}]"
    if isinstance(default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": help}
    if isinstance(default, list):
        return {"nargs": "+", "action": "extend", "metavar": name.upper(), "help": help}
    return {"metavar": "VALUE", "help": help}
