"""A study as its file says it (docs/studies.md): methods, each in some settings, with several seeds, and how final
models are tested. A sweep is a study of one method without seeds and tests.

Every run is loaded as a recipe before anything starts: that checks names and values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebft.config.evaluation import BORROWED, EvalOptions
from ebft.config.recipe import Recipe, field_types, find_recipe, load_recipe, read_values
from ebft.config.settings import typed
from ebft.errors import ConfigError, nearest
from ebft.method.measures import NAMES

Settings = dict[str, Any]
COMMANDS = {"ebft": "train", "sft": "sft", "rlvr": "rlvr"}  # the command of each method
# What may stand at the top of a file, and under the name of a method; and what each is if left out.
_OF_BOTH: Settings = {"recipe": None, "settings": {}, "grid": {}, "seeds": [0], "choose_by": "cross_entropy"}
_OF_STUDY = {**_OF_BOTH, "methods": {}, **dict.fromkeys(("name", "output_dir", "search_seed", "evaluation", "paper"))}
_OF_METHOD = {**_OF_BOTH, "search": {}, "method": None, "after": None}
_DECIDED = ("output_dir", "seed", "sweep")  # of every run by the study


@dataclass(frozen=True)
class Row:
    """A method in one setting of its grid: a row of the report's tables. Or a point of a sweep."""

    method: str
    command: str  # train, sft or rlvr
    values: Settings  # of its grid
    settings: Settings  # of all its runs: these values and all others
    candidates: list[Settings] = field(default_factory=lambda: [{}])  # settings to choose on validation
    choose_by: str = "cross_entropy"
    seeds: Sequence[int | None] = (None,)
    search_seed: int | None = None
    after: str | None = None  # the row whose final models it starts from
    features: str | None = None  # the row whose final models are its feature networks

    @property
    def name(self) -> str:
        return named(self.method, self.values)


@dataclass(frozen=True)
class Study:
    name: str
    folder: Path
    rows: list[Row]
    evaluation: Settings = field(default_factory=dict)  # options of `ebft eval`, without models and output
    text: str = ""  # of the file
    paper: str | None = None  # which of the paper's tasks it is about, for `ebft study report --paper`
    kind: str = "study"  # or sweep


# ---- files ---------------------------------------------------------------------------------------------------------


def read_sweep(file: str | Path | None, overrides: Settings, sets: Sequence[str], command: str = "train") -> Study:
    """Every combination of a recipe's `sweep:` section and of `--set name=value,value`, which wins."""
    values = {**({} if file is None else read_values(file)), **overrides}
    of_flags: dict[str, list[str]] = {}
    for text in sets:
        name, _, listed = text.partition("=")
        of_flags.setdefault(name.strip().replace("-", "_"), []).extend(map(str.strip, listed.split(",")))
    lists = {**typed("sweep", values.pop("sweep", {}), dict), **of_flags}
    if not lists or not values.get("output_dir"):
        raise ConfigError("a sweep needs --set name=value,value or a `sweep:` section, and an output_dir for its runs")
    rows = [Row("", command, point, {**values, **point}) for point in combinations(lists, "the sweep", command)]
    return _checked(Study("sweep", Path(str(values["output_dir"])).expanduser(), rows, kind="sweep"))


def read_study(file: str | Path) -> Study:
    path = find_recipe(file, "study")
    given = _keys(read_values(path), _OF_STUDY, str(path))
    if not given["output_dir"] or not given["methods"]:
        raise ConfigError(f"{path}: a study needs `output_dir` and `methods`")
    shared, rows = {**_of_recipe(given, path), **given["settings"]}, list[Row]()
    for name, keys in given["methods"].items():
        known = {**_OF_METHOD, "seeds": given["seeds"], "choose_by": given["choose_by"]}
        method = _keys(keys, known, f"the method {name}")
        settings = {**shared, **_of_recipe(method, path), **given["settings"], **method["settings"]}
        rows += _rows(str(name), method, given, settings, rows)
    tests = {} if given["evaluation"] is False else _evaluation(given["evaluation"] or {}, shared)
    name, folder = str(given["name"] or path.stem), Path(str(given["output_dir"])).expanduser()
    return _checked(Study(name, folder, rows, tests, path.read_text(encoding="utf-8"), given["paper"]))


def _keys(values: object, known: Settings, where: str) -> Settings:
    """The values of a mapping, with those that are left out."""
    given = {name: value for name, value in typed(where, values or {}, dict).items() if value is not None}
    if odd := [str(name) for name in given if name not in known]:
        raise ConfigError(f"{where}: unknown key {odd[0]!r}; there is {', '.join(known)}{nearest(odd[0], known)}")
    kinds: dict[type, Any] = {dict: dict, list: list[int]}
    return {n: typed(f"{where}: {n}", given.get(n, of), kinds.get(type(of), Any)) for n, of in known.items()}


def _of_recipe(given: Settings, study: Path) -> Settings:
    """The settings of a recipe that the study names; its own output folder and seed are not those of a study."""
    file = given["recipe"]
    values = {} if file is None else read_values(study.parent / Path(str(file)).expanduser())
    return {name: value for name, value in values.items() if name not in _DECIDED}


def _rows(name: str, given: Settings, study: Settings, settings: Settings, above: Sequence[Row]) -> list[Row]:
    """A method in every setting of its grid. above: the rows of the methods before it."""
    where, kind, grid = f"the method {name}", given["method"] or name, {**study["grid"], **given["grid"]}
    if kind not in COMMANDS:
        raise ConfigError(f"{where}: `method` is one of {', '.join(COMMANDS)}{nearest(str(kind), COMMANDS)}")
    search, command = given["search"], COMMANDS[kind]
    if wrong := [key for key in (*settings, *grid, *search) if key in _DECIDED or (key in grid and key in search)]:
        raise ConfigError(f"{where}: {wrong[0]} is decided by the study, or is both in `grid` and in `search`")
    seeds = list(dict.fromkeys(given["seeds"])) or [0]
    search_seed = seeds[0] if study["search_seed"] is None else typed("search_seed", study["search_seed"], int)
    rows = []
    for values in combinations(grid, f"`grid` of {where}", command):
        of_row, features = {**settings, **values}, None
        if of_row.get("feature_model") in study["methods"]:
            features = of_row.pop("feature_model")
        # A method whose features are its own, or of one that comes later, has those of its model.
        features = features if any(row.method == features for row in above) else None
        parents = [method and _parent(name, method, values, seeds, above) for method in (given["after"], features)]
        candidates = combinations(search, f"`search` of {where}", command)
        how = (candidates, given["choose_by"], seeds, search_seed)
        rows.append(Row(name, command, values, of_row, *how, *parents))
    return rows


def _parent(name: str, method: str, values: Settings, seeds: Sequence[int], above: Sequence[Row]) -> str:
    """The row whose final models another one needs: of a method above it in the same setting, with all its seeds or
    with only one."""
    found = [row for row in above if row.method == method and row.values.items() <= values.items()]
    if len(found) != 1 or (len(found[0].seeds) > 1 and not {*seeds} <= {*found[0].seeds}):
        same = f"no method above it with the same `grid` and seeds{nearest(method, [row.method for row in above])}"
        raise ConfigError(f"the method {name} starts after {method!r}, which is {same}")
    return found[0].name


def _checked(study: Study) -> Study:
    """Every run is loaded as a recipe, and what a search chooses by will be measured."""
    for row, values in ((one, values) for one in study.rows for values in one.candidates):
        try:
            recipe = load({**row.settings, **values, "output_dir": "x"}, row.command)
        except ValueError as error:
            raise ConfigError(f"{row.name}: {error}") from None
        has_text = recipe.data.validation_split or recipe.data.validation_dataset
        if values and not (has_text and (row.choose_by in NAMES or recipe.training.eval_tasks)):
            known = f"set validation_split, and choose by {', '.join(NAMES)}{nearest(row.choose_by, NAMES)}"
            raise ConfigError(f"{row.name}: validation does not measure `choose_by: {row.choose_by}`; {known}")
    return study


def load(values: Settings, command: str) -> Recipe:
    """A checked recipe that may run on another machine: a login node without a GPU can check bf16 runs too."""
    import torch

    if torch.cuda.is_available() or "use_cpu" in values:
        return load_recipe(None, values, command)
    recipe = load_recipe(None, {**values, "use_cpu": True}, command)
    del recipe.given["use_cpu"]
    return recipe


# ---- settings that vary --------------------------------------------------------------------------------------------


def combinations(given: Settings, where: str, command: str) -> list[Settings]:
    """Every combination of the values that settings take in a sweep, a grid or a search, each as its type."""
    types = field_types(command)
    several = {name: values if isinstance(values, list) and values else [values] for name, values in given.items()}
    lists = {name: [typed(name, value, types.get(name, Any)) for value in values] for name, values in several.items()}
    found = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    if len({named("", one) for one in found}) < len(found):  # they are names of folders
        raise ConfigError(f"{where}: two combinations have the same name; give every value once")
    return found


def named(method: str, settings: Settings) -> str:
    """A name that is safe for a folder: `ebft,learning_rate=1e-06,gamma=0.1`."""
    shown = ",".join(f"{name}={_shown(value)}" for name, value in settings.items())
    return ",".join(part for part in (method, re.sub(r"[^\w.,=+-]+", "-", shown)[:120]) if part)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "+".join(map(_shown, value))
    if isinstance(value, str):
        return value.rstrip("/").rpartition("/")[2]  # the last part of a path or hub name
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


# ---- tests of final models -----------------------------------------------------------------------------------------


def _evaluation(given: Settings, shared: Settings) -> Settings:
    """The options of `ebft eval` for every final model. Calibration measures as validation does, on the test split."""
    options = {"tasks": ["calibration"], **({"device": "cpu"} if shared.get("use_cpu") else {}), **given}
    if "calibration" in options["tasks"]:
        types = field_types()
        shared = {name: typed(name, value, types.get(name, Any)) for name, value in shared.items()}
        options = {**_as_validated(shared), **options}
        _check_test_data(options, shared)
    EvalOptions.from_values(options)
    return options


def _as_validated(shared: Settings) -> Settings:
    """Options of calibration that say the same as the settings of the runs, by their names there."""
    found = {name: shared[inner] for name, (inner, _) in BORROWED.items() if inner in shared}
    for name, inner in ("rollouts", "eval_samples"), ("calibration_batch_size", "per_device_eval_batch_size"):
        if shared.get(inner):
            found[name] = shared[inner]
    if "model" in shared:
        found["feature_model"] = shared.get("feature_model") or shared["model"]
    kept_back, sources = found.pop("test_split", None), shared.get("dataset") or []
    if kept_back and len(sources) == 1:
        found |= {"calibration_data": sources[0], "test_split": kept_back}
        found["calibration_split"] = shared.get("dataset_split", "train")
    return found


def _check_test_data(options: Settings, shared: Settings) -> None:
    """The test must be on text that nothing was trained or chosen on."""
    if (data := options.get("calibration_data")) is None:
        raise ConfigError("no test data: set `test_split` in `settings`, or `calibration_data` in `evaluation`")
    if options.get("test_split"):
        return
    place, split = Path(data).expanduser().resolve(), options.get("calibration_split", "validation")
    used = [(source, shared.get("dataset_split", "train")) for source in shared.get("dataset") or []]
    used.append((shared.get("validation_dataset") or "", shared.get("validation_dataset_split", "validation")))
    same = {its_split for source, its_split in used if Path(source).expanduser().resolve() == place}
    if split in same or (same and (place.is_file() or data.startswith("stdlib-"))):  # which have no splits
        used_up = f"the test data, {data} ({split}), are data on which something was trained or chosen"
        raise ConfigError(f"{used_up}; set `test_split` in `settings`")
