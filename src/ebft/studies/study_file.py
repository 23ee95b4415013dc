"""A study as its file says it: methods, each in some settings, with several seeds, and how final models are tested.

```yaml
output_dir: runs/my-study
recipe: recipe.yaml            # what all runs share, by file (from the study's folder) ...
settings: {test_split: 200}    # ... and here
seeds: [0, 1, 2]
methods:
  sft: {search: {learning_rate: [1.0e-5, 3.0e-5]}}
  ebft: {grid: {gamma: [0, 0.1]}, search: {learning_rate: [1.0e-6, 3.0e-6]}}
  ebft-ws: {method: ebft, after: sft}
evaluation: {tasks: [calibration, humaneval]}
```

Everything is checked before anything starts: names, types, and every run as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebft.config.convert import convert
from ebft.config.evaluation import BORROWED, EvalOptions
from ebft.config.method import MethodConfig
from ebft.config.recipe import field_types, known_settings, read_values
from ebft.config.shipped import find_recipe
from ebft.config.synonyms import suggestion
from ebft.errors import ConfigError, nearest
from ebft.method.measures import NAMES
from ebft.studies.points import check_folder, load_for_elsewhere, name_of

COMMANDS = {"ebft": "train", "sft": "sft", "rlvr": "rlvr"}  # the command of each method
_KEYS = (
    "name",
    "output_dir",
    "recipe",
    "settings",
    "seeds",
    "search_seed",
    "choose_by",
    "grid",
    "methods",
    "evaluation",
    "paper",
)
_METHOD_KEYS = ("method", "after", "recipe", "settings", "seeds", "grid", "search", "choose_by")
PAPER_TASKS = ("qa_code", "unstructured_code", "translation")
# The study decides these for every run.
_DECIDED = ("output_dir", "seed", "sweep")
_DATA = ("dataset", "validation_dataset")


@dataclass(frozen=True)
class Method:
    """One line of the study: a training method with its own settings."""

    name: str
    kind: str  # ebft, sft or rlvr
    settings: dict[str, Any]  # of all its runs, the study's included
    grid: dict[str, list[Any]]  # settings to report side by side
    search: dict[str, list[Any]]  # settings to choose on validation
    seeds: tuple[int, ...]
    choose_by: str
    after: str | None = None  # the method whose final models it starts from

    @property
    def command(self) -> str:
        return COMMANDS[self.kind]

    @property
    def candidates(self) -> list[dict[str, Any]]:
        return combinations(self.search)


@dataclass(frozen=True)
class Row:
    """A method in one setting of its grid: a row of the report's tables."""

    method: Method
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ",".join(part for part in (self.method.name, name_of(self.values)) if part)

    @property
    def title(self) -> str:
        """For people: `ebft (gamma 0.1)`."""
        shown = name_of(self.values).replace("=", " ").replace(",", ", ")
        return f"{self.method.name} ({shown})" if shown else self.method.name


@dataclass(frozen=True)
class Study:
    name: str
    folder: Path
    common: dict[str, Any]  # settings that all runs share
    methods: dict[str, Method]
    search_seed: int | None  # for searches; None: each method's first seed
    evaluation: dict[str, Any]  # options of `ebft eval`, without models and output
    text: str  # of the file, for the manifest
    paper: str | None = None  # which of the paper's tasks it is about, for `ebft study report --paper`

    @property
    def rows(self) -> list[Row]:
        return [Row(method, values) for method in self.methods.values() for values in combinations(method.grid)]

    def seed_of_search(self, method: Method) -> int:
        return method.seeds[0] if self.search_seed is None else self.search_seed


def combinations(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def read_study(file: str | Path) -> Study:
    path = find_recipe(file, "study")
    given = read_values(path)
    if "model" in given and "methods" not in given:
        raise ConfigError(f"{path}: this is the recipe of one run, for `ebft train --config`; a study has `methods`")
    _check_keys(given, _KEYS, "the study")
    output = given.get("output_dir")
    if not isinstance(output, str) or not output:
        raise ConfigError(f"{path}: no output folder: set `output_dir`, in which every run gets a folder of its own")
    check_folder(Path(output).expanduser())
    common = _typed({**_recipe(given, path), **_mapping(given, "settings", "the study")})
    methods = given.get("methods")
    if not isinstance(methods, dict) or not methods:
        raise ConfigError(f"{path}: no methods: give `methods`, a mapping of names to their settings")
    found: dict[str, Method] = {}
    for name, values in methods.items():
        found[str(name)] = _method(str(name), values or {}, given, common, path)
    common.pop("output_dir", None)
    study = Study(
        name=str(given.get("name") or path.stem),
        folder=Path(output).expanduser(),
        common=common,
        methods=found,
        search_seed=None if given.get("search_seed") is None else _seeds([given["search_seed"]], "search_seed")[0],
        evaluation=_evaluation(given, common),
        text=path.read_text(encoding="utf-8"),
        paper=given.get("paper"),
    )
    if study.paper not in (None, *PAPER_TASKS):
        raise ConfigError(f"`paper: {study.paper}` is not one of {', '.join(PAPER_TASKS)}")
    _check_order(study)
    _check_runs(study)
    return study


def _typed(settings: dict[str, Any]) -> dict[str, Any]:
    """With the names of data as a run would have them, since the test is compared with these."""
    types = field_types("train")
    data = {name: convert(name, settings[name], types[name]) for name in _DATA if settings.get(name) is not None}
    return {**settings, **data}


def _check_keys(given: dict[str, Any], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(
                f"unknown key {name!r} in {where}; there is {', '.join(known)}{nearest(str(name), known)}"
            )


def _mapping(given: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = given.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"`{key}` of {where} is a mapping of settings to values, not {value!r}")
    for name in _DECIDED:
        if name in value:
            raise ConfigError(f"{name} in `{key}` of {where} is decided by the study; take it out")
    return value


def _recipe(given: dict[str, Any], study: Path) -> dict[str, Any]:
    """The settings of a recipe that the study names; its own output folder and seed are not those of a study."""
    if (file := given.get("recipe")) is None:
        return {}
    values = read_values(study.parent / Path(str(file)).expanduser())
    return {name: value for name, value in values.items() if name not in _DECIDED}


def _method(name: str, given: Any, study: dict[str, Any], common: dict[str, Any], path: Path) -> Method:
    where = f"the method {name}"
    if not isinstance(given, dict):
        raise ConfigError(f"{where} is a mapping with {', '.join(_METHOD_KEYS)}, not {given!r}")
    _check_keys(given, _METHOD_KEYS, where)
    kind = given.get("method", name)
    if kind not in COMMANDS:
        raise ConfigError(
            f"{where} is none of {', '.join(COMMANDS)}{nearest(name, COMMANDS) or '; say which with `method: ebft`'}"
            if "method" not in given
            else f"`method: {kind}` of {where} is not one of {', '.join(COMMANDS)}{nearest(str(kind), COMMANDS)}"
        )
    grid = {**_lists(study, "grid", "the study", kind), **_lists(given, "grid", where, kind)}
    search = _lists(given, "search", where, kind)
    if both := sorted(grid.keys() & search.keys()):
        raise ConfigError(f"{both[0]} of {where} is both in `grid` and in `search`; report it or choose it")
    return Method(
        name=name,
        kind=kind,
        settings={
            **common,
            **_recipe(given, path),
            **_mapping(study, "settings", "the study"),
            **_mapping(given, "settings", where),
        },
        grid=grid,
        search=search,
        seeds=_seeds(given.get("seeds", study.get("seeds", [0])), "seeds"),
        choose_by=str(given.get("choose_by", study.get("choose_by", "cross_entropy"))),
        after=given.get("after"),
    )


def _lists(given: dict[str, Any], key: str, where: str, kind: str) -> dict[str, list[Any]]:
    values = _mapping(given, key, where)
    known, types = known_settings(COMMANDS[kind]), field_types(COMMANDS[kind])
    for name, listed in values.items():
        if name not in known:
            raise ConfigError(f"unknown setting {name!r} in `{key}` of {where}{suggestion(str(name), known)}")
        if not isinstance(listed, list) or not listed:
            raise ConfigError(f"`{key}` of {where}: {name} is a list of values, such as [0, 0.1], not {listed!r}")
        try:
            distinct = {repr(convert(name, value, types[name])) for value in listed}
        except ConfigError as error:
            raise ConfigError(f"`{key}` of {where}: {error}") from None
        if len(distinct) < len(listed):
            raise ConfigError(f"`{key}` of {where}: {name} has a value twice")
    return {name: [convert(name, value, types[name]) for value in listed] for name, listed in values.items()}


def _seeds(given: Any, key: str) -> tuple[int, ...]:
    if not isinstance(given, list) or not given or not all(type(seed) is int and seed >= 0 for seed in given):
        raise ConfigError(f"`{key}` is a list of whole numbers from 0, such as [0, 1, 2], not {given!r}")
    if len(set(given)) < len(given):
        raise ConfigError(f"`{key}` has a number twice: {given}")
    return tuple(given)


def _check_order(study: Study) -> None:
    """A method that starts from another one comes after it, and knows which of its models is meant."""
    before: list[str] = []
    for method in study.methods.values():
        if method.after is not None:
            if method.after not in before:
                raise ConfigError(
                    f"the method {method.name} starts after {method.after!r}, which is not one of the methods above it"
                    f"{nearest(str(method.after), before)}"
                )
            parent = study.methods[method.after]
            if differs := [name for name in parent.grid if method.grid.get(name) != parent.grid[name]]:
                raise ConfigError(
                    f"the method {method.name} starts after {parent.name}, which has several settings of {differs[0]}; "
                    "give both the same `grid`, or a method of its own to start from"
                )
            missing = set(method.seeds) - set(parent.seeds)
            if missing and len(parent.seeds) > 1:
                raise ConfigError(
                    f"the method {method.name} has the seed {min(missing)}, which {parent.name} before it has not; "
                    "give both the same seeds, or the first just one"
                )
        before.append(method.name)


def _check_runs(study: Study) -> None:
    names = [row.name for row in study.rows]
    if len(set(names)) < len(names):
        raise ConfigError("two rows of the study have the same name; give every value once")
    for row in study.rows:
        for values in row.method.candidates:
            settings = {**row.method.settings, **row.values, **values, "output_dir": "x"}
            try:
                recipe = load_for_elsewhere(settings, row.method.command)
            except ValueError as error:
                raise ConfigError(f"{row.name}: {error}") from None
            if row.method.search and row.method.choose_by not in NAMES and not recipe.training.eval_tasks:
                known = ", ".join(NAMES)
                wrong = f"`choose_by: {row.method.choose_by}` is no metric of validation; there is {known}"
                raise ConfigError(f"{row.name}: {wrong}{nearest(row.method.choose_by, NAMES)}")
            if row.method.search and not (recipe.data.validation_split or recipe.data.validation_dataset):
                raise ConfigError(f"{row.name}: `search` needs validation data; set validation_split")


def _evaluation(given: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """The options of `ebft eval` for every final model. Calibration measures as validation does, on the test split."""
    options = given.get("evaluation", {})
    if options is None or options is False:
        return {}
    if not isinstance(options, dict):
        raise ConfigError(f"`evaluation` is a mapping of options of `ebft eval`, not {options!r}")
    for name in ("model", "output", "compare", "overwrite", "replace_changed"):
        if name in options:
            raise ConfigError(f"{name} in `evaluation` is decided by the study; take it out")
    options = {"tasks": ["calibration"], **options}
    if "calibration" in options["tasks"]:
        options = {**_as_validated(common), **options}
    if common.get("use_cpu"):
        options.setdefault("device", "cpu")
    EvalOptions.from_values(options)
    if "calibration" in options["tasks"]:
        _check_test_data(options, common)
    return options


def _as_validated(common: dict[str, Any]) -> dict[str, Any]:
    """Options of calibration that say the same as the settings of the runs, by their names there."""
    found = {
        name: common[inner]
        for name, (inner, owner) in BORROWED.items()
        if inner in common and (owner is MethodConfig or name != "test_split")
    }
    if common.get("eval_samples"):
        found["rollouts"] = common["eval_samples"]
    if common.get("per_device_eval_batch_size"):
        found["calibration_batch_size"] = common["per_device_eval_batch_size"]
    if "model" in common:
        found["feature_model"] = common.get("feature_model") or common["model"]
    sources = common.get("dataset") or []
    if common.get("test_split") and len(sources) == 1:
        found |= {"calibration_data": sources[0], "calibration_split": common.get("dataset_split", "train")}
        found["test_split"] = common["test_split"]
    return found


def _check_test_data(options: dict[str, Any], common: dict[str, Any]) -> None:
    """The test must be on text that nothing was trained or chosen on."""
    data, split = options.get("calibration_data"), options.get("calibration_split", "validation")
    if data is None:
        raise ConfigError(
            "no test data: set `test_split` in `settings`, which keeps documents of the dataset for the test, or "
            "`calibration_data` and `calibration_split` in `evaluation`"
        )
    if options.get("test_split"):
        return
    test = _place(data, split)
    sources = common.get("dataset") or []
    if test in [_place(source, common.get("dataset_split", "train")) for source in sources]:
        raise ConfigError(f"the test data, {data}, are the training data; set `test_split` in `settings` instead")
    if (chosen_on := common.get("validation_dataset")) is not None and test == _place(
        chosen_on, common.get("validation_dataset_split", "validation")
    ):
        raise ConfigError(
            f"the test data, {data} ({split}), are the validation data, on which learning rates are chosen; give others"
        )


def _place(source: str, split: str) -> tuple[str, str]:
    """The same for the same rows: a single file and the standard library have no splits."""
    path = Path(source).expanduser()
    if path.exists():
        return str(path.resolve()), "" if path.is_file() else split
    return source, "" if source.startswith("stdlib-") else split
