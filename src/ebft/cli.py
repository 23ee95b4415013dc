"""The command `ebft`: a table of commands, and one place where errors become a line and an exit code.

A command's module, and with it torch and transformers, is imported when the command runs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from ebft.config.recipe import check_datasets, check_early, load_recipe, read_values, training_parser
from ebft.config.settings import Parser
from ebft.errors import ConfigError, Preempted, SandboxError, TrainingDiverged, first_line, nearest
from ebft.fetch import check_models
from ebft.runtime import launch
from ebft.runtime.launch import LAUNCHED, PREEMPTED, ProcessKilled
from ebft.runtime.machine import describe
from ebft.runtime.messages import print_error, print_table, printable, quiet_libraries, show_messages
from ebft.version import __version__

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
RESUMING = ("sweep", "study run", "eval", "score")  # what they have done is on disk at any moment


def main(arguments: Sequence[str] | None = None) -> int:
    command = list(sys.argv[1:] if arguments is None else arguments)
    launch.end_with_launcher()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    name, rest = (command or ["--help"])[0], command[1:]
    if name in ("-h", "--help"):
        lines = [f"  ebft {name:<10} {what}" for name, (_, what) in COMMANDS.items()]
        print("usage: ebft COMMAND [options]", "", *lines, "", "ebft COMMAND --help tells more.", sep="\n")
        return 0 if command else BAD_INPUT
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        return _print_error(f"unknown command {name!r}; there is {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")
    show_messages()
    try:
        with launch.on_notice(launch.stop_at_once):
            return COMMANDS[name][0](rest)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except (Exception, KeyboardInterrupt, Preempted) as error:
        return _failed(error, "; the same command resumes from here" if " ".join(command).startswith(RESUMING) else "")


def _failed(error: BaseException, how_to_go_on: str = "") -> int:
    """What went wrong in one line, and the exit code. An error that nobody foresaw keeps its traceback."""
    code = FAILED
    if isinstance(error, ValueError | SandboxError):  # of configuration, data and layouts: all of them
        what, code = str(error), BAD_INPUT
    elif isinstance(error, KeyboardInterrupt):
        what, code = f"stopped{how_to_go_on}", INTERRUPTED
    elif isinstance(error, Preempted):
        what, code = f"stopped by {error}{how_to_go_on}", PREEMPTED
    elif type(error).__name__ == "OutOfMemoryError":  # torch's, which goes on about processes and fragmentation
        what = f"{str(error).partition(' Of the allocated')[0]} Make batches smaller{how_to_go_on}"
    elif isinstance(error, OverflowError | MemoryError) or "can't allocate memory" in str(error):
        what, code = f"a number is too large for this machine: {first_line(error)}", BAD_INPUT
    elif isinstance(error, OSError):
        what = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
    elif isinstance(error, TrainingDiverged | ProcessKilled | ImportError):  # the last: a package that an option needs
        what = str(error)
    else:
        raise error
    return _print_error(what, code)


def _run_failed(error: BaseException, folder: Path) -> int:
    """The same for a run: several processes may meet it, and there may be a checkpoint to go on from."""
    if isinstance(error, ValueError | SandboxError):
        return _failed(error)
    from ebft.runtime.processes import lost_another
    from ebft.train import run_folder

    if lost_another(error):
        if os.environ.get(LAUNCHED):  # the launcher knows which process has died, and says so
            return PREEMPTED if isinstance(error, Preempted) else FAILED
        error = error if isinstance(error, Preempted) else ProcessKilled(f"lost another process: {error}")
    if any(words in str(error) for words in ("No space left", "PytorchStreamWriter failed")):  # torch says no more
        error = OSError(0, "the disk is full", str(folder))
    code = _failed(error)
    if os.environ.get("LOCAL_RANK", "0") == "0" and (folder / "recipe.yaml").exists():
        last = run_folder.last_checkpoint(folder)
        where = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        # Resumed with the same settings a run that has diverged would end the same way.
        anew = f"a new run can begin there: --model {last}" if last and isinstance(error, TrainingDiverged) else None
        print(f"ebft: {where}; {anew or 'continue with the same command and --resume'}", file=sys.stderr)
    return code


def _print_error(message: str, code: int = BAD_INPUT) -> int:
    """One clear line on standard error; of several processes on a machine, the first speaks for all."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        if code in (INTERRUPTED, PREEMPTED) or "TORCHELASTIC_RUN_ID" not in os.environ:
            return code
        # torch's launcher ends this process as soon as the first one has ended. If that one has not met the error,
        # somebody else must speak.
        time.sleep(5)
    print_error(message)
    return code


def _train(command: str, arguments: list[str]) -> int:
    """`ebft train`, `ebft sft` and `ebft rlvr`."""
    launcher = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    launcher.add_argument("--launch", nargs="?", const="")
    given, rest = launcher.parse_known_args(arguments)
    early = check_early(rest)
    check_datasets(early)
    check_models(early)
    if given.launch is not None:
        return _launch(given.launch, command, rest)
    options = training_parser(command).parse_args(arguments)
    unnamed = {"output_dir": "unnamed"} if options.dry_run else {}  # which writes nothing
    recipe = load_recipe(None, {**unnamed, **read_values(options.config), **options.settings}, command)
    show_messages(recipe.training.log_level)
    output = Path(str(recipe.training.output_dir)).expanduser()
    quiet_libraries()
    try:
        from ebft.runtime import processes
        from ebft.train import report, run

        method: type[run.Measured] = run.EBFTTrainer
        if command != "train":
            from ebft.baselines import trl_trainers

            method = trl_trainers.method(command)
        if options.dry_run:
            print("\n".join(run.plan(recipe, method, options.resume)))
            return 0
        results = run.train(recipe, options.resume, method)
    except (Exception, KeyboardInterrupt, Preempted) as error:
        return _run_failed(error, output)
    processes.leave()
    if not results:  # another process prints them
        return 0
    if compared := report.before_and_after(results):
        print_table([report.TITLES, *compared])
    if answers := results.get("answers"):
        print("\nheld-out prompts, how their text goes on, and what the model wrote before and after training:")
        print("\n".join(map(printable, report.answer_lines(answers))))
    models = shlex.join([recipe.model.model, f"{output}/final"])
    print(f"\nthe model is {output}/final; beside it are curves.png, samples and metrics.jsonl")
    print(f'ask both models something: ebft generate --model {models} --prompt "..."')
    return 0


def _launch(number: str, command: str, arguments: list[str]) -> int:
    """`--launch N`: the same command in N processes. This one only stands by."""
    if not number.isdecimal() or not int(number) or "WORLD_SIZE" in os.environ:
        raise ConfigError("--launch takes the number of processes to start; leave it out under torchrun or srun")
    try:
        return launch.launch(int(number), command, arguments)
    except ProcessKilled as error:
        options = training_parser(command).parse_args(arguments)
        folder = {**read_values(options.config), **options.settings}["output_dir"]
        return _run_failed(error, Path(folder).expanduser())


def _env(arguments: list[str]) -> int:
    Parser("env", "Versions and hardware, for bug reports.").parse_args(arguments)
    print_table(list(describe().items()))
    return 0


def _of(module: str, function: str = "command") -> Callable[[list[str]], int]:
    return lambda arguments: getattr(import_module(f"ebft.{module}"), function)(arguments)


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (partial(_train, "train"), "fine-tune a model with EBFT: --config recipe.yaml [--setting value ...]"),
    "sft": (partial(_train, "sft"), "the baseline: supervised fine-tuning on the same data"),
    "rlvr": (partial(_train, "rlvr"), "the baseline: reinforcement learning with a checked reward"),
    "plan": (_of("plan"), "the recipe for a model and a machine, its memory and time: --model M --gpus 8 --gpu h100"),
    "sweep": (_of("studies.commands", "sweep"), "many runs: --config recipe.yaml --set gamma=0,0.1"),
    "study": (_of("studies.commands", "study"), "methods and settings compared: run study.yaml; then: report DIR"),
    "compare": (_of("studies.commands", "compare"), "a table and overlaid curves of runs: RUN RUN ... [--output DIR]"),
    "generate": (_of("evaluate.generate_command"), "what models write: --model M [M ...] --prompt TEXT; or a chat"),
    "export": (_of("train.export"), "an ordinary model folder; an adapter is merged: RUN --output DIR"),
    "eval": (_of("evaluate.commands", "evaluate"), "evaluate models: --model M --tasks calibration,mbpp --output DIR"),
    "score": (_of("evaluate.commands", "score"), "score what `ebft eval --no-score` or another tool generated"),
    "fetch": (_of("fetch"), "get a model without a model hub: smollm2-135m"),
    "env": (_env, "versions and hardware, for bug reports"),
}


if __name__ == "__main__":
    sys.exit(main())
