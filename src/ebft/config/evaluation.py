"""Every option of `ebft eval`. In training, `eval_task_options` takes the same names.

Calibration measures with the method's own settings, and reads its documents by those of training: they are not declared
a second time, but taken from `MethodConfig` and `DataConfig` (`BORROWED`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from ebft.config.data import DataConfig
from ebft.config.method import MethodConfig, settings_that_change
from ebft.config.settings import Setting, Values, check, check_name, option, typed, types_of
from ebft.errors import ConfigError
from ebft.runtime.files import read_json

Language = Literal["cpp", "js", "ts", "rs", "cs", "go", "php", "java"]
LANGUAGES = get_args(Language)
Task = Literal["calibration", "humaneval", "mbpp", "multipl-e", "translation"]
TASKS = get_args(Task)
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)
# The groups of the options, by the first option of each.
GROUPS = {"model": "what", "greedy": "generation", "humaneval": "code", "translation_data": "translation"}
GROUPS |= {"calibration_data": "calibration", "batch_size": "running"}
# What calibration takes of the method's settings and of the data's, by the names it has there and here. Seed, number of
# rollouts and temperature have names of their own, since those of generation are others; no reward is reported.
_OF_METHOD = {*settings_that_change("text", "features", "proxy")} - {"alpha", "eval_samples", "eval_seed"}
_OF_DATA = ("limit_documents", "test_split", "split_seed", "text_column", "prompt_column", "completion_column")
_RENAMED = {"samples": "rollouts", "temperature": "rollout_temperature"}
BORROWED: dict[str, tuple[str, type]] = {
    **{_RENAMED.get(f.name, f.name): (f.name, MethodConfig) for f in fields(MethodConfig) if f.name in _OF_METHOD},
    **{name: (name, DataConfig) for name in (*_OF_DATA, "messages_column", "prompt_separator")},
    "calibration_prompt_template": ("prompt_template", DataConfig),  # translation has a template of its own
}
# Options of calibration that change no other number, or are told apart in another way.
HARMLESS = ("feature_model", "also_at_temperatures")


@dataclass
class EvalOptions:
    model: list[str] = option([], "checkpoint folder, hub name or LoRA adapter folder; several are compared")
    tasks: list[Task] = option([], f"one or more of {', '.join(TASKS)}")
    output: str = option("", "folder for results.json, results.md, generations and plots")
    compare: list[str] = option([], "instead of evaluating: folders with results.json, for one table and one plot")
    like: str | None = option(None, "output folder of a run: its final model, and calibration as it validated")
    limit: int | None = option(None, "use only the first N problems of each task", 1)
    seed: int = option(0, "seed of all samples and rollouts")

    greedy: bool = option(True, "also one completion at temperature 0")
    samples: int = option(16, "completions per prompt at the temperature; 0: greedy only", 0)
    temperature: float = option(0.6, "temperature of the samples", 0)
    top_p: float | None = option(None, "sample from the smallest set of tokens with this probability")
    max_new_tokens: int | None = option(None, "longest completion; default: 512 for code, 256 for translation", 1)
    prompt_style: Literal["auto", "raw", "chat"] = option("auto", "raw, or by the chat template; auto: if there is one")
    system_prompt: str | None = option(None, "what a chat begins with")
    too_long: Literal["error", "truncate"] = option("error", "a prompt beyond the model's context: error, or truncate")
    backend: Literal["transformers", "vllm"] = option("transformers", "transformers, or vllm if it is installed")

    humaneval: str = option("openai/openai_humaneval", "HumanEval: JSONL file or hub name")
    mbpp: str = option("google-research-datasets/mbpp:full", "MBPP: JSONL file or hub name")
    multipl_e: str = option("nuprl/MultiPL-E", "MultiPL-E: hub name, or a folder with humaneval-LANGUAGE.jsonl files")
    languages: list[Language] = option(list(LANGUAGES), "languages of MultiPL-E")
    workers: int | None = option(None, "programs run at once; default: one per core", 1)
    timeout: float | None = option(None, "seconds a program may run; default: each task's own", 0.1)
    score: bool = option(True, "run the programs; --no-score only generates, for `ebft score OUTPUT` elsewhere")
    unsafe_exec: bool = option(False, "run programs without a sandbox if there is none: at your own risk")

    translation_data: str | None = option(None, "file, folder or hub name (name:configuration)")
    translation_split: str = option("test", "its split")
    source_field: str | None = option(None, "field of the source, such as en; default: src, or the first of two")
    target_field: str | None = option(None, "field of the reference(s); default: ref, refs, or the second of two")
    source_language: str | None = option(None, "its name for the prompt, if the field is not a language code")
    target_language: str | None = option(None, "its name for the prompt, if the field is not a language code")
    prompt_template: str | None = option(None, "with {source}, {source_language}, {target_language}; default: ALMA's")
    bleu_tokenize: str | None = option(None, "sacrebleu's tokenizer; default: by target language")
    comet_model: str | None = option(None, "name or path of a COMET model; default: no COMET")
    comet_python: str | None = option(None, "Python of an environment with unbabel-comet; default: the running one")

    calibration_data: str | None = option(None, "file, folder, hub name or built-in (stdlib-functions, ...)")
    calibration_split: str = option("validation", "its split")
    held_out: float = option(0.0, "only the documents that training with this validation_split held out; 0: all")
    sequences: int = option(128, "maximum number of sequences", 1)
    feature_model: str | None = option(None, "the frozen feature network; default: the first model, as it says")
    profile_lengths: list[int] = option(list(LENGTHS), "completion lengths of the profile, as far as they fit; or none")
    profile_stride: int = option(64, "tokens between the profile's anchors, at most half a context", 1)
    also_at_temperatures: list[float] = option([], "further temperatures of the feature-matching loss, such as 1.0")
    calibration_batch_size: int = option(4, "sequences at once", 1)

    batch_size: int | None = option(None, "completions generated at once; default: 16 on a CPU, on a GPU what fits", 1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto", "auto: bfloat16 on a GPU, else float32")
    device: str = option("auto", "auto, cpu, cuda, cuda:1, ...")
    trust_remote_code: bool = option(False, "run code that comes with a model from the hub")
    overwrite: bool = option(False, "make everything again, also what another setting made")
    replace_changed: bool = option(False, "make again what other settings or another model made, and nothing else")

    # ---- borrowed: given by their flags, kept as the objects that the method and the data are read by
    method: MethodConfig = field(default_factory=MethodConfig)
    data: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        if self.prompt_template is not None and self.tasks and "translation" not in self.tasks:
            raise ConfigError("prompt_template is translation's; calibration has --calibration-prompt-template")
        check(self)
        if min(self.also_at_temperatures, default=1) <= 0 or not (self.samples or self.greedy):
            raise ConfigError("also_at_temperatures must be above 0, and samples too, unless greedy is true")
        context = self.method.context_length
        self.profile_stride = min(self.profile_stride, max(1, context // 2))
        self.profile_lengths = sorted(n for n in self.profile_lengths if 1 <= n <= context - self.profile_stride)

    @classmethod
    def from_values(cls, values: Values) -> EvalOptions:
        """From the text of flags or from a recipe, by the names of the flags."""
        if values.get("like"):
            values = {**as_the_run_validated(str(values["like"]), values.get("calibration_data")), **values}
        kinds = {name: types_of(owner)[f.name] for name, f, owner in options()}
        given: dict[type, Values] = {EvalOptions: {}, MethodConfig: {}, DataConfig: {}}
        for name, value in values.items():
            check_name(name, kinds, "option", " of an evaluation")
            inner, owner = BORROWED.get(name, (name, EvalOptions))
            given[owner][inner] = typed(name, value, kinds[name])
        own = given[EvalOptions]
        method = MethodConfig(**given[MethodConfig], eval_seed=own.get("seed", 0))
        return cls(**own, method=method, data=DataConfig(**given[DataConfig]))

    def values(self, *groups: str) -> Values:
        """The options of some groups, by the names of their flags."""
        owners: dict[type, object] = {EvalOptions: self, MethodConfig: self.method, DataConfig: self.data}
        return {name: getattr(owners[owner], f.name) for name, f, owner in options(*groups)}


def options(*groups: str) -> Iterator[tuple[str, Setting, type]]:
    """The options of these groups, or all: the name, the field that declares it, and the class that this is of."""
    group = ""
    for f in fields(EvalOptions)[:-2]:  # without what holds the borrowed ones
        group = GROUPS.get(f.name, group)
        if not groups or group in groups:
            yield f.name, f, EvalOptions
    if not groups or "calibration" in groups:
        for name, (inner, owner) in BORROWED.items():
            yield name, next(f for f in fields(owner) if f.name == inner), owner


def settings_of_run(folder: Path) -> Values | None:
    """Of a run's folder, or of a model or checkpoint inside one."""
    found = (read_json(place / "resolved.json") for place in (folder, folder.parent))
    return next((settings for settings in found if isinstance(settings, dict)), None)


def as_the_run_validated(folder: str, text: str | None = None) -> Values:
    """The options that measure what a run measured, on the same text, or on another one, which is taken whole."""
    settings = settings_of_run(Path(folder).expanduser())
    if settings is None or "dataset" not in settings:  # such as of a run by the Python trainer
        raise ConfigError(f"like={folder}: no run is there; give its output folder, which has a resolved.json")
    found = {name: settings[inner] for name, (inner, _) in BORROWED.items() if inner in settings}
    found |= {"model": [folder], "rollouts": settings.get("eval_samples") or settings["samples"]}
    found |= {"seed": settings["eval_seed"], "feature_model": settings.get("feature_model") or settings["model"]}
    own, trained_on = settings.get("validation_dataset"), settings["dataset"]
    theirs = own or (trained_on[0] if len(trained_on) == 1 else None)
    if text is not None and Path(text).expanduser().resolve() != Path(theirs or "").expanduser().resolve():
        return {name: found[name] for name in found if name not in ("limit_documents", "test_split", "split_seed")}
    if theirs is None or not (own or settings["validation_split"]):
        raise ConfigError(f"like={folder}: that run held out no text of a single dataset; give --calibration-data")
    found |= {"calibration_data": theirs, "sequences": settings["validation_sequences"]}
    found["calibration_split"] = settings["validation_dataset_split" if own else "dataset_split"]
    return found | ({"held_out": 0.0, "test_split": 0.0} if own else {"held_out": settings["validation_split"]})
