"""`ebft sweep`, `ebft study run`, `ebft study report` and `ebft compare`."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ebft.config.recipe import TRAINING, sections
from ebft.config.settings import Parser
from ebft.errors import ConfigError
from ebft.runtime.files import locked
from ebft.runtime.messages import print_error, print_table
from ebft.studies import compare as comparisons
from ebft.studies import launchers, run
from ebft.studies.study_file import read_study, read_sweep

logger = logging.getLogger(__name__)


def sweep_parser() -> Parser:
    usage = "--config recipe.yaml --set name=value,value ... [--launcher slurm] [--setting value ...]"
    parser = Parser("sweep", "Every combination of some settings' values. The same command resumes.", usage)
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="recipe of the runs; may hold a `sweep:` section")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="values of one setting; may be given often")
    add("--command", choices=TRAINING, default="train", help="what each point runs [train]")
    launchers.add_arguments(parser, "points")
    settings = {f.name: f for command in TRAINING for part in sections(command) for f in fields(part) if f.init}
    parser.add_settings("", settings.items(), hidden=settings)
    parser.set_defaults(next_stage=False)
    return parser


def study_parser() -> Parser:
    usage = "study.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]"
    text = "Methods, settings and seeds, with a test of every final model. The same command resumes."
    parser = Parser("study run", text, usage)
    parser.add_argument("study", metavar="STUDY", help="YAML file of the study (docs/studies.md)")
    parser.add_argument("--next-stage", action="store_true", help="do only what was not tried yet: for jobs in a chain")
    launchers.add_arguments(parser, "runs")
    return parser


def sweep(arguments: list[str]) -> int:
    options = sweep_parser().parse_args(arguments)
    launchers.check_options(options)
    found = read_sweep(options.config, options.settings, options.set, options.command)
    return _run(run.Runner(found, ["ebft", "sweep", *arguments]), options)


def study(arguments: list[str]) -> int:
    kinds: dict[str, Callable[[list[str]], int]] = {"run": _study_run, "report": _report}
    usage = "usage: ebft study run STUDY.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]"
    usage += "; or ebft study report DIR [--output DIR] [--paper]"
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage)
        return 0
    if not arguments or arguments[0] not in kinds:
        raise ConfigError(usage)
    return kinds[arguments[0]](arguments[1:])


def _study_run(arguments: list[str]) -> int:
    options = study_parser().parse_args(arguments)
    launchers.check_options(options)
    return _run(run.Runner(read_study(options.study), ["ebft", "study", "run", *arguments]), options)


def _run(runner: run.Runner, options: Namespace) -> int:
    """All jobs of a sweep or a study; the exit code."""
    folder, is_sweep = runner.study.folder, runner.study.is_sweep
    if not options.next_stage:  # else it was checked when the chain began
        run.check_inputs(runner.plan, elsewhere=options.launcher != "local")
    if options.dry_run:
        print("\n".join([*runner.states(), runner.extent()]))
        if options.launcher == "slurm" and (left := runner.plan.unfinished):
            print(f"written and not submitted: sbatch {launchers.write_array(runner.study.kind, options, left)}")
        return 0
    with locked(runner.lock):
        failed = runner.run(options)
        if failed is None:  # they run later
            return 0
        print("\n".join(runner.states()))
        measured = [str(run.output) for run in runner.plan.runs if "before" in run.results]
        if is_sweep and measured:
            _compare(measured, str(folder / comparisons.FOLDER))
    if not is_sweep:
        print(f"next: ebft {'score' if runner.study.evaluation.get('score') is False else 'study report'} {folder}")
    if failed:
        print_error(f"{len(failed)} job{'s' * (len(failed) > 1)} failed; the same command tries again")
    return int(bool(failed))


def _compare(*arguments: Any) -> None:
    found = comparisons.compare(*arguments)
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
    parser.add_argument("--output", default=None, help="folder to write [DIR/report]")
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
