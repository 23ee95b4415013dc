"""`ebft study report`: everything that a study's folder says, as a page, tables and figures. `ebft compare`: the same
of some runs, finished or not, by EBFT or a baseline."""

from __future__ import annotations

import base64
import math
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ebft.errors import ConfigError
from ebft.runtime.files import Json, json_ready, read_jsonl, write_json, write_text
from ebft.studies import figures, tables
from ebft.studies.evidence import AXES, VALIDATION, Evidence, read_runs, read_study_folder, validation_metrics
from ebft.studies.tables import Table, Test, markdown_text, name_of, shown, summary_of

PAGE, TEXT, TABLES, FIGURES = "report.html", "report.md", "tables", "figures"
COMPARED = PNG, HTML, NUMBERS = "compare.png", "compare.html", "compare.json"
_PROBLEMS = 5  # of each set, whose answers are shown side by side


class Report(NamedTuple):
    tables: list[Table]
    verdicts: list[str]
    notes: list[str]
    files: list[Path]


def write(study: str, output: str | None = None, paper: bool = False) -> Report:
    folder = Path(study).expanduser()
    evidence = read_study_folder(folder)
    place = folder / "report" if output is None else Path(output).expanduser()
    _check_place(place, PAGE)
    metrics, manifest = tables.main_metrics(evidence), evidence.manifest
    others = [metric for metric in evidence.metrics if metric not in metrics]
    caption = "of a single run they say nothing about training again."
    every = [
        tables.metrics_table(evidence, metrics, "main", "Main results", caption),
        *(tables.paper_tables(manifest.get("paper")) if paper else ()),
        tables.differences_table(evidence, metrics),
        tables.metrics_table(evidence, others, "other-metrics", "Other metrics", "not tested."),
        tables.settings_table(evidence),
        tables.costs_table(evidence),
    ]
    every = [table for table in every if len(table.cells)]
    for part in (place / TABLES, place / FIGURES):
        shutil.rmtree(part, ignore_errors=True)  # of an earlier report
        part.mkdir(parents=True)
    for table in every:
        write_text(place / TABLES / f"{table.name}.csv", table.as_csv())
        write_text(place / TABLES / f"{table.name}.tex", table.as_latex())
    drawn = {name: figures.saved(figure) for name, figure in figures.draw(evidence).items()}
    for name, (svg, png) in drawn.items():
        (place / FIGURES / f"{name}.svg").write_bytes(svg)
        (place / FIGURES / f"{name}.png").write_bytes(png)
    title, verdicts = str(manifest["study"]), _verdicts(tables.rankings(evidence, metrics))
    made_with = {name: str(manifest.get(name, "")) for name in ("started", "command", "machine")}
    page: Json = {"title": title, "notes": evidence.notes, "verdicts": verdicts, "tables": every}
    write_text(place / PAGE, _page({**page, "answers": _answers(evidence), "made_with": made_with}, drawn))
    lines = [f"# {markdown_text(title)}\n", *(f"> {markdown_text(note)}\n" for note in evidence.notes)]
    lines += [*(f"- {markdown_text(verdict)}" for verdict in verdicts), "", *(table.as_markdown() for table in every)]
    lines += [*(f"![{name}]({FIGURES}/{name}.png)\n" for name in drawn), "## How this was made", ""]
    write_text(place / TEXT, "\n".join([*lines, *(f"- {n}: {markdown_text(v)}" for n, v in made_with.items()), ""]))
    return Report(every, verdicts, evidence.notes, [place / PAGE, place / TEXT, place / TABLES, place / FIGURES])


def _check_place(place: Path, file: str) -> None:
    """What is not ours is not overwritten."""
    if place.exists() and any(place.iterdir()) and not (place / file).exists():
        raise ConfigError(f"--output {place} is not empty and holds no {file}; choose another folder")


def _page(page: Json, drawn: Mapping[str, tuple[bytes, bytes]]) -> str:
    """One HTML file that loads nothing. Whatever is put into it is escaped; an SVG can run nothing as an image."""
    from jinja2 import Environment

    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    pictures = {name: base64.b64encode(svg).decode() for name, (svg, _) in drawn.items()}
    return Environment(autoescape=True).from_string(template).render(page, figures=pictures)


def _verdicts(ranked: Sequence[Test]) -> list[str]:
    """A plain sentence for each metric, made from the tests and never stronger than they allow."""
    found, tests = [], sum(not math.isnan(one.p) for one in ranked)
    for one in ranked:
        where = "on validation data" if one.metric.startswith(f"{VALIDATION} ") else "on the test data"
        means = [(row, summary_of(row, one.metric)) for row in (one.mine, one.other)]
        best, second = (f"{row.title} ({math.nan if mean is None else mean.value:.4f})" for row, mean in means)
        if one.found is None or one.reading == "not tested":
            said = f"{best}, {second}; this cannot be tested here, so it is no ranking"
        else:
            is_better = one.reading == "better"
            said = f"{best} is better than {second}" if is_better else f"not decided between {best} and {second}"
            # The interval is of this test alone, and may leave out 0 where the corrected p is not small.
            p = f"p {shown(one.found.p)} alone, {shown(one.p)} after correction for {tests} tests"
            said += f"; difference {shown(one.found)}, {p}"
            if one.found.seeds < 2:
                said += "; with one training run each, this says nothing about training again"
        # What was trained before counts for a row that started from there, and not for the other.
        warm = [row for row in (one.mine, one.other) if row.after is not None and one.mine.after != one.other.after]
        starts = [f" {r.title} started from the final models of {r.after}, so it had more training." for r in warm]
        found.append(f"{name_of(one.metric)}, {where}: {said}.{''.join(starts)}")
    return found


def _answers(evidence: Evidence) -> list[Table]:
    """Some problems of each set with the greedy answer of every row, by the first seed that was evaluated. Problems
    that some rows solve and others do not come first."""
    sets: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    prompts: dict[tuple[str, str], str] = {}
    for row in evidence.rows:
        folder = next((model.evaluation for model in row.models if model.evaluation is not None), None)
        for file in sorted(folder.glob("*.prompts.jsonl")) if folder is not None else ():
            name = file.name.removesuffix(".prompts.jsonl")
            prompts |= {(name, asked["task_id"]): asked["prompt"] for asked in read_jsonl(file)}
            outcomes = read_jsonl(file.with_name(f"{name}.greedy.scores.samples.jsonl"))  # of programs
            scores = {one["task_id"]: {key: one.get(key) for key in ("status", "message")} for one in outcomes}
            for given in read_jsonl(file.with_name(f"{name}.greedy.jsonl")):
                key = given["task_id"]
                answer = {"method": row.title, "answer": given["completion"], "status": "", "message": ""}
                sets[name][key].append(answer | scores.get(key, {}))
    found = []
    for name, problems in sets.items():
        split = {key: len({one["status"] for one in answers}) > 1 for key, answers in problems.items()}
        for key in sorted(problems, key=lambda key: not split[key])[:_PROBLEMS]:
            found.append(Table("answers", f"{name}: {key}", problems[key], prompts.get((name, key), "")))
    return found


def compare(folders: Sequence[str], output: str, axis: str = "steps", names: Sequence[str] = ()) -> Report:
    """The tables of some runs, and the picture, page and numbers in `output`."""
    if names and len(names) != len(folders):
        raise ConfigError(f"--name is given {len(names)} times for {len(folders)} runs; give one for each, or none")
    place = Path(output).expanduser()
    _check_place(place, NUMBERS)
    evidence = read_runs(place, folders, names)
    metrics, figure = validation_metrics(evidence.runs.values()), figures.training_figure(evidence, axis)
    if not metrics or figure is None:
        raise ConfigError(f"these runs have not logged validation metrics over {axis} yet; wait, or use --x steps")
    validation = tables.validation_table(evidence, metrics)
    differences = tables.differences_table(evidence, [f"{VALIDATION} {metric}" for metric in metrics])
    every = [validation, differences, tables.costs_table(evidence), tables.settings_table(evidence)]
    every = [table for table in every if len(table.cells)]
    place.mkdir(parents=True, exist_ok=True)
    numbers: Json = {"runs": {name: run.numbers(metrics) for name, run in evidence.runs.items()}}
    numbers |= {"differences": differences.numbers.to_dict("records"), "notes": evidence.notes}
    write_json(place / NUMBERS, json_ready(numbers))
    pictures = figures.saved(figure)
    (place / PNG).write_bytes(pictures[1])
    page: Json = {"title": "Runs compared", "notes": evidence.notes, "tables": every}
    write_text(place / HTML, _page(page, {f"Over {AXES[axis][1]}": pictures}))
    return Report(every, [], evidence.notes, [place / name for name in COMPARED])
