"""`ebft sweep`, `ebft study run`, `ebft study report` and `ebft compare`."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from ebft.config.recipe import TRAINING, sections
from ebft.config.settings import Parser
from ebft.errors import ConfigError
from ebft.runtime.messages import print_table
from ebft.studies import compare as comparisons
from ebft.studies.run import NEXT_STAGE, Runner
from ebft.studies.study_file import read_study, read_sweep

logger = logging.getLogger(__name__)
_STUDY_RUN = "STUDY.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]"


def sweep_parser() -> Parser:
    usage = "--config recipe.yaml --set name=value,value ... [--launcher slurm] [--setting value ...]"
    parser = Parser("sweep", "Every combination of some settings' values. The same command resumes.", usage)
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="recipe of the runs; may hold a `sweep:` section")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="values of one setting; may be given often")
    add("--command", choices=TRAINING, default="train", help="what each point runs [train]")
    _add_launcher(parser)
    settings = {f.name: f for command in TRAINING for part in sections(command) for f in fields(part) if f.init}
    parser.add_settings("", settings.items(), hidden=settings)
    parser.set_defaults(next_stage=False)
    return parser


def study_parser() -> Parser:
    text = "Methods, settings and seeds, with a test of every final model. The same command resumes."
    parser = Parser("study run", text, _STUDY_RUN)
    parser.add_argument("study", metavar="STUDY", help="YAML file of the study (docs/studies.md)")
    parser.add_argument(NEXT_STAGE, action="store_true", help="do only what was not tried yet: for jobs in a chain")
    _add_launcher(parser)
    return parser


def _add_launcher(parser: Parser) -> None:
    add = parser.add_argument
    add("--dry-run", action="store_true", help="list the runs; with slurm, write the job file")
    add("--launcher", choices=("local", "slurm"), default="local", help="this machine, or one array job [local]")
    add("--jobs", type=int, help="runs at once [local: one for each GPU, one on a CPU; slurm: all]")
    add("--per-gpu", type=int, default=1, help="runs at once on each GPU, with the local launcher [1]")
    add("--slurm", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch, such as time=08:00:00")


def _options(parser: Parser, arguments: list[str]) -> Namespace:
    options = parser.parse_args(arguments)
    if options.per_gpu < 1 or (options.jobs is not None and options.jobs < 1):
        raise ConfigError("--jobs and --per-gpu are at least 1")
    if options.slurm and options.launcher != "slurm":
        raise ConfigError("--slurm is for --launcher slurm; leave it out")
    return options


def sweep(arguments: list[str]) -> int:
    options = _options(sweep_parser(), arguments)
    found = read_sweep(options.config, options.settings, options.set, options.command)
    runner = Runner(found, ["ebft", "sweep", *arguments], options)
    code = runner.run()
    measured = [run for run in runner.plan.runs if run.finished and run.validated is not None]
    if measured and not options.dry_run:
        _compare([str(run.output) for run in measured], str(found.folder / comparisons.FOLDER))
    return code


def study(arguments: list[str]) -> int:
    kinds: dict[str, Callable[[list[str]], int]] = {"run": _study_run, "report": _report}
    usage = f"usage: ebft study run {_STUDY_RUN}; or ebft study report DIR [--output DIR] [--paper]"
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage)
        return 0
    if not arguments or arguments[0] not in kinds:
        raise ConfigError(usage)
    return kinds[arguments[0]](arguments[1:])


def _study_run(arguments: list[str]) -> int:
    options = _options(study_parser(), arguments)
    found = read_study(options.study)
    code = Runner(found, ["ebft", "study", "run", *arguments], options).run()
    if not options.dry_run:
        print(f"next: ebft {'score' if found.evaluation.get('score') is False else 'study report'} {found.folder}")
    return code


def _compare(runs: Sequence[str], output: str, axis: str = "steps", names: Sequence[str] = ()) -> None:
    found = comparisons.compare(runs, output, axis, names)
    for table in found.tables:
        print()
        print_table([tuple(table.columns), *(tuple(map(str, row)) for row in table.rows)])
    _show(found.notes, found.files)


def _show(notes: Sequence[str], files: Sequence[Path]) -> None:
    for note in notes:
        logger.warning(note)
    print("\n" + "\n".join(map(str, files)))


def _report(arguments: list[str]) -> int:
    parser = Parser("study report", "Tables, figures and a page of a study, finished or not.")
    parser.add_argument("study", metavar="DIR", help="output folder of ebft study run")
    parser.add_argument("--output", help="folder to write [DIR/report]")
    parser.add_argument("--paper", action="store_true", help="show the paper's own numbers beside, marked as such")
    options = parser.parse_args(arguments)
    from ebft.studies import report

    found = report.write(options.study, options.output, options.paper)
    print("\n".join(map(str, found.verdicts)))
    _show(found.notes, found.files)
    return 0


def compare(arguments: list[str]) -> int:
    parser = Parser("compare", "A table and overlaid curves of finished or running runs.")
    comparisons.add_arguments(parser)
    options = parser.parse_args(arguments)
    _compare(options.runs, options.output, options.x, options.name)
    return 0
