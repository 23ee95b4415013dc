"""`ebft sweep`, `ebft study run`, `ebft study report` and `ebft compare`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields

from ebft.config.recipe import TRAINING, sections
from ebft.config.settings import Parser
from ebft.errors import ConfigError, nearest
from ebft.runtime.files import locked
from ebft.runtime.messages import print_error, print_table
from ebft.studies import compare as comparisons
from ebft.studies import launchers, run
from ebft.studies.study_file import read_study, read_sweep

logger = logging.getLogger(__name__)


def sweep_parser() -> Parser:
    usage = "--config recipe.yaml --set name=value,value ... [--launcher slurm] [--setting value ...]"
    text = "Every combination of some settings' values. The same command resumes where it stopped."
    parser = Parser("sweep", text, usage)
    launchers.add_sweep_arguments(parser)
    settings = {f.name: f for command in TRAINING for part in sections(command) for f in fields(part) if f.init}
    parser.add_settings("", settings.items(), hidden=settings)
    return parser


def sweep(arguments: list[str]) -> int:
    options = sweep_parser().parse_args(arguments)
    launcher = launchers.make_launcher(options, "sweep")
    writes = not options.dry_run or options.launcher != "local"
    runner = run.Runner(read_sweep(options.config, options.settings, options.set, options.command, writes), arguments)
    run.check_inputs(runner.plan, elsewhere=options.launcher != "local")
    if options.dry_run:
        print("\n".join([*launcher.preview(runner.plan.jobs), runner.extent()]))
        return 0
    with locked(runner.lock):
        failed = runner.run(launcher)
        if failed is None:  # they run later
            return 0
        print_table(runner.table())
        comparison = run.compare_points(runner.plan)
    for note in comparison.notes if comparison else ():
        logger.warning(note)
    if comparison:
        print("\n" + "\n".join(map(str, comparison.files)))
    return _tried_again(failed, "point")


def _tried_again(failed: Sequence[object], what: str) -> int:
    if failed:
        print_error(f"{len(failed)} {what}{'s' if len(failed) > 1 else ''} failed; the same command tries again")
    return int(bool(failed))


def study(arguments: list[str]) -> int:
    kinds: dict[str, Callable[[list[str]], int]] = {"run": _run, "report": _report}
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: ebft study run study.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]")
        print("       ebft study report DIR [--output DIR] [--paper]")
        return 0 if arguments else 2
    if arguments[0] not in kinds:
        raise ConfigError(f"ebft study {arguments[0]}: there is {', '.join(kinds)}{nearest(arguments[0], kinds)}")
    return kinds[arguments[0]](arguments[1:])


def _run(arguments: list[str]) -> int:
    usage = "study.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]"
    text = "Methods, settings and seeds, with a test of every final model. The same command resumes."
    parser = Parser("study run", text, usage)
    parser.add_argument("study", metavar="STUDY", help="YAML file of the study (docs/studies.md)")
    parser.add_argument("--dry-run", action="store_true", help="list the jobs; with slurm, write the job file")
    parser.add_argument("--next-stage", action="store_true", help="do only what was not tried yet: for jobs in a chain")
    launchers.add_arguments(parser, "runs")
    options = parser.parse_args(arguments)
    launcher, found = launchers.make_launcher(options, "study"), read_study(options.study)
    runner = run.Runner(found, ["ebft", "study", "run", *arguments])
    if not options.next_stage:  # else it was checked when the chain began
        run.check_inputs(runner.plan, elsewhere=options.launcher != "local")
    if options.dry_run:
        print("\n".join([*launcher.preview(runner.plan.jobs), runner.extent()]))
        return 0
    with locked(runner.lock):
        failed = runner.run(launcher, options.next_stage)
    if failed is None:  # they run later
        return 0
    print_table(runner.table())
    if not failed and found.evaluation.get("score") is False:
        print(f"\nwhere there is a sandbox: ebft score {found.folder}")
    print(f"\n{found.folder}: ebft study report {found.folder}")
    return _tried_again(failed, "job")


def _report(arguments: list[str]) -> int:
    parser = Parser("study report", "Tables, figures and a page of a study, finished or not.")
    parser.add_argument("study", metavar="DIR", help="output folder of ebft study run")
    parser.add_argument("--output", default=None, help="folder to write [DIR/report]")
    parser.add_argument("--paper", action="store_true", help="show the paper's own numbers beside, marked as such")
    options = parser.parse_args(arguments)
    from ebft.studies import report

    found = report.write(options.study, options.output, options.paper)
    print("\n".join(map(str, found.verdicts)))
    for note in found.notes:
        logger.warning(note)
    print("\n" + "\n".join(map(str, found.files)))
    return 0


def compare(arguments: list[str]) -> int:
    parser = Parser("compare", "A table and overlaid curves of finished or running runs.")
    comparisons.add_arguments(parser)
    options = parser.parse_args(arguments)
    found = comparisons.compare(options.runs, options.output, options.x, options.name)
    for table in found.tables:
        print_table([tuple(table.columns), *(tuple(map(str, row)) for row in table.rows)])
        print()
    for note in found.notes:
        logger.warning(note)
    print("\n".join(map(str, found.files)))
    return 0
