"""`ebft study report`: everything that a study's folder says, as a page, tables and figures."""

from __future__ import annotations

import base64
import math
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ebft.errors import ConfigError
from ebft.runtime.files import Json, read_jsonl, write_text
from ebft.studies import figures, tables
from ebft.studies.evidence import VALIDATION, Evidence, read_study_folder
from ebft.studies.runs import facts
from ebft.studies.tables import Table, Test, markdown_text, shown, summary_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, TEXT, TABLES, FIGURES = "report.html", "report.md", "tables", "figures"
_PROBLEMS = 5  # of each set, whose answers are shown side by side
_LONGEST = 4000  # characters of a text: the page must stay a page


class Report(NamedTuple):
    tables: list[Table]
    verdicts: list[str]
    notes: list[str]
    files: list[Path]


def write(study: str, output: str | None = None, paper: bool = False) -> Report:
    folder = Path(study).expanduser()
    evidence = read_study_folder(folder)
    place = folder / "report" if output is None else Path(output).expanduser()
    check_place(place, PAGE)
    metrics = tables.main_metrics(evidence)
    others = [metric for metric in evidence.metrics if metric not in metrics and "cfm_at_" not in metric]
    ranked = tables.rankings(evidence, metrics)
    trained = [(row, model) for row in evidence.rows if row.kind != "base" for model in row.models]
    every = [
        tables.main_table(evidence, metrics, ranked),
        *(tables.paper_tables(evidence.manifest.get("paper")) if paper else ()),
        tables.differences_table(evidence, metrics),
        tables.metrics_table(evidence, others, "other-metrics", "Other metrics", "not tested."),
        tables.profile_table(evidence),
        tables.settings_table({row.title: m.run for row in evidence.rows for m in row.models[:1] if m.run is not None}),
        tables.costs_table([({"method": row.title, "seed": m.seed, "state": m.state}, m.run) for row, m in trained]),
    ]
    every = [table for table in every if len(table.cells)]
    for part in (place / TABLES, place / FIGURES):
        shutil.rmtree(part, ignore_errors=True)  # of an earlier report
        part.mkdir(parents=True)
    for table in every:
        write_text(place / TABLES / f"{table.name}.csv", table.as_csv())
        write_text(place / TABLES / f"{table.name}.tex", table.as_latex())
    drawn = figures.draw(evidence, metrics)
    for name, figure in drawn.items():
        for kind in ("svg", "png"):
            (place / FIGURES / f"{name}.{kind}").write_bytes(figures.saved(figure, kind))
    verdicts = _verdicts(ranked) + _verdicts(tables.rankings(evidence, metrics, of_kinds=True), of_kinds=True)
    title, manifest = str(evidence.manifest["study"]), evidence.manifest
    done = sum(model.run is not None and model.run.finished for _, model in trained)
    about = (
        f"{len(evidence.rows)} rows, {done} of {len(trained)} final runs finished. Cross-entropy is in nats per token."
    )
    page: Json = {"title": title, "about": about, "notes": evidence.notes, "verdicts": verdicts, "tables": every}
    made_with = {name: str(manifest.get(name, "")) for name in ("started", "command", "code", "machine")}
    write_text(place / PAGE, render({**page, "answers": _answers(evidence), "made_with": made_with}, drawn))
    lines = [f"# {markdown_text(title)}", "", about, "", *(f"> {markdown_text(note)}\n" for note in evidence.notes)]
    lines += [*(f"- {markdown_text(verdict)}" for verdict in verdicts), "", *(table.as_markdown() for table in every)]
    lines += [*(f"![{name}]({FIGURES}/{name}.png)\n" for name in drawn), "## How this was made", ""]
    write_text(place / TEXT, "\n".join([*lines, *(f"- {n}: {markdown_text(v)}" for n, v in made_with.items()), ""]))
    return Report(every, verdicts, evidence.notes, [place / PAGE, place / TEXT, place / TABLES, place / FIGURES])


def check_place(place: Path, file: str) -> None:
    """What is not ours is not overwritten."""
    if place.exists() and any(place.iterdir()) and not (place / file).exists():
        raise ConfigError(f"--output {place} is not empty and holds no {file}; choose another folder")


def render(page: Json, drawn: Mapping[str, Figure]) -> str:
    """One HTML file that loads nothing. Whatever is put into it is escaped; an SVG can run nothing as an image."""
    from jinja2 import Environment

    template = files("ebft.studies").joinpath("report.html.j2").read_text(encoding="utf-8")
    pictures = {name: base64.b64encode(figures.saved(figure, "svg")).decode() for name, figure in drawn.items()}
    return Environment(autoescape=True).from_string(template).render(page, figures=pictures)


def _verdicts(ranked: Sequence[Test], of_kinds: bool = False) -> list[str]:
    """A plain sentence for each metric, made from the tests and never stronger than they allow.

    of_kinds: these are the best rows of two methods."""
    found, tests = [], sum(not math.isnan(one.p) for one in ranked)
    for one in ranked:
        where = "on validation data" if one.metric.startswith(f"{VALIDATION} ") else "on the test data"
        asked = f"{facts(one.metric).title}, {where}{', best row of each method' * of_kinds}"
        means = [(row, summary_of(row, one.metric)) for row in (one.mine, one.other)]
        best, second = (f"{row.title} ({math.nan if mean is None else mean.value:.4f})" for row, mean in means)
        if one.found is None or one.reading == "not tested":
            said = f"{best}, {second}; this cannot be tested here, so it is no ranking"
        else:
            # The interval is of this test alone, and may leave out 0 where the corrected p is not small.
            p = f"p {shown(one.found.p)} alone, {shown(one.p)} after correction for {tests} tests"
            decided = f"not decided between {best} and {second}"
            if one.reading == "better":
                decided = f"{best} is better than {second}"
            said = f"{decided}; difference {shown(one.found)}, {p}"
            if one.found.seeds < 2:
                said += "; with one training run each, this says nothing about training again"
        # What was trained before counts for a row that started from there, and not for the other.
        warm = [row for row in (one.mine, one.other) if row.after is not None and one.mine.after != one.other.after]
        starts = [f" {r.title} started from the final models of {r.after}, so it had more training." for r in warm]
        found.append(f"{asked}: {said}.{''.join(starts)}")
    return found


def _answers(evidence: Evidence) -> list[Table]:
    """Some problems of each set with an answer by row: the greedy one, or the first sample where there is none, of the
    first seed that was evaluated. Problems that some rows solve and others do not come first."""
    sets: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    prompts: dict[tuple[str, str], str] = {}
    for row in evidence.rows:
        folder = next((model.evaluation for model in row.models if model.evaluation is not None), None)
        for file in sorted(folder.glob("*.prompts.jsonl")) if folder is not None else ():
            name = file.name.removesuffix(".prompts.jsonl")
            prompts |= {(name, asked["task_id"]): asked["prompt"] for asked in read_jsonl(file)}
            stem = f"{name}.greedy" if file.with_name(f"{name}.greedy.jsonl").exists() else f"{name}.samples"
            kinds = ("scores.jsonl", "scores.samples.jsonl")  # of translations, and of programs
            scored = [one for kind in kinds for one in read_jsonl(file.with_name(f"{stem}.{kind}"))]
            scores = {one["task_id"]: one for one in scored if one["sample"] == 0}
            for given in (one for one in read_jsonl(file.with_name(f"{stem}.jsonl")) if one["sample"] == 0):
                score = scores.get(given["task_id"], {})
                numbers = ", ".join(f"{n.replace('_', ' ')} {v:.1f}" for n, v in score.items() if isinstance(v, float))
                told = {"status": score.get("status", ""), "message": _cut(score.get("message") or numbers)}
                answer = {"method": row.title, "answer": _cut(given["completion"]), **told}
                sets[name][given["task_id"]].append(answer)
    found = []
    for name, problems in sets.items():
        split = {key: len({one["status"] for one in answers}) > 1 for key, answers in problems.items()}
        for key in sorted(problems, key=lambda key: not split[key])[:_PROBLEMS]:
            found.append(Table("answers", f"{name}: {key}", problems[key], _cut(prompts.get((name, key), ""))))
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n... ({len(text) - _LONGEST:,} more characters)"
