"""`ebft sweep`, `ebft study run`, `ebft study report` and `ebft compare`.

The manifest of a study, `study.json` in its folder, says what has happened: commands, machine, states.
"""

from __future__ import annotations

import logging
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence

from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import TRAINING, check_datasets, declared
from ebft.config.settings import Parser
from ebft.errors import ConfigError
from ebft.fetch import check_models
from ebft.runtime.files import Json, json_ready, locked, read_json, write_json, write_text
from ebft.runtime.messages import print_error, print_table
from ebft.studies import launchers, report
from ebft.studies.evidence import AXES
from ebft.studies.study import Job, Plan, Run, Study, named, read_study, read_sweep

logger = logging.getLogger(__name__)
NEXT_STAGE = "--next-stage"  # the option of the command that a chain of jobs on a cluster runs
_COMPARED = "compare"  # the folder of a comparison
_STUDY_RUN = "STUDY.yaml [--dry-run] [--jobs N] [--launcher slurm] [options]"


def check_inputs(plan: Plan) -> None:
    """Data, models, problems and a sandbox are there: said before the first job starts."""
    from ebft.evaluate.tasks import problem_sets

    for settings in [{**row.settings, **values} for row in plan.study.rows for values in row.candidates]:
        check_datasets(settings)
        check_models(settings)
    options = EvalOptions.from_values(plan.study.evaluation)
    for task in options.tasks:
        problem_sets(task, options)


def run(study: Study, command: Sequence[str], options: Namespace) -> tuple[int, Plan]:
    """What is left of a study or a sweep; the exit code, and how far it is then. With `next_stage` only what was not
    tried before: a chain of jobs must come to an end."""
    failed: set[str] = set()  # names of jobs that are not tried again
    plan = Plan(study, failed, options.next_stage)

    def ready() -> list[Job]:
        """All jobs that could run now, by what is on the disk; the manifest says how far they are."""
        nonlocal plan
        plan = Plan(study, failed, options.next_stage)
        if study.kind == "study":
            _write_manifest(plan, command)
        return [job for job in plan.ready() if not plan.given_up(job)]

    if options.launcher == "local" and (plan.unknown or plan.unfinished):
        check_inputs(plan)  # other machines may have what is not here
    if options.dry_run:
        print("\n".join(_states(plan)))
        if options.launcher == "slurm" and plan.unfinished:
            print(f"written and not submitted: sbatch {launchers.write_array(study, options, plan.unfinished)}")
        return 0, plan
    with locked(study.folder / f"{study.kind}.lock"):
        if study.text:
            write_text(study.folder / "study.yaml", study.text)
        logger.info(_states(plan)[-1])
        try:
            if options.launcher == "local":
                launchers.run_here(options, ready, failed)
            elif jobs := ready():
                waits = plan.unknown or len(plan.ready()) < len(plan.unfinished)
                again = [word for word in command[1:] if word != NEXT_STAGE] + [NEXT_STAGE]
                launchers.submit(study, options, jobs, again if waits else [])
                return 0, plan  # they run later
        finally:
            ready()
    print("\n".join(_states(plan)))
    if failed:
        print_error(f"{len(failed)} job{'s' * (len(failed) > 1)} failed; the same command tries again")
    return int(bool(failed)), plan


def _states(plan: Plan) -> list[str]:
    lengths = ", ".join(f"{count} of {length}" for length, count in Counter(run.length for run in plan.runs).items())
    counts = f"jobs: {len(plan.runs)} training runs ({lengths}) and {len(plan.evaluations)} evaluations"
    counts += f", {len(plan.jobs) - len(plan.unfinished)} of them finished; {plan.unknown} more wait for a search"
    return [*(f"{job.name}: {job.state}" for job in plan.jobs), counts]


def _write_manifest(plan: Plan, command: Sequence[str]) -> None:
    from ebft.runtime.machine import describe

    file = plan.study.folder / "study.json"
    before = read_json(file) or {}
    found: Json = {"study": plan.study.name, "command": list(command), "paper": plan.study.paper, "rows": _rows(plan)}
    found["started"] = before.get("started", time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    found["machine"] = before.get("machine") or describe()
    found["jobs"] = {job.name: {"state": job.state, "command": job.command} for job in plan.jobs}
    write_json(file, json_ready(found))


def _rows(plan: Plan) -> list[Json]:
    """What the report shows side by side, with places from the study's folder, which may be moved."""
    tested, methods = {job.name for job in plan.evaluations}, {row.name: row.method for row in plan.study.rows}

    def model(name: str, run: Run | None = None) -> Json:
        evaluation = f"evaluations/{name}" if f"evaluate-{name}" in tested else None
        return {"seed": run and run.seed, "run": run and f"runs/{name}", "evaluation": evaluation}

    rows: list[Json] = []
    for row in [*(plan.bases if plan.study.evaluation else ()), *plan.study.rows]:
        final, shown = plan.final.get(row.name), named("", row.values).replace("=", " ").replace(",", ", ")
        given: Json = {"title": f"{row.method} ({shown})" if shown else row.method}
        given |= {"kind": {"train": "ebft"}.get(row.command, row.command), "chosen": final[0].chosen if final else {}}
        given["after"] = methods.get(row.needs.get("model", ""))
        models = [model(row.name)] if final is None else [model(run.name, run) for run in final]
        rows.append({**given, "models": models})
    return rows


def sweep(arguments: list[str]) -> int:
    usage = "--config recipe.yaml --set name=value,value ... [--launcher slurm] [--setting value ...]"
    parser = Parser("sweep", "Every combination of some settings' values. The same command resumes.", usage)
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="recipe of the runs; may hold a `sweep:` section")
    add("--set", action="append", default=[], metavar="NAME=V,V", help="values of one setting; may be given often")
    add("--command", choices=TRAINING, default="train", help="what each point runs [train]")
    settings = {name: f for command in TRAINING for name, f in declared(command).items()}
    parser.add_settings("", settings.items(), hidden=settings)
    parser.set_defaults(next_stage=False)
    options = _options(parser, arguments)
    found = read_sweep(options.config, options.settings, options.set, options.command)
    code, plan = run(found, ["ebft", "sweep", *arguments], options)
    measured = [str(run.output) for run in plan.runs if run.finished and run.validated is not None]
    if measured and not options.dry_run:
        _compare(measured, str(found.folder / _COMPARED))
    return code


def _options(parser: Parser, arguments: list[str]) -> Namespace:
    """Also those of the launchers."""
    add = parser.add_argument
    add("--dry-run", action="store_true", help="list the runs; with slurm, write the job file")
    add("--launcher", choices=("local", "slurm"), default="local", help="this machine, or one array job [local]")
    add("--jobs", type=int, help="runs at once [local: one for each GPU, one on a CPU; slurm: all]")
    add("--per-gpu", type=int, default=1, help="runs at once on each GPU, with the local launcher [1]")
    add("--slurm", action="append", default=[], metavar="NAME=VALUE", help="an option of sbatch, such as time=08:00:00")
    options = parser.parse_args(arguments)
    is_local_slurm = (options.slurm or options.next_stage) and options.launcher != "slurm"
    if options.per_gpu < 1 or (options.jobs is not None and options.jobs < 1) or is_local_slurm:
        raise ConfigError("--jobs and --per-gpu are at least 1; --slurm and --next-stage are for --launcher slurm")
    return options


def study(arguments: list[str]) -> int:
    what, *rest = arguments or [""]
    if what in ("run", "report"):
        return _study_run(rest) if what == "run" else _study_report(rest)
    usage = f"usage: ebft study run {_STUDY_RUN}; or ebft study report DIR [--output DIR] [--paper]"
    if what not in ("-h", "--help"):
        raise ConfigError(usage)
    print(usage)
    return 0


def _study_run(arguments: list[str]) -> int:
    text = "Methods, settings and seeds, with a test of every final model. The same command resumes."
    parser = Parser("study run", text, _STUDY_RUN)
    parser.add_argument("study", metavar="STUDY", help="YAML file of the study (docs/studies.md)")
    parser.add_argument(NEXT_STAGE, action="store_true", help="do only what was not tried yet: for jobs in a chain")
    options = _options(parser, arguments)
    found = read_study(options.study)
    code, _ = run(found, ["ebft", "study", "run", *arguments], options)
    if not options.dry_run:
        print(f"next: ebft {'score' if found.evaluation.get('score') is False else 'study report'} {found.folder}")
    return code


def _study_report(arguments: list[str]) -> int:
    parser = Parser("study report", "Tables, figures and a page of a study, finished or not.")
    parser.add_argument("study", metavar="DIR", help="output folder of ebft study run")
    parser.add_argument("--output", help="folder to write [DIR/report]")
    parser.add_argument("--paper", action="store_true", help="show the paper's own numbers beside, marked as such")
    options = parser.parse_args(arguments)
    _show(report.write(options.study, options.output, options.paper))
    return 0


def compare(arguments: list[str]) -> int:
    parser = Parser("compare", "A table and overlaid curves of finished or running runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folders of ebft train, sft or rlvr")
    written = ", ".join(report.COMPARED)
    parser.add_argument("--output", default=_COMPARED, help=f"folder for {written} [{_COMPARED}]")
    parser.add_argument("--x", default="steps", choices=AXES, help="horizontal axis of the figures [steps]")
    parser.add_argument("--name", action="append", default=[], help="what to call a run, one for each, in order")
    options = parser.parse_args(arguments)
    _compare(options.runs, options.output, options.x, options.name)
    return 0


def _compare(runs: Sequence[str], output: str, axis: str = "steps", names: Sequence[str] = ()) -> None:
    found = report.compare(runs, output, axis, names)
    for table in found.tables:
        print()
        print_table([tuple(table.cells.columns), *table.texts.itertuples(index=False, name=None)])
    _show(found)


def _show(found: report.Report) -> None:
    for note in found.notes:
        logger.warning(note)
    print("\n".join(map(str, [*found.verdicts, "", *found.files])))
