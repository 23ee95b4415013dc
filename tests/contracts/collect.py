"""What users rely on, as the code has it now: settings, flags, recipes, files, metrics and Python names.

    python -m tests.contracts.collect  # writes tests/contracts/contracts.yaml anew
    python -m tests.contracts.collect shipped  # prints every setting of every shipped recipe that is no default

The test beside it compares: what is in the file must still be there; what is new may be added to it. Of shipped recipes
the file has a hash of the settings that `shipped` prints; to see what has changed, print them at two commits.
"""

import contextlib
import hashlib
import inspect
import io
import json
import re
import sys
import tempfile
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from transformers import TrainingArguments

import ebft
from ebft import cli
from ebft.config.evaluation import EvalOptions
from ebft.config.evaluation import options as evaluation_options
from ebft.config.recipe import RECIPES, TRAINING, load_recipe, read_values, sections, shipped_names
from ebft.config.settings import default_of
from ebft.model.backbone import prepare_model
from ebft.runtime.launch import PREEMPTED
from ebft.studies.study import read_study
from tests.baselines.runs import ROWS, make_model, write_recipe, write_rows
from tests.problems.rows import HUMANEVAL

FILE = Path(__file__).with_name("contracts.yaml")
COMMANDS = (*TRAINING, "plan", "sweep", "study", "study run", "study report", "compare", "generate", "export", "eval")
COMMANDS += ("score", "fetch", "env")
# What depends on the machine, or on how much libraries say.
_LEFT_OUT = ("use_cpu", "dataloader_pin_memory", "bf16", "disable_tqdm")
read = cache(read_values)


def plain(value: Any) -> Any:
    """As JSON has it, which tells 1 from 1.0; enumerations as their values."""
    return json.loads(json.dumps(value, default=lambda other: getattr(other, "value", str(other))))


def declared(owner: type, name: str) -> str:
    """Type and default; the classes of types by their last names."""
    kind, (f,) = typing.get_type_hints(owner)[name], [f for f in fields(owner) if f.name == name]
    shown = "|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else getattr(kind, "__name__", str(kind))
    shown = str(kind) if get_args(kind) and get_origin(kind) is not Literal else shown
    return f"{shown.replace('typing.', '')} = {json.dumps(default_of(f))}"


def settings() -> dict[str, dict[str, str]]:
    """Of each command that trains, and of `ebft eval`; of `sft` and `rlvr`, what differs from `train`."""
    found: dict[str, dict[str, str]] = {}
    theirs = {f.name: declared(TrainingArguments, f.name) for f in fields(TrainingArguments) if f.init}
    for command in TRAINING:
        of = {f.name: declared(owner, f.name) for owner in sections(command) for f in fields(owner) if f.init}
        found[command] = differing(of, theirs | found.get("train", {}))
    return found | {"eval": {name: declared(owner, f.name) for name, f, owner in evaluation_options()}}


def differing(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in values.items() if n not in defaults or json.dumps(v) != json.dumps(defaults[n])}


@cache
def flags_of(command: str) -> list[str]:
    """What `--help` prints, with - as `ebft` takes both."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        cli.main([*command.split(), "--help"])
    return sorted({flag.replace("_", "-") for flag in re.findall(r"--[a-z][a-z0-9_-]*", printed.getvalue())})


def of_settings(command: str, known: Mapping[str, Mapping[str, str]]) -> set[str]:
    """The flags of a command's settings; most of those that transformers declares do not show."""
    theirs = {f.name for f in fields(TrainingArguments)}
    names = {*known.get(command, ()), *(known["train"] if command in TRAINING else ())}
    return {f"--{name.replace('_', '-')}" for name in names - (theirs if command in TRAINING else set())}


def flags(known: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Beside those of settings."""
    return {command: sorted({*flags_of(command)} - of_settings(command, known)) for command in COMMANDS}


def python_names() -> dict[str, list[str]]:
    """The public names, each with its parameters; those of EBFTConfig are the settings."""
    found = {name: getattr(ebft, name) for name in sorted(set(ebft.__all__) - {"__version__"})}
    found["model.backbone.prepare_model"] = prepare_model
    return {name: [] if name == "EBFTConfig" else parameters(value) for name, value in found.items()}


def parameters(function: Any) -> list[str]:
    """Each as `name` or `name=default`, with a * before those that are given by name."""
    marks = {inspect.Parameter.KEYWORD_ONLY: "*", inspect.Parameter.VAR_POSITIONAL: "*..."}
    return [
        marks.get(p.kind, "") + p.name + ("" if p.default is p.empty else f"={p.default!r}")
        for p in inspect.signature(function).parameters.values()
    ]


def runs(folder: Path) -> dict[str, list[str]]:
    """Files, metrics and keys of results of a small run and of its evaluation."""
    model, rows = make_model(folder / "model"), write_rows(folder / "rows.jsonl", ROWS)
    problems = write_rows(folder / "problems.jsonl", [HUMANEVAL])
    given = {"gamma": 0.1, "kl_weight": 0.1, "show_prompts": 1, "document_masks": True, "max_steps": 3}
    write_recipe(folder, model, rows, **given)
    run, evaluated = folder / "run", folder / "evaluated"
    few = "--samples 1 --max-new-tokens 4 --profile-lengths 1,2 --profile-stride 8 --no-score --prompt-style raw"
    for command in (
        f"train --config {folder}/recipe.yaml --output_dir {run}",
        f"eval --like {run} --tasks calibration,humaneval --humaneval {problems} --output {evaluated} {few}",
    ):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            assert cli.main(command.split()) == 0, printed.getvalue()
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "metrics": sorted({name for entry in entries for name in entry if not name.startswith("train_")}),
        "files of a run": files_of(run),
        "results of a run": sorted(json.loads((run / "results.json").read_text())),
        "files of eval": files_of(evaluated),
    }


def files_of(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def load(values: dict[str, Any], command: str) -> dict[str, Any]:
    needed = {"model": "m", "dataset": "d", "output_dir": "o"} | ({"rewards": "bleu"} if command == "rlvr" else {})
    recipe = load_recipe(None, {**needed, **values, "use_cpu": True}, command)
    parts = (recipe.model, recipe.data, recipe.training)
    kept = [(part, f.name) for part in parts for f in fields(part) if f.init and f.name not in _LEFT_OUT]
    found = {name: getattr(part, name) for part, name in kept}
    return plain({**found, "sharding": recipe.training.sharding})


def methods_of(name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Of a study: each method's command and settings, put together here and not by the code of studies."""
    given, folder = read(name), (RECIPES / name).parent

    def of_file(values: dict[str, Any]) -> dict[str, Any]:
        return read(folder / values["recipe"]) if "recipe" in values else {}

    found = {}
    for method, values in given["methods"].items():
        values = values or {}
        tried = {**given.get("grid", {}), **values.get("grid", {}), **values.get("search", {})}
        settings = {**of_file(given), **of_file(values), **given.get("settings", {}), **values.get("settings", {})}
        settings |= {setting: listed[0] for setting, listed in tried.items()}
        command = values.get("method", method)
        found[method] = ("train" if command == "ebft" else command, settings)
    return found


def shipped() -> dict[str, Any]:
    """Of every recipe, of every method of a study with the first value of its grid and search, and of the study's
    evaluation, what differs from the defaults."""
    defaults = {command: load({}, command) for command in TRAINING}
    of_eval = plain(asdict(EvalOptions.from_values({})))
    found: dict[str, Any] = {}
    for name in shipped_names():
        values = read(name)
        if "methods" not in values:
            kind = name.rpartition("/")[2].partition("_")[0]
            command = kind if kind in TRAINING else "train"
            found[name] = differing(load(values, command), defaults[command])
            continue
        for method, (command, settings) in methods_of(name).items():
            found[f"{name}: {method}"] = differing(load(settings, command), defaults[command])
        if evaluation := read_study(name).evaluation:
            options = plain(asdict(EvalOptions.from_values(evaluation)))
            parts = {part: differing(options.pop(part), of_eval[part]) for part in ("method", "data")}
            found[f"{name}: evaluation"] = {**differing(options, of_eval), **parts}
    return found


def hashes() -> dict[str, str]:
    texts = {name: json.dumps(values, sort_keys=True) for name, values in shipped().items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in texts.items()}


def collect(folder: Path) -> dict[str, Any]:
    known = settings()
    codes = {"failed": cli.FAILED, "bad input": cli.BAD_INPUT, "preempted": PREEMPTED, "interrupted": cli.INTERRUPTED}
    return {"settings": known, "flags": flags(known), "python": python_names(), "exit codes": codes, **runs(folder)}


if __name__ == "__main__":
    found = shipped() if sys.argv[1:] == ["shipped"] else None
    if found is None:
        with tempfile.TemporaryDirectory() as place:
            found = {**collect(Path(place)), "shipped": hashes()}
    text = yaml.safe_dump(found, width=116, default_flow_style=None, sort_keys=False)
    sys.stdout.write(text) if sys.argv[1:] else FILE.write_text(text, encoding="utf-8")
