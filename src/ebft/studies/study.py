"""What a study's file says (docs/studies.md), and the jobs that it comes to, each one `ebft` command with a log. Every
run is checked as a recipe before anything starts. A sweep is a study of one method without seeds and tests.

Runs come before what starts from them, a search before the other seeds of what it chose, and a model before its
evaluation. Which jobs can run now is a function of what is on the disk.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ebft.config.evaluation import BORROWED, EvalOptions
from ebft.config.recipe import as_given, check_given, field_types, find_recipe, load_recipe, read_values
from ebft.config.settings import Values, check_name, typed
from ebft.errors import ConfigError, nearest
from ebft.method.measures import NAMES, smaller_is_better
from ebft.runtime.files import json_ready, read_json, sha256_of, write_text

COMMANDS = {"ebft": "train", "sft": "sft", "rlvr": "rlvr"}  # the command of each method
# What may stand at the top of a file, and under the name of a method; and what each is if left out.
_OF_BOTH: Values = {"recipe": None, "settings": {}, "grid": {}, "seeds": [0], "choose_by": "cross_entropy"}
_OF_STUDY = {**_OF_BOTH, "methods": {}, **dict.fromkeys(("name", "output_dir", "search_seed", "evaluation", "paper"))}
_OF_METHOD = {**_OF_BOTH, "search": {}, "method": None, "after": None}
_DECIDED = ("output_dir", "seed", "sweep")  # of every run by the study
PROMPT = "$ "  # begins the line of a command in a log


@dataclass(frozen=True)
class Row:
    """A method in one setting of its grid: a row of the report's tables. Or a point of a sweep."""

    method: str
    command: str  # train, sft or rlvr
    values: Values  # of its grid
    settings: Values  # of all its runs: these values and all others
    candidates: list[Values] = field(default_factory=lambda: [{}])  # settings to choose on validation
    choose_by: str = "cross_entropy"
    seeds: Sequence[int | None] = (None,)
    search_seed: int | None = None
    # `model`, `feature_model`: the row whose final models these are
    needs: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return named(self.method, self.values)


@dataclass(frozen=True)
class Study:
    name: str
    folder: Path
    rows: list[Row]
    evaluation: Values = field(default_factory=dict)  # options of `ebft eval`, without models and output
    text: str = ""  # of the file
    paper: str | None = None  # which of the paper's tasks it is about, for `ebft study report --paper`
    kind: str = "study"  # or sweep


# ---- files ---------------------------------------------------------------------------------------------------------


def read_sweep(file: str | Path | None, overrides: Values, sets: Sequence[str], command: str = "train") -> Study:
    """Every combination of a recipe's `sweep:` section and of `--set name=value,value`, which wins."""
    values = {**({} if file is None else read_values(file)), **overrides}
    of_flags: dict[str, list[str]] = {}
    for text in sets:
        name, _, listed = text.partition("=")
        of_flags.setdefault(name.strip().replace("-", "_"), []).extend(map(str.strip, listed.split(",")))
    lists = {**typed("sweep", values.pop("sweep", {}), dict), **of_flags}
    if not lists or not values.get("output_dir"):
        raise ConfigError("a sweep needs --set name=value,value or a `sweep:` section, and an output_dir for its runs")
    rows = [Row("", command, point, {**values, **point}) for point in combinations(lists, command)]
    return _checked(Study("sweep", Path(str(values["output_dir"])).expanduser(), rows, kind="sweep"))


def read_study(file: str | Path) -> Study:
    path = find_recipe(file)
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


def _keys(values: object, known: Values, where: str) -> Values:
    """The values of a mapping, with those that are left out."""
    given = {name: value for name, value in typed(where, values or {}, dict).items() if value is not None}
    for name in given:
        check_name(str(name), known, "key", f" of {where}")
    kinds: dict[type, Any] = {dict: dict, list: list[int]}
    return {n: typed(f"{where}: {n}", given.get(n, of), kinds.get(type(of), Any)) for n, of in known.items()}


def _of_recipe(given: Values, study: Path) -> Values:
    """The settings of a recipe that the study names; its own output folder and seed are not those of a study."""
    file = given["recipe"]
    values = {} if file is None else read_values(study.parent / Path(str(file)).expanduser())
    return {name: value for name, value in values.items() if name not in _DECIDED}


def _rows(name: str, given: Values, study: Values, settings: Values, above: Sequence[Row]) -> list[Row]:
    """A method in every setting of its grid. above: the rows of the methods before it."""
    where, kind, grid = f"the method {name}", given["method"] or name, {**study["grid"], **given["grid"]}
    if kind not in COMMANDS:
        raise ConfigError(f"{where}: `method` is one of {', '.join(COMMANDS)}{nearest(str(kind), COMMANDS)}")
    search, command, seeds = given["search"], COMMANDS[kind], list(dict.fromkeys(given["seeds"])) or [0]
    if wrong := [key for key in (*settings, *grid, *search) if key in _DECIDED or (key in grid and key in search)]:
        raise ConfigError(f"{where}: {wrong[0]} is decided by the study, or is both in `grid` and in `search`")
    search_seed = seeds[0] if study["search_seed"] is None else typed("search_seed", study["search_seed"], int)
    candidates, rows = combinations(search, command), []
    for values in combinations(grid, command):
        of_row, parents = {**settings, **values}, {"model": given["after"]}
        if of_row.get("feature_model") in study["methods"]:
            features = of_row.pop("feature_model")
            # A method whose features are its own, or of one that comes later, has those of its model.
            parents["feature_model"] = features if any(row.method == features for row in above) else None
        needs = {}
        for setting, method in [(setting, method) for setting, method in parents.items() if method]:
            # The row whose final models it needs: in the same setting, with all its seeds or with only one.
            found = [row for row in above if row.method == method and row.values.items() <= values.items()]
            if len(found) != 1 or (len(found[0].seeds) > 1 and not {*seeds} <= {*found[0].seeds}):
                what = f"no method above it with the same `grid` and seeds{nearest(method, [r.method for r in above])}"
                raise ConfigError(f"{where} starts after {method!r}, which is {what}")
            needs[setting] = found[0].name
        rows.append(Row(name, command, values, of_row, candidates, given["choose_by"], seeds, search_seed, needs))
    return rows


def _checked(study: Study) -> Study:
    """Every run is loaded as a recipe, and what a search chooses by will be measured."""
    for row, values in ((one, values) for one in study.rows for values in one.candidates):
        try:
            # As if on a CPU: a login node without a GPU checks bf16 runs too.
            given = {**row.settings, **values, "output_dir": "x", "use_cpu": True}
            recipe = load_recipe(None, given, row.command)
        except ValueError as error:
            raise ConfigError(f"{row.name}: {error}") from None
        has_text = recipe.data.validation_split or recipe.data.validation_dataset
        if values and not (has_text and (row.choose_by in NAMES or recipe.training.eval_tasks)):
            known = f"set validation_split, and choose by {', '.join(NAMES)}{nearest(row.choose_by, NAMES)}"
            raise ConfigError(f"{row.name}: validation does not measure `choose_by: {row.choose_by}`; {known}")
    return study


# ---- settings that vary --------------------------------------------------------------------------------------------


def combinations(given: Values, command: str) -> list[Values]:
    """Every combination of the values that settings take in a sweep, a grid or a search, each as its type."""
    types, lists = field_types(command), {}
    for name, values in given.items():
        several = values if isinstance(values, list) and values else [values]
        lists[name] = [typed(name, value, types.get(name, Any)) for value in several]
    found = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    if len({named("", one) for one in found}) < len(found):  # they are names of folders
        raise ConfigError(f"of {', '.join(lists)}: two combinations have the same name; give every value once")
    return found


def named(method: str, settings: Values) -> str:
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


def _evaluation(given: Values, shared: Values) -> Values:
    """The options of `ebft eval` for every final model. Calibration measures as validation does, on the test split."""
    options = {"tasks": ["calibration"], **({"device": "cpu"} if shared.get("use_cpu") else {}), **given}
    if "calibration" in options["tasks"]:
        types = field_types()
        shared = {name: typed(name, value, types.get(name, Any)) for name, value in shared.items()}
        found = {name: shared[inner] for name, (inner, _) in BORROWED.items() if inner in shared}
        for name, inner in ("rollouts", "eval_samples"), ("calibration_batch_size", "per_device_eval_batch_size"):
            found |= {name: shared[inner]} if shared.get(inner) else {}
        found["feature_model"] = shared.get("feature_model") or shared.get("model")
        kept_back, sources = found.pop("test_split", None), shared.get("dataset") or []
        if kept_back and len(sources) == 1:
            found |= {"calibration_data": sources[0], "test_split": kept_back}
            found["calibration_split"] = shared.get("dataset_split", "train")
        options = {**found, **options}
        _check_test_data(options, shared)
    EvalOptions.from_values(options)
    return options


def _check_test_data(options: Values, shared: Values) -> None:
    """The test must be on text that nothing was trained or chosen on."""
    data, split = options.get("calibration_data"), options.get("calibration_split", "validation")
    used = [(source, shared.get("dataset_split", "train")) for source in shared.get("dataset") or []]
    used.append((shared.get("validation_dataset") or "", shared.get("validation_dataset_split", "validation")))
    place = Path(data or "").expanduser().resolve()
    same = {its_split for source, its_split in used if Path(source).expanduser().resolve() == place}
    has_no_splits = place.is_file() or str(data).startswith("stdlib-")
    if data is None or (not options.get("test_split") and (split in same or (same and has_no_splits))):
        what = "there are no test data" if data is None else f"something was trained or chosen on the test data, {data}"
        raise ConfigError(f"{what}; set `test_split` in `settings`, or other `calibration_data` in `evaluation`")


# ---- jobs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """An `ebft` command with a log, and whether the disk has its results."""

    name: str
    log: Path
    output: Path
    arguments: list[str]
    settings: Values  # of its recipe, or the options of the evaluation
    needed: tuple[Path, str]  # a small file that is written before it starts, and its text
    finished: bool

    @property
    def command(self) -> str:
        return shlex.join(["ebft", *self.arguments])

    @property
    def state(self) -> str:
        """For people."""
        if self.finished:
            return "finished"
        if (error := last_error(self.log)) is not None:
            return f"failed: {error}"
        return "stopped" if self.log.exists() and self.log.stat().st_size else "to do"

    def prepare(self) -> None:
        file, text = self.needed
        for place in (self.log, file):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
        self.log.touch()  # it was tried, even if Slurm never comes to run it


@dataclass(frozen=True)
class Run(Job):
    """A training run: a candidate of a row's search, with a seed."""

    row: Row
    chosen: Values  # of what is searched
    seed: int | None
    validated: float | None  # what the search chooses by, after training; None: it is no number

    @property
    def length(self) -> str:
        steps, epochs = (as_given(n, self.settings, self.row.command) for n in ("max_steps", "num_train_epochs"))
        return f"{steps:,} steps" if steps > 0 else f"{epochs:g} epochs"  # type: ignore[operator]


def last_error(log: Path) -> str | None:
    """Why the last attempt failed: its first error message is the cause. None if it did not, was stopped, or is still
    running. Each attempt begins with its command, whoever starts it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = f"\n{text}".rpartition(f"\n{PROMPT}")[2].splitlines()
    found = next((line.removeprefix("ebft: ") for line in lines if line.startswith("ebft: ")), None)
    return None if found and found.startswith("stopped") else found


class Plan:
    """All jobs of a study or a sweep that are known by now.

    failed: names of jobs that are not tried again. once: nor is what was ever tried; then nothing is running.
    """

    def __init__(self, study: Study, failed: Container[str] = (), once: bool = False) -> None:
        self.study, self.failed, self.once = study, failed, once
        self.final: dict[str, list[Run]] = {}  # by row, the runs to report; none as long as a search decides
        self.unknown = 0  # runs and evaluations that depend on a search
        self._runs: dict[str, Run] = {}
        self._folder = study.folder.resolve()
        for row in study.rows:
            self.final[row.name] = self._add(row)
        # The models that runs start from: `base`, or several if the study is about models.
        models = list(dict.fromkeys(str(row.settings["model"]) for row in study.rows if "model" not in row.needs))
        values = [{"model": model} for model in models]
        self.bases = [Row("base", "base", each if len(models) > 1 else {}, each) for each in values]
        self.evaluations = self._evaluations() if study.evaluation else []
        self.runs = list(self._runs.values())
        self.jobs: list[Job] = [*self.runs, *self.evaluations]
        self.unfinished = [job for job in self.jobs if not job.finished]

    def given_up(self, job: Job) -> bool:
        return job.name in self.failed or (self.once and job.log.exists())

    def ready(self) -> list[Job]:
        """What could run now and has not: evaluations first, so that a study that is stopped has some whole results."""
        first = sorted(self.unfinished, key=lambda job: isinstance(job, Run))
        missing = {str(run.output) for run in self.runs if not run.finished}
        return [job for job in first if not missing & {job.settings["model"], job.settings.get("feature_model")}]

    def _add(self, row: Row) -> list[Run]:
        """Its runs as far as they are known; returns those to report."""
        tests, chosen = len(row.seeds) if self.study.evaluation else 0, row.candidates[0]
        if not all(self.final[name] for name in row.needs.values()):
            self.unknown += len(row.candidates) - 1 + len(row.seeds) + tests
            return []
        if chosen:
            found = [self._run(row, values, row.search_seed) for values in row.candidates]
            known = [run for run in found if run.finished and run.validated is not None]
            # No best one as long as another may still come to its end.
            if not known or not all(run.finished or self.given_up(run) for run in found):
                self.unknown += len({*row.seeds} - {row.search_seed}) + tests
                return []
            best = min if smaller_is_better(row.choose_by) else max
            chosen = best(known, key=lambda run: run.validated or 0.0).chosen
        return [self._run(row, chosen, seed) for seed in row.seeds]

    def _run(self, row: Row, chosen: Values, seed: int | None) -> Run:
        seeded = chosen if seed is None else {**chosen, "seed": seed}
        name = named(row.name, seeded)
        if name in self._runs:
            return self._runs[name]
        values = {**row.settings, **seeded}
        if "model" in row.needs:
            # The features stay those of the model that everything starts from, so that the curves compare.
            values = {"feature_model": values["model"], **values}
        for setting, parent in row.needs.items():  # the model of this seed, or the only one
            finals = self.final[parent]
            values[setting] = str(next((run for run in finals if run.seed == seed), finals[0]).output)
        runs, recipes = ("", "points") if self.study.kind == "sweep" else ("runs", "recipes")
        output, recipe = self._folder / runs / name, self._folder / recipes / f"{name}.yaml"
        values.pop("hub_token", None)  # it is in the environment, and in no file
        given = check_given({**values, "output_dir": str(output)}, row.command)
        arguments = [row.command, "--config", str(recipe), "--resume"]  # from the beginning without a checkpoint
        results = read_json(output / "results.json") or {}
        validated = (results.get("after") or {}).get(f"eval_{row.choose_by}")
        # With this very recipe; after a change, such as more steps, it has to continue.
        before = yaml.safe_load((output / "recipe.yaml").read_text(encoding="utf-8")) if "steps" in results else None
        finished = before is not None and _anywhere(before, name) == _anywhere(given, name)
        needed = recipe, yaml.safe_dump(given, sort_keys=False)
        log = self._folder / "logs" / f"{name}.log"
        self._runs[name] = Run(name, log, output, arguments, given, needed, finished, row, chosen, seed, validated)
        return self._runs[name]

    def _evaluations(self) -> list[Job]:
        """Of the final models, and of those that everything starts from."""
        options = dict(self.study.evaluation)
        finals = [run for runs in self.final.values() for run in runs]
        if (method := options.get("feature_model")) in [row.method for row in self.study.rows]:
            features = next((run for run in finals if run.row.method == method), None)
            if features is None:
                self.unknown += len(self.bases) + len(finals)
                return []
            options["feature_model"] = str(features.output)
        models = {row.name: row.settings["model"] for row in self.bases} | {run.name: str(run.output) for run in finals}
        return [self._evaluation(name, model, options) for name, model in models.items()]

    def _evaluation(self, of: str, model: str, options: Values) -> Job:
        output, name = self._folder / "evaluations" / of, f"evaluate-{of}"
        given = {**options, "model": model, "output": str(output), "replace_changed": True}
        listed = {name: (value or ["none"]) if isinstance(value, list) else [value] for name, value in given.items()}
        flags = [f"--{name.replace('_', '-')}={value}" for name, values in listed.items() for value in values]
        # What the training of the model ended with: times of files would not tell, copies have others.
        trained, mark = Path(model) / "results.json", output / "of-model.sha256"
        text = sha256_of(trained) if of in self._runs and trained.exists() else ""
        is_of_model = not mark.exists() or mark.read_text(encoding="utf-8") == text  # else it was trained further since
        finished = is_of_model and _is_evaluated(output, options)
        log = self._folder / "logs" / f"{name}.log"
        return Job(name, log, output, ["eval", *flags], given, (mark, text), finished)


def _anywhere(settings: Values, name: str) -> str:
    """Without the place of the study: a copy of it is as finished as it was."""
    return repr(sorted(settings.items())).replace(settings["output_dir"].removesuffix(name), "")


def _is_evaluated(output: Path, given: Values) -> bool:
    """Whether every task has results with these settings."""
    from ebft.evaluate.tables import is_scored
    from ebft.evaluate.tasks import task_settings

    tasks, options = (read_json(output / "results.json") or {}).get("tasks", {}), EvalOptions.from_values(given)
    return all(
        tasks.get(task, {}).get("settings") == json_ready(task_settings(task, options))
        and (is_scored(tasks[task]) or not options.score)
        for task in options.tasks
    )
