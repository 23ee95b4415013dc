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
from ebft.config.method import MethodConfig
from ebft.config.recipe import UNNAMED, Recipe, field_types, find_recipe, load_recipe, read_values
from ebft.config.settings import suggestion, typed
from ebft.errors import ConfigError, nearest
from ebft.method.measures import NAMES

COMMANDS = {"ebft": "train", "sft": "sft", "rlvr": "rlvr"}  # the command of each method
PAPER_TASKS = ("qa_code", "unstructured_code", "translation")
_KEYS = "name output_dir recipe settings seeds search_seed choose_by grid methods evaluation paper".split()  # noqa: SIM905
_METHOD_KEYS = ("method", "after", "recipe", "settings", "seeds", "grid", "search", "choose_by")
_DECIDED = ("output_dir", "seed", "sweep")  # of every run by the study
_DECIDED_OF_TESTS = ("model", "output", "compare", "overwrite", "replace_changed")


@dataclass(frozen=True)
class Row:
    """A method in one setting of its grid: a row of the report's tables. Or a point of a sweep."""

    method: str
    command: str  # train, sft or rlvr
    values: dict[str, Any]  # of its grid
    settings: dict[str, Any]  # of all its runs: these values and all others
    candidates: list[dict[str, Any]] = field(default_factory=lambda: [{}])  # settings to choose on validation
    choose_by: str = "cross_entropy"
    seeds: tuple[int | None, ...] = (None,)
    search_seed: int | None = None
    after: str | None = None  # the row whose final models it starts from

    @property
    def name(self) -> str:
        return ",".join(part for part in (self.method, name_of(self.values)) if part)

    @property
    def title(self) -> str:
        """For people: `ebft (gamma 0.1)`."""
        shown = name_of(self.values).replace("=", " ").replace(",", ", ")
        return f"{self.method} ({shown})" if shown else self.method

    @property
    def kind(self) -> str:
        return next(kind for kind, command in COMMANDS.items() if command == self.command)


@dataclass(frozen=True)
class Study:
    name: str
    folder: Path
    rows: list[Row]
    evaluation: dict[str, Any] = field(default_factory=dict)  # options of `ebft eval`, without models and output
    text: str = ""  # of the file
    paper: str | None = None  # which of the paper's tasks it is about, for `ebft study report --paper`
    is_sweep: bool = False

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row.method for row in self.rows))


def combinations(lists: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values of some settings."""
    found = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    if len({name_of(one) for one in found}) < len(found):  # they are names of folders
        raise ConfigError(f"two combinations of {', '.join(lists)} have the same name; give every value once")
    return found


def name_of(settings: dict[str, Any]) -> str:
    """A name that is safe for a folder: `learning_rate=1e-06,gamma=0.1`."""
    shown = ",".join(f"{name}={_shown(value)}" for name, value in settings.items())
    return re.sub(r"[^\w.,=+-]+", "-", shown)[:120]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "+".join(map(_shown, value))
    if isinstance(value, str):
        return value.rstrip("/").rpartition("/")[2]  # the last part of a path or hub name
    return f"{value:g}" if isinstance(value, float) else str(value)


def load(values: dict[str, Any], command: str) -> Recipe:
    """A checked recipe that may run on another machine: a login node without a GPU can check bf16 runs too."""
    import torch

    if torch.cuda.is_available() or "use_cpu" in values:
        return load_recipe(None, values, command)
    recipe = load_recipe(None, {**values, "use_cpu": True}, command)
    del recipe.given["use_cpu"]
    return recipe


def value_lists(given: Any, where: str, command: str) -> dict[str, list[Any]]:
    """Settings with the values that they take in a sweep, a grid or a search, each with its type."""
    given, types = _mapping(given, where), field_types(command)
    for name, values in given.items():
        if name not in types:
            raise ConfigError(f"{where}: unknown setting {name!r}{suggestion(str(name), types)}")
        if name in ("output_dir", "hub_token"):
            raise ConfigError(f"{where}: {name} cannot vary: every run has a folder of its own, with a name of values")
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: {name} is a list of values, such as [0, 0.1], not {values!r}")
    return {name: [typed(name, value, types[name]) for value in values] for name, values in given.items()}


def read_sweep(
    file: str | Path | None, overrides: dict[str, Any], sets: Sequence[str], command: str = "train", writes: bool = True
) -> Study:
    """Every combination of a recipe's `sweep:` section and of `--set name=value,value`, which wins.

    writes: whether something will be written, for which there must be a folder.
    """
    values = {**(read_values(file) if file is not None else {}), **overrides}
    lists = {**_mapping(values.pop("sweep", {}), "`sweep`"), **_parse_sets(sets)}
    if not lists:
        raise ConfigError("nothing to sweep: give --set name=value,value, or a `sweep:` section in the recipe")
    if not (output := values.get("output_dir") or ("" if writes else UNNAMED)):
        raise ConfigError("no output folder: set `output_dir`, in which every point gets a folder of its own")
    folder = Path(str(output)).expanduser()
    if (folder / "recipe.yaml").exists():
        raise ConfigError(f"output_dir={folder} holds a run; choose another folder for the sweep")
    found = combinations(value_lists(lists, "the sweep", command))
    rows = [Row("", command, chosen, {**values, **chosen}) for chosen in found]
    return _checked(Study("sweep", folder, rows, is_sweep=True))


def _parse_sets(sets: Sequence[str]) -> dict[str, list[str]]:
    """The values of `--set name=value,value` by name."""
    found: dict[str, list[str]] = {}
    for text in sets:
        name, _, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not values or name in found:
            raise ConfigError(f"--set {text}: write --set name=value,value, once for every name")
        found[name] = [value.strip() for value in values.split(",")]
    return found


def read_study(file: str | Path) -> Study:
    path = find_recipe(file, "study")
    given = _mapping(read_values(path), str(path), _KEYS)
    for key in ("output_dir", "methods"):
        if not given.get(key):
            raise ConfigError(f"{path}: a study needs `{key}`")
    if (paper := given.get("paper")) not in (None, *PAPER_TASKS):
        raise ConfigError(f"{path}: `paper` is one of {', '.join(PAPER_TASKS)}, not {paper!r}")
    own = _mapping(given.get("settings"), "`settings` of the study")
    shared, rows = {**_recipe(given, path), **own}, list[Row]()
    for name, method in _mapping(given["methods"], "`methods`").items():
        method = _mapping(method, f"the method {name}", _METHOD_KEYS)
        rows += _rows(str(name), method, given, {**shared, **_recipe(method, path), **own}, rows)
    tests, text = _evaluation(given.get("evaluation", {}), shared), path.read_text(encoding="utf-8")
    folder = Path(str(given["output_dir"])).expanduser()
    return _checked(Study(str(given.get("name") or path.stem), folder, rows, tests, text, paper))


def _mapping(given: Any, where: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """known: the names it may hold, if not all."""
    if not isinstance(given or {}, dict):
        raise ConfigError(f"{where} is a mapping of names to values, not {given!r}")
    for name in given or {} if known else ():
        if name not in known:
            raise ConfigError(f"{where}: unknown key {name!r}; there is {', '.join(known)}{nearest(str(name), known)}")
    return given or {}


def _recipe(given: dict[str, Any], study: Path) -> dict[str, Any]:
    """The settings of a recipe that the study names; its own output folder and seed are not those of a study."""
    if (file := given.get("recipe")) is None:
        return {}
    values = read_values(study.parent / Path(str(file)).expanduser())
    return {name: value for name, value in values.items() if name not in _DECIDED}


def _rows(
    name: str, given: dict[str, Any], study: dict[str, Any], settings: dict[str, Any], above: list[Row]
) -> list[Row]:
    """A method in every setting of its grid. above: the rows of the methods before it."""
    where, kind = f"the method {name}", given.get("method", name)
    if kind not in COMMANDS:
        raise ConfigError(f"{where}: `method` is one of {', '.join(COMMANDS)}{nearest(str(kind), COMMANDS)}")
    command = COMMANDS[kind]
    settings = {**settings, **_mapping(given.get("settings"), f"`settings` of {where}")}
    grid = value_lists(study.get("grid"), "`grid` of the study", command)
    grid |= value_lists(given.get("grid"), f"`grid` of {where}", command)
    search = value_lists(given.get("search"), f"`search` of {where}", command)
    if decided := [key for key in (*settings, *grid, *search) if key in _DECIDED]:
        raise ConfigError(f"{where}: {decided[0]} is decided by the study; take it out")
    if both := sorted(grid.keys() & search.keys()):
        raise ConfigError(f"{where}: {both[0]} is both in `grid` and in `search`; report it or choose it")
    seeds = _seeds(given.get("seeds", study.get("seeds", [0])))
    search_seed = seeds[0] if study.get("search_seed") is None else _seeds([study["search_seed"]])[0]
    choose_by = str(given.get("choose_by", study.get("choose_by", "cross_entropy")))
    candidates, rows = combinations(search), []
    for values in combinations(grid):
        of_row = {**settings, **values}
        after = None if given.get("after") is None else _start(name, given["after"], values, seeds, above)
        rows.append(Row(name, command, values, of_row, candidates, choose_by, seeds, search_seed, after))
    return rows


def _start(name: str, after: str, values: dict[str, Any], seeds: Sequence[int | None], above: list[Row]) -> str:
    """The row whose final models another one starts from: of a method above it, in the same setting."""
    parents = [row for row in above if row.method == after and row.values.items() <= values.items()]
    if len(parents) != 1:
        known = dict.fromkeys(row.method for row in above)
        wrong = "has several settings; give both the same `grid`" if after in known else "is not a method above it"
        raise ConfigError(f"the method {name} starts after {after!r}, which {wrong}{nearest(str(after), known)}")
    if len(parents[0].seeds) > 1 and not set(seeds) <= set(parents[0].seeds):
        raise ConfigError(f"the method {name} starts after {after!r}, which has not all its seeds; give both the same")
    return parents[0].name


def _seeds(given: Any) -> tuple[int, ...]:
    whole = isinstance(given, list) and given and all(type(seed) is int and seed >= 0 for seed in given)
    if not whole or len(set(given)) < len(given):
        raise ConfigError(f"seeds are a list of different whole numbers from 0, such as [0, 1, 2], not {given!r}")
    return tuple(given)


def _checked(study: Study) -> Study:
    """Every run is loaded as a recipe."""
    for row in study.rows:
        for values in row.candidates:
            try:
                recipe = load({**row.settings, **values, "output_dir": "x"}, row.command)
            except ValueError as error:
                raise ConfigError(f"{row.name}: {error}") from None
            if values and row.choose_by not in NAMES and not recipe.training.eval_tasks:
                known = f"there is {', '.join(NAMES)}{nearest(row.choose_by, NAMES)}"
                raise ConfigError(f"{row.name}: `choose_by: {row.choose_by}` is no metric of validation; {known}")
            if values and not (recipe.data.validation_split or recipe.data.validation_dataset):
                raise ConfigError(f"{row.name}: `search` needs validation data; set validation_split")
    return study


def _evaluation(given: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """The options of `ebft eval` for every final model. Calibration measures as validation does, on the test split."""
    if given is None or given is False:
        return {}
    options = {"tasks": ["calibration"], **_mapping(given, "`evaluation`")}
    if decided := [name for name in _DECIDED_OF_TESTS if name in options]:
        raise ConfigError(f"`evaluation`: {decided[0]} is decided by the study; take it out")
    types = field_types("train")
    data = {
        name: typed(name, shared[name], types[name])
        for name in ("dataset", "validation_dataset")
        if shared.get(name) is not None
    }
    if "calibration" in options["tasks"]:
        options = {**_as_validated({**shared, **data}), **options}
    if shared.get("use_cpu"):
        options.setdefault("device", "cpu")
    EvalOptions.from_values(options)
    if "calibration" in options["tasks"]:
        _check_test_data(options, {**shared, **data})
    return options


def _as_validated(shared: dict[str, Any]) -> dict[str, Any]:
    """Options of calibration that say the same as the settings of the runs, by their names there."""
    found = {
        name: shared[inner]
        for name, (inner, owner) in BORROWED.items()
        if inner in shared and (owner is MethodConfig or name != "test_split")
    }
    for name, inner in ("rollouts", "eval_samples"), ("calibration_batch_size", "per_device_eval_batch_size"):
        if shared.get(inner):
            found[name] = shared[inner]
    if "model" in shared:
        found["feature_model"] = shared.get("feature_model") or shared["model"]
    sources = shared.get("dataset") or []
    if shared.get("test_split") and len(sources) == 1:
        found |= {"calibration_data": sources[0], "calibration_split": shared.get("dataset_split", "train")}
        found["test_split"] = shared["test_split"]
    return found


def _check_test_data(options: dict[str, Any], shared: dict[str, Any]) -> None:
    """The test must be on text that nothing was trained or chosen on."""
    data, split = options.get("calibration_data"), options.get("calibration_split", "validation")
    if data is None:
        raise ConfigError(
            "no test data: set `test_split` in `settings`, which keeps documents of the dataset for the test, or "
            "`calibration_data` and `calibration_split` in `evaluation`"
        )
    if options.get("test_split"):
        return
    used = [(source, shared.get("dataset_split", "train"), "training") for source in shared.get("dataset") or []]
    if (chosen_on := shared.get("validation_dataset")) is not None:
        used.append((chosen_on, shared.get("validation_dataset_split", "validation"), "validation"))
    for source, its_split, what in used:
        if _place(data, split) == _place(source, its_split):
            same = f"the test data, {data} ({split}), are the {what} data, on which something was trained or chosen"
            raise ConfigError(f"{same}; set `test_split` in `settings`")


def _place(source: str, split: str) -> tuple[str, str]:
    """The same for the same rows: a single file and the standard library have no splits."""
    path = Path(source).expanduser()
    if path.exists():
        return str(path.resolve()), "" if path.is_file() else split
    return source, "" if source.startswith("stdlib-") else split
