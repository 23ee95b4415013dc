"""What users rely on, as the code has it now: settings, flags, names of recipes, files, metrics and Python names.

    python -m tests.contracts.collect  # writes tests/contracts/contracts.yaml anew

The test beside it compares: what is in the file must still be there; what is new may be added to it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import tempfile
import textwrap
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from transformers import TrainingArguments

import ebft
from ebft import cli
from ebft.config.evaluation import options as evaluation_options
from ebft.config.recipe import sections, shipped_names
from ebft.model.backbone import prepare_model
from ebft.runtime.launch import PREEMPTED
from tests.command_line.commands import ROWS, SETTINGS, write_rows
from tests.problems.rows import HUMANEVAL
from tests.tiny_tokenizer import END, byte_tokenizer, save_tiny_model

FILE = Path(__file__).with_name("contracts.yaml")
TRAINING = ("train", "sft", "rlvr")
COMMANDS = (
    *TRAINING,
    *("plan", "sweep", "study", "study run", "study report", "compare", "generate", "export", "eval", "score"),
    *("fetch", "env"),
)


def type_name(kind: Any) -> str:
    """`list[int] | None`, whatever module a class comes from."""
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(type_name, get_args(kind)))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_args(kind):
        return f"{get_origin(kind).__name__}[{', '.join(map(type_name, get_args(kind)))}]"
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))


def declared(owner: type, name: str) -> dict[str, Any]:
    f = next(f for f in fields(owner) if f.name == name)
    default = f.default_factory() if f.default_factory is not MISSING else f.default
    default = None if default is MISSING else default
    return {"type": type_name(typing.get_type_hints(owner)[name]), "default": default}


def settings() -> dict[str, dict[str, Any]]:
    """Of each command that trains, and of `ebft eval`; of `sft` and `rlvr`, what differs from `train`.

    What only transformers declares is the list under "transformers".
    """
    found: dict[str, dict[str, Any]] = {}
    transformers = {f.name: f.default for f in fields(TrainingArguments) if f.init}
    for command in TRAINING:
        everything = {f.name: declared(owner, f.name) for owner in sections(command) for f in fields(owner) if f.init}
        if command == "train":
            inherited = [n for n, default in transformers.items() if n in everything and n not in own_names(default, n)]
            found["train"] = {name: value for name, value in everything.items() if name not in inherited}
            found["transformers"] = dict.fromkeys(inherited)
        else:
            known = {**found["train"], **found["transformers"]}
            found[command] = {n: v for n, v in everything.items() if n not in known or known[n] not in (v, None)}
    found["eval"] = {name: declared(owner, f.name) for name, f, owner in evaluation_options()}
    return found


def own_names(default: Any, name: str) -> list[str]:
    """The name, if ebft declares this setting of transformers anew."""
    training = sections("train")[-1]
    f = next(f for f in fields(training) if f.name == name)
    theirs = next(f for f in fields(TrainingArguments) if f.name == name)
    return [name] if (f.metadata.get("help"), f.default) != (theirs.metadata.get("help"), theirs.default) else []


def flags() -> dict[str, list[str]]:
    """What `--help` of every command prints, with - as `ebft` takes both."""
    return {command: sorted(flags_of(command)) for command in COMMANDS}


def flags_of(command: str) -> set[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        cli.main([*command.split(), "--help"])
    return {flag.replace("_", "-") for flag in re.findall(r"--[a-z][a-z0-9_-]*", printed.getvalue())}


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
    """Files, metrics and keys of results of a small run, of its evaluation and of a comparison."""
    model = save_tiny_model(folder / "model", byte_tokenizer(pad=END))
    rows = write_rows(folder / "rows.jsonl", ROWS)
    problems = write_rows(folder / "problems.jsonl", [HUMANEVAL])
    given = {
        **{**SETTINGS, "model": str(model), "dataset": str(rows), "gamma": 0.1, "kl_weight": 0.1, "show_prompts": 1},
        **{"eval_strategy": "steps", "eval_steps": 2, "document_masks": True, "disable_tqdm": True},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(given))
    run, evaluated, compared = folder / "run", folder / "evaluated", folder / "compared"
    few = ["--samples", 1, "--max-new-tokens", 4, "--profile-lengths", "1,2", "--profile-stride", 8, "--no-score"]
    few += ["--prompt-style", "raw"]  # the context is small
    (folder / "another").mkdir()
    (folder / "another" / "run").symlink_to(run)
    for command in (
        ["train", "--config", folder / "recipe.yaml", "--output_dir", run],
        [
            "eval",
            "--like",
            run,
            "--tasks",
            "calibration,humaneval",
            "--humaneval",
            problems,
            "--output",
            evaluated,
            *few,
        ],
        ["compare", run, folder / "another" / "run", "--output", compared],
    ):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            assert cli.main([str(part) for part in command]) == 0, printed.getvalue()
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = {name for entry in entries for name in entry}
    return {
        "metrics": sorted(name for name in names if not name.startswith("train_")),
        "files of a run": files_of(run),
        "results of a run": sorted(json.loads((run / "results.json").read_text())),
        "files of eval": files_of(evaluated),
        "files of compare": files_of(compared),
    }


def files_of(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def collect(folder: Path) -> dict[str, Any]:
    return {
        "settings": settings(),
        "flags": flags(),
        "python": python_names(),
        "recipes": shipped_names(),
        "exit codes": {
            **{"failed": cli.FAILED, "bad input": cli.BAD_INPUT},
            **{"preempted": PREEMPTED, "interrupted": cli.INTERRUPTED},
        },
        **runs(folder),
    }


def text_of(values: dict[str, Any]) -> str:
    """YAML, compact: what stands below a name in flowing lines."""
    lines = []
    for name, value in values.items():
        text = yaml.safe_dump(value, width=116, default_flow_style=True, sort_keys=False)
        lines += [f"{json.dumps(name)}:", textwrap.indent(text, "  ")]
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        FILE.write_text(text_of(collect(Path(place))), encoding="utf-8")
