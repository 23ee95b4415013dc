"""The command `ebft`. One function per command; torch and transformers are imported only where they are needed."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ebft.config.synonyms import suggestion
from ebft.config.usage import PLAN, STUDY, USAGE
from ebft.errors import ConfigError, Preempted, SandboxError, TrainingDiverged, nearest
from ebft.runtime.launch import PREEMPTED, end_with_launcher, stop_on_notice
from ebft.runtime.machine import lack_of_gpu_memory
from ebft.runtime.messages import LEVELS, each_message_once, printable, show_messages
from ebft.version import __version__

logger = logging.getLogger("ebft.cli")  # by this name also where the module is run as a program

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130
TRAINING = ("train", "sft", "rlvr")
_LESS_MEMORY = (
    "halve per_device_train_batch_size and double gradient_accumulation_steps, which leaves a step as it is, lower "
    "per_device_eval_batch_size, or set gradient_checkpointing=true; ebft plan says what fits"
)
RESUMING = ("sweep", "study run", "eval", "score")  # what they have done is on disk at any moment


def main(arguments: Sequence[str] | None = None) -> int:
    command = list(sys.argv[1:] if arguments is None else arguments)
    end_with_launcher()
    # Before torch starts its threads: let them spin only briefly while they wait for each other. On a CPU that does
    # something else as well, the default makes training ten times slower; on a quiet one this costs nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not command or command[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if command else BAD_INPUT
    if command[0] == "--version":
        print(__version__)
        return 0
    name, rest = command[0], command[1:]
    others: dict[str, Callable[[list[str]], int]] = {
        "plan": _plan,
        "sweep": _sweep,
        "study": _study,
        "compare": _compare,
        "generate": _generate,
        "export": _export,
        "eval": _eval,
        "score": _score,
        "fetch": _fetch,
        "env": _env,
    }
    commands = (*TRAINING, *others)
    if name not in commands:
        return _print_error(f"unknown command {name!r}; there is {', '.join(commands)}{nearest(name, commands)}")
    try:
        level, without_level = _take_log_level(rest)
        show_messages(level)
        if name in TRAINING:  # where the level is a setting like any other
            return _run_training(name, rest)
        with stop_on_notice():
            return others[name](without_level)
    except BrokenPipeError:  # `ebft train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, SandboxError) as error:  # configuration, data and layout errors are all ValueErrors
        return _print_error(str(error), once=True)
    except KeyboardInterrupt:
        return _print_error(f"stopped{_how_to_go_on(command)}", INTERRUPTED)
    except Preempted as notice:
        return _print_error(f"stopped by {notice}{_how_to_go_on(command)}", PREEMPTED)
    except OSError as error:
        return _print_error(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), FAILED)
    except RuntimeError as error:
        if (lack := lack_of_gpu_memory(error)) is None:
            raise
        smaller = "--batch-size or --calibration-batch-size" if name == "eval" else "--batch-size"
        return _print_error(f"{lack}; give a smaller {smaller}{_how_to_go_on(command)}", FAILED)


def _how_to_go_on(command: Sequence[str]) -> str:
    return "; the same command resumes from here" if " ".join(command).startswith(RESUMING) else ""


class _Parser(argparse.ArgumentParser):
    """Prints errors in one line, suggests the option that was meant, takes - and _ but no shortened names."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Options are written with - here and with _ in recipes; both are taken."""
        return super().parse_known_args([_with_dashes(word) for word in args], namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):
            flags = [word.partition("=")[0] for word in self._given if word.startswith("--")]
            unknown_flags = [flag for flag in flags if flag.replace("_", "-") not in self._option_string_actions]
            if unknown_flags:  # perhaps what is missing, misspelt
                message = f"unrecognized arguments: {unknown_flags[0]}"
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            # As it was typed, and without the value that follows.
            typed = next((word for word in self._given if f"{unknown} ".startswith(f"{_with_dashes(word)} ")), unknown)
            message = f"unexpected argument {typed!r}"
            if typed.startswith("-"):
                option = typed.partition("=")[0]
                message = f"unknown option {option!r}{suggestion(option, self._option_string_actions)}"
        raise SystemExit(_print_error(message))


def _with_dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


# ---- training ------------------------------------------------------------------------------------------------------


def _run_training(command: str, arguments: list[str]) -> int:
    """`ebft train`, `ebft sft` and `ebft rlvr`."""
    from ebft import fetch
    from ebft.config.recipe import UNNAMED, check_hub_datasets, check_places, check_values, read_values
    from ebft.train.output_folder import refusal

    if "--help" in arguments or "-h" in arguments:
        from ebft.config.help import settings_help

        print(settings_help(command))
        return 0
    # --resume and --dry-run take no value; every other flag is a setting.
    resume, dry_run = "--resume" in arguments, "--dry-run" in arguments or "--dry_run" in arguments
    file, overrides = _flags([a for a in arguments if a not in ("--resume", "--dry-run", "--dry_run")])
    values = {**(read_values(file) if file is not None else {}), **overrides}
    if dry_run and not values.get("output_dir"):
        values["output_dir"] = overrides["output_dir"] = UNNAMED
    if "launch" in values:
        return _launch(command, values, arguments)
    check_values(values, command)
    check_places(values)
    fetch.check_models(values)
    output = Path(str(values["output_dir"])).expanduser()
    if output.exists() and not output.is_dir():
        raise ConfigError(f"output_dir={output} is a file; choose a folder")
    if not dry_run and (why := refusal(output, resume)) is not None:
        raise ConfigError(why)
    check_hub_datasets(values)
    _quiet_libraries()
    from ebft.config.recipe import load_recipe
    from ebft.runtime import processes
    from ebft.train import answers_before_after, model_card, run
    from ebft.train.training_method import EBFT

    try:
        method = EBFT
        if command != "train":
            from ebft.baselines import trl_trainers

            method = trl_trainers.method(command)
        recipe = load_recipe(file, overrides, command)
        show_messages(recipe.training.log_level)
        if dry_run:
            print("\n".join(run.plan(recipe, method, resume)))
            return 0
        results = run.train(recipe, resume, method)
    except (Exception, KeyboardInterrupt, Preempted) as error:
        return _training_failed(error, output)
    processes.leave()
    if results:
        if compared := model_card.before_and_after(results):
            _print_table([model_card.TITLES, *compared])
            print("", *model_card.verdict(results), sep="\n")
        else:
            print("no validation data: nothing was evaluated")
        if answers := results.get("answers"):
            print("\nheld-out prompts, how their text goes on, and what the model wrote before and after training:")
            print("\n".join(map(printable, answers_before_after.lines(answers))))
        left = {"model": "final", "curves": "curves.png", "samples": "samples", "metrics": "metrics.jsonl"}
        print()
        _print_table([(name, f"{output}/{file}") for name, file in left.items()])
        models = shlex.join([recipe.model.model, f"{output}/final"])
        print(f'\nask both models something: ebft generate --model {models} --prompt "..."')
    return 0


def _training_failed(error: BaseException, output: Path | None) -> int:
    """What went wrong in one line, where the last good checkpoint is, and the exit code."""
    from ebft.runtime import processes
    from ebft.runtime.launch import LAUNCHED
    from ebft.train import checkpoints

    if isinstance(error, ValueError):
        return _print_error(str(error), once=True)
    if isinstance(error, TrainingDiverged):
        # Resumed with the same settings it would end the same way, and with others it would not be the same run.
        return _print_error(str(error), FAILED, output, once=True, remedy="a new run can begin there: --model {}")
    if isinstance(error, KeyboardInterrupt):
        return _print_error("stopped", INTERRUPTED, output, once=True)
    if isinstance(error, Preempted):
        if os.environ.get(LAUNCHED) and error.__cause__ is not None and processes.lost_another(error.__cause__):
            return PREEMPTED  # ended by the launcher because another process had died, which it says
        return _print_error(f"stopped by {error}", PREEMPTED, output, once=True)
    if processes.lost_another(error):
        if os.environ.get(LAUNCHED):
            return FAILED  # the launcher knows which, and says so
        return _print_error(f"lost another process: {error}", FAILED, output, once=True)
    if checkpoints.is_disk_full(error, output):
        if output is not None:
            checkpoints.remove_incomplete(output)  # the half-written one only takes room
        return _print_error(f"the disk is full: {getattr(error, 'filename', None) or output}", FAILED, output)
    if isinstance(error, PermissionError):
        return _print_error(f"{error.filename}: permission denied", FAILED, output)
    if (lack := lack_of_gpu_memory(error)) is not None:
        return _print_error(f"{lack}; {_LESS_MEMORY}", FAILED, output)
    raise error


def _launch(command: str, values: dict[str, Any], arguments: list[str]) -> int:
    """`--launch N`: the same command in N processes."""
    from ebft.config.recipe import check_values
    from ebft.runtime.launch import ProcessKilled, launch  # nothing heavy: this process only stands by

    number = values.pop("launch")
    if not (isinstance(number, str) and number.isdecimal() and int(number) > 0):
        given = "" if number is True else f", not {number!r}"
        raise ConfigError(f"--launch takes the number of processes to start{given}")
    if "WORLD_SIZE" in os.environ:
        raise ConfigError("--launch starts processes itself; leave it out under torchrun, accelerate launch or srun")
    check_values(values, command)
    at = next(i for i, argument in enumerate(arguments) if argument.partition("=")[0] == "--launch")
    rest = arguments[:at] + arguments[at + (1 if "=" in arguments[at] else 2) :]
    try:
        return launch(int(number), command, rest)
    except ProcessKilled as error:
        print(file=sys.stderr)  # a progress bar may be standing there, unfinished
        return _print_error(str(error), FAILED, Path(values.get("output_dir") or ""), processes=int(number))
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
            raise ConfigError(f"unexpected argument {flag!r}; settings are given as --setting value")
        name, equals, value = flag[2:].partition("=")
        position += 1
        found = [value] if equals else []
        while not equals and position < len(arguments) and not arguments[position].startswith("--"):
            found.append(arguments[position])
            position += 1
        if name == "config":
            if len(found) != 1:
                raise ConfigError("--config takes one file")
            file = found[0]
        else:
            values[name.replace("-", "_")] = True if not found else found[0] if len(found) == 1 else found
    return file, values


# ---- the other commands --------------------------------------------------------------------------------------------


def _plan(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(PLAN)
        return 0
    from ebft import plan
    from ebft.config.recipe import read_values

    file, settings = _flags([a for a in arguments if a != "--json"])
    if file is None and not settings.get("model"):
        raise ConfigError("ebft plan needs --config recipe.yaml, or --model and any other settings")
    gpu = str(settings.pop("gpu")).lower() if "gpu" in settings else None
    if gpu not in (None, *plan.GPUS) or (gpu is None and "gpu_memory" not in settings):
        raise ConfigError(f"ebft plan needs --gpu, one of {', '.join(plan.GPUS)}, or --gpu-memory with a number")
    output = settings.pop("output", None)
    if output is not None and Path(str(output)).exists():
        raise ConfigError(f"--output writes a new file: {output} is there already")
    tokens = _number(settings, "tokens") if "tokens" in settings else None
    gpus = int(_number(settings, "gpus")) if "gpus" in settings else 1
    memory = _number(settings, "gpu_memory") if "gpu_memory" in settings else plan.GPUS[str(gpu)][0]
    given = {**({} if file is None else read_values(file)), **settings}
    found = plan.make_plan(given, gpus, memory, gpu)
    if output is not None:
        Path(output).write_text(plan.recipe_text(found), encoding="utf-8")
    print(plan.as_json(found) if "--json" in arguments else plan.report(found, tokens, output))
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
        raise ConfigError(f"ebft plan needs {flag} with a number, not {value!r}")
    raise ConfigError(f"ebft plan needs {flag} with a number")


def _sweep(arguments: list[str]) -> int:
    from ebft.studies import inputs, launchers, points, sweep

    parser = _Parser(
        prog="ebft sweep",
        usage="ebft sweep --config recipe.yaml --set name=value,value ... [--launcher slurm] [--setting value ...]",
        description="Every combination of some settings' values. The same command resumes where it stopped.",
    )
    sweep.add_arguments(parser)
    options, rest = parser.parse_known_args(arguments)
    if options.command not in TRAINING:
        raise ConfigError(
            f"--command {options.command} is not one of {', '.join(TRAINING)}{nearest(options.command, TRAINING)}"
        )
    settings = _flags(rest)[1]
    if "launch" in settings:
        raise ConfigError("--launch is not for sweeps: every point of one runs in a single process")
    launcher = launchers.make_launcher(options, "sweep")
    writes = not options.dry_run or options.launcher != "local"
    found = points.points(options.config, settings, options.set, options.command, writes)
    inputs.check_points(found, elsewhere=options.launcher != "local")
    if options.dry_run:
        print("\n".join(sweep.preview(found, launcher)))
        return 0
    with sweep.lock(found):
        failed = sweep.sweep(found, launcher)
        if failed is None:  # they run later
            return 0
        _print_table(sweep.table(found, failed))
        comparison = sweep.compare_points(found)
    for note in comparison.notes if comparison else ():
        logger.warning(note)
    if comparison:
        print("\n" + "\n".join(map(str, comparison.files)))
    if failed:
        return _print_error(f"{len(failed)} of {len(found)} points failed; the same command tries them again", FAILED)
    return 0


def _study(arguments: list[str]) -> int:
    kinds: dict[str, Callable[[list[str]], int]] = {"run": _study_run, "report": _study_report}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(STUDY)
        return 0 if arguments else BAD_INPUT
    if arguments[0] not in kinds:
        raise ConfigError(f"ebft study {arguments[0]}: there is {', '.join(kinds)}{nearest(arguments[0], kinds)}")
    return kinds[arguments[0]](arguments[1:])


def _study_run(arguments: list[str]) -> int:
    from ebft.studies import inputs, launchers

    parser = _Parser(
        prog="ebft study run",
        usage="ebft study run study.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]",
        description="Methods, settings and seeds, with a test of every final model. The same command resumes.",
    )
    parser.add_argument("study", metavar="STUDY", help="YAML file of the study (docs/studies.md)")
    parser.add_argument(
        "--dry-run", action="store_true", help="say how many runs, how long and how many gigabytes; start nothing"
    )
    parser.add_argument("--next-stage", action="store_true", help="do only what was not tried yet: for jobs in a chain")
    launchers.add_arguments(parser, "runs")
    options = parser.parse_args(arguments)
    launcher = launchers.make_launcher(options, "study")
    from ebft.studies.study_file import read_study

    study = read_study(options.study)
    if not options.next_stage:  # else it was checked when the chain began
        inputs.check_study(study, elsewhere=options.launcher != "local")
    if options.dry_run:
        from ebft.studies.study_estimate import estimate_lines

        with each_message_once():  # methods mostly have the same data
            print("\n".join(estimate_lines(study, options.jobs, options.per_gpu)))
        return 0
    from ebft.studies.study_run import StudyRunner

    runner = StudyRunner(study, ["ebft", "study", "run", *arguments])
    failed = runner.run(launcher, options.next_stage)
    if failed is None:  # they run later
        return 0
    _print_table(runner.table())
    if failed:
        what = "1 job failed; the same command tries it again"
        if len(failed) > 1:
            what = f"{len(failed)} jobs failed; the same command tries them again"
        return _print_error(what, FAILED)
    if study.evaluation and study.evaluation.get("score") is False:
        print(f"\nwhere there is a sandbox: ebft score {study.folder}")
    print(f"\n{study.folder}: ebft study report {study.folder}")
    return 0


def _study_report(arguments: list[str]) -> int:
    parser = _Parser(prog="ebft study report", description="Tables, figures and a page of a study, finished or not.")
    parser.add_argument("study", metavar="DIR", help="output folder of ebft study run")
    parser.add_argument("--output", default=None, help="folder to write [DIR/report]")
    parser.add_argument("--paper", action="store_true", help="show the paper's own numbers beside, marked as such")
    options = parser.parse_args(arguments)
    from ebft.studies.report import study_report

    found = study_report.write(options.study, options.output, options.paper)
    for verdict in found.verdicts:
        print(verdict)
    for note in found.notes:
        logger.warning(note)
    print("\n" + "\n".join(map(str, found.files)))
    return 0


def _generate(arguments: list[str]) -> int:
    from ebft.evaluate import generate_command

    parser = _Parser(
        prog="ebft generate",
        usage="ebft generate --model M [M ...] [--prompt TEXT | --file F] [options]",
        description="What models write, side by side; without a prompt, a chat in the terminal.",
    )
    generate_command.add_arguments(parser)
    generate_command.run(parser.parse_args(arguments))
    return 0


def _export(arguments: list[str]) -> int:
    parser = _Parser(prog="ebft export", description="An ordinary model folder, with an adapter merged into its base.")
    parser.add_argument("source", metavar="RUN_OR_CHECKPOINT", help="output folder of a run, checkpoint or adapter")
    parser.add_argument("--output", required=True, help="folder to write; must not be there yet")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16 [float32]")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    options = parser.parse_args(arguments)
    from ebft.train import export

    export.check(options.source, options.output, options.dtype)
    _quiet_libraries(bars=sys.stderr.isatty())
    print(export.export(options.source, options.output, options.dtype, options.trust_remote_code))
    return 0


def _compare(arguments: list[str]) -> int:
    from ebft.studies import compare

    parser = _Parser(prog="ebft compare", description="A table and overlaid curves of finished or running runs.")
    compare.add_arguments(parser)
    options = parser.parse_args(arguments)
    taken: compare.OutputTaken | None = None
    try:
        found = compare.compare(options.runs, options.output or compare.FOLDER, options.x, options.name)
    except compare.OutputTaken as error:  # the table needs no folder
        found, taken = compare.compare(options.runs, None, options.x, options.name), error
    _print_table(found.table)
    for note in found.notes:
        logger.warning(note)
    if taken is not None:
        words = f"no files were written: {taken}"
        if options.output is not None:  # they were asked for
            return _print_error(words)
        logger.warning(words)
        return 0
    print()
    print("\n".join(map(str, found.files)))
    return 0


def _eval(arguments: list[str]) -> int:
    from ebft.config import evaluation

    parser = _Parser(
        prog="ebft eval",
        usage="ebft eval --model M --tasks calibration,humaneval,... --output DIR [options]",
        description="Evaluate checkpoints. The same command resumes where it stopped.",
    )
    options = evaluation.parse(arguments, parser)
    from ebft.evaluate import eval_command

    table = eval_command.run(options, ["ebft", "eval", *arguments])
    _print_table(table)
    print(f"\n{options.output}/{eval_command.TABLE_FILE}")
    return 0


def _score(arguments: list[str]) -> int:
    from ebft.evaluate import score_command

    description = "Score completions made elsewhere. The same command resumes where it stopped."
    parser = _Parser(prog="ebft score", description=description)
    score_command.add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.task not in score_command.TASKS and Path(options.task).expanduser().is_dir():
        from ebft.evaluate.score_later import score_folder

        scored = score_folder(options)
        _print_table(scored.table)
        return max((_print_error(error) for error in scored.errors), default=0)
    results = score_command.score(options)
    for note in results.get("notes", []):
        logger.warning(note)
    _print_table(score_command.table(results))
    print(f"\n{options.output}")
    return 0


def _fetch(arguments: list[str]) -> int:
    from ebft.fetch import NAMES, fetch

    parser = _Parser(prog="ebft fetch", description="Get a model without a model hub.")
    parser.add_argument("name", help=", ".join(NAMES))
    parser.add_argument(
        "--from", dest="file", metavar="FILE.gguf", help="the model's GGUF file, instead of downloading it"
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="of the checkpoint; else that of the original")
    given = parser.parse_args(arguments)
    print(fetch(given.name, given.file, given.dtype))
    return 0


def _env(arguments: list[str]) -> int:
    _Parser(prog="ebft env", description="Versions and hardware, for bug reports.").parse_args(arguments)
    from ebft.runtime.machine import describe

    _print_table(list(describe().items()))
    return 0


# ---- what commands share -------------------------------------------------------------------------------------------


def _take_log_level(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """`--log_level`, which every command takes, and the other arguments: debug, info (the default), warning, error or
    critical."""
    level, rest = "info", list(arguments)
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.replace("-", "_") == "__log_level":
            level = value if equals else "".join(arguments[place + 1 : place + 2])
            rest = [*arguments[:place], *arguments[place + (1 if equals else 2) :]]
            break
    if level not in (*LEVELS, "passive", "detail"):
        raise ConfigError(f"--log_level {level} is not one of {', '.join(LEVELS)}")
    return level, rest


def _quiet_libraries(bars: bool = False) -> None:
    """transformers tells much that is about itself; its bars show how far loading and writing is."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()


def _end_progress() -> None:
    """A progress bar that is still there would stand on the same line as what is said, and be drawn again after it."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())
    for bar in list(bars):
        bar.close()


def _print_error(
    message: str,
    code: int = BAD_INPUT,
    output: Path | None = None,
    once: bool = False,
    remedy: str | None = None,
    processes: int | None = None,
) -> int:
    """One clear line on standard error, and where the last good checkpoint of `output` is.

    remedy: what to do with the checkpoint, which comes in the place of {}; by default, resume from it.
    processes: of the run, where this process is none of them.
    With `once`, it is an error that all processes of a machine meet, as a rule: the first of them speaks for all.
    """
    if once and os.environ.get("LOCAL_RANK", "0") != "0":
        if code in (INTERRUPTED, PREEMPTED) or "TORCHELASTIC_RUN_ID" not in os.environ:
            return code
        # torch's launcher ends this process as soon as the first one has ended. If that one has not met the error,
        # somebody else must speak.
        time.sleep(5)
    _end_progress()
    print(f"ebft: {printable(' '.join(message.split()))}", file=sys.stderr)
    if output is not None:
        from ebft.config.like_run import how_to_resume
        from ebft.train.checkpoints import last_checkpoint

        last = last_checkpoint(output)
        where = "there is no checkpoint yet; one is made every save_steps"
        if (output / "recipe.yaml").exists():
            where += f"; begin again with: {how_to_resume(output, processes)}"
        if last:
            remedy = remedy or f"continue with: {how_to_resume(output, processes)}"
            where = f"the last good checkpoint is {last}; {remedy.replace('{}', str(last))}"
        print(f"ebft: {where}", file=sys.stderr)
    return code


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print(printable("  ".join(cells)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
