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
from ebft.runtime.files import read_jsonl, write_text
from ebft.studies import figures, tables
from ebft.studies.evidence import VALIDATION, Evidence, read_study_folder
from ebft.studies.runs import AXES, Json, facts
from ebft.studies.tables import SIGNIFICANT, Ranking, digits_for, markdown_text, p_text, shown, summary_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, TEXT, TABLES, FIGURES = "report.html", "report.md", "tables", "figures"
_PROBLEMS = 5  # of each set, whose answers are shown side by side
_LONGEST = 4000  # characters of a text: the page must stay a page


class Verdict(NamedTuple):
    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question} {self.answer}"


class Report(NamedTuple):
    verdicts: list[Verdict]
    notes: list[str]
    files: list[Path]


def write(study: str, output: str | None = None, paper: bool = False) -> Report:
    folder = Path(study).expanduser()
    evidence = read_study_folder(folder)
    place = folder / "report" if output is None else Path(output).expanduser()
    if place.exists() and any(place.iterdir()) and not (place / PAGE).exists():
        raise ConfigError(f"--output {place} is there and holds no report; choose another folder")
    metrics = tables.main_metrics(evidence)
    ranked = tables.rankings(evidence, metrics)
    trained = [(row, model) for row in evidence.rows if row.kind != "base" for model in row.models]
    costs = [([r.title, str("" if m.seed is None else m.seed)], m.problem or "finished", m.run) for r, m in trained]
    every = [
        tables.main_table(evidence, metrics, ranked) if metrics else None,
        *(tables.paper_tables(evidence.manifest.get("paper")) if paper else ()),
        tables.differences_table(evidence, metrics),
        tables.other_metrics_table(evidence, metrics),
        *tables.profile_tables(evidence),
        tables.searches_table(evidence),
        *tables.settings_tables({r.title: m.run for r in evidence.rows for m in r.models[:1] if m.run is not None}),
        tables.costs_table(costs, ("method", "seed")),
    ]
    known = [table for table in every if table is not None]
    for part in (place / TABLES, place / FIGURES):
        shutil.rmtree(part, ignore_errors=True)  # of an earlier report
        part.mkdir(parents=True)
    for table in known:
        write_text(place / TABLES / f"{table.name}.csv", tables.as_csv(table))
        write_text(place / TABLES / f"{table.name}.tex", tables.as_latex(table))
    drawn = _draw(evidence, metrics)
    for name, figure in drawn.items():
        for kind in ("svg", "png"):
            (place / FIGURES / f"{name}.{kind}").write_bytes(figures.saved(figure, kind))
    found = verdicts(ranked) + verdicts(tables.rankings_of_kinds(evidence, metrics), of_kinds=True)
    about, made_with = _about(evidence), _made_with(evidence.manifest)
    page: Json = {"title": evidence.name, "about": about, "notes": evidence.notes, "verdicts": found, "tables": known}
    write_text(place / PAGE, render({**page, "answers": answers(evidence), "made_with": made_with}, drawn))
    lines = [f"# {markdown_text(evidence.name)}", "", markdown_text(about), ""]
    lines += [f"> {markdown_text(note)}\n" for note in evidence.notes]
    lines += [f"- **{markdown_text(v.question)}** {markdown_text(v.answer)}" for v in found]
    lines += ["", *map(tables.as_markdown, known), *(f"![{name}]({FIGURES}/{name}.png)\n" for name in drawn)]
    lines += ["## How this was made", "", *(f"- {name}: `{value}`" for name, value in made_with.items()), ""]
    write_text(place / TEXT, "\n".join(lines))
    return Report(found, evidence.notes, [place / PAGE, place / TEXT, place / TABLES, place / FIGURES])


def render(page: Json, drawn: Mapping[str, Figure]) -> str:
    """One HTML file that loads nothing. Whatever is put into it is escaped; an SVG can run nothing as an image."""
    from jinja2 import Environment

    template = files("ebft.studies").joinpath("report.html.j2").read_text(encoding="utf-8")
    pictures = {name: base64.b64encode(figures.saved(figure, "svg")).decode() for name, figure in drawn.items()}
    return Environment(autoescape=True).from_string(template).render(page, figures=pictures)


def _draw(evidence: Evidence, metrics: Sequence[str]) -> dict[str, Figure]:
    """By name of its files."""
    colors = figures.colors_of(row.title for row in evidence.rows)
    runs = [(row.title, [model.run for model in row.models if model.run is not None]) for row in evidence.rows]
    drawn: dict[str, Figure | None] = {}
    for axis in AXES:
        curves = figures.training_curves([row for row in runs if row[1]], evidence.reference, axis)
        drawn[f"training-{axis}"] = figures.curves_figure(curves, axis, colors) if curves else None
    drawn |= {"profile": figures.profile_figure(evidence, colors), "pareto": figures.pareto_figure(evidence, colors)}
    drawn |= {f"map-{n}": figure for n, figure in enumerate(figures.heat_figures(evidence, metrics), 1)}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _about(evidence: Evidence) -> str:
    runs = [model for row in evidence.rows if row.kind != "base" for model in row.models]
    done = sum(model.run is not None and model.run.finished for model in runs)
    started = str(evidence.manifest.get("started", ""))[:10]
    about = f"{len(evidence.rows)} rows, {done} of {len(runs)} final runs finished; begun {started}. "
    test: Json = next(filter(None, (model.results.get("calibration") for model in evidence.models)), {})
    if "tokens" in test:
        counts = f"{test['sequences']:,} sequences with {test['tokens']:,} tokens, and {test['contexts']:,} contexts"
        about += f"Test data: {counts} for completions. Cross-entropy is in nats per token. "
    return f"{about}Made by ebft study."


def _made_with(manifest: Json) -> dict[str, str]:
    code, machine = manifest.get("code", {}), manifest.get("machine", {})
    found = {"command": " ".join(manifest.get("command", [])), **code, **machine}
    return {name: str(value) for name, value in found.items() if value != "not installed"}


# ---- verdicts ------------------------------------------------------------------------------------------------------


def verdicts(ranked: Sequence[Ranking], of_kinds: bool = False) -> list[Verdict]:
    """A plain sentence for each question, made from the tests and never stronger than they allow.

    of_kinds: these are the best rows of two methods."""
    found, tests = [], sum(not math.isnan(one.p) for one in ranked)
    for one in ranked:
        about = facts(one.metric)
        where = "on validation data" if one.metric.startswith(f"{VALIDATION} ") else "on the test data"
        asked = f"has the {'lowest' if about.smaller_is_better else 'highest'} {about.title} {where}?"
        asked = f"solves the most problems, by {about.title}?" if about.is_rate else asked
        both = f"Of {one.best.kind} and {one.second.kind}, each with its best row: which" if of_kinds else "Which"
        # What was trained before counts for a row that started from there, and not for the other.
        warm = [row for row in (one.best, one.second) if row.after is not None and one.best.after != one.second.after]
        starts = [f" {r.title} started from the final models of {r.after}, so it had more training." for r in warm]
        found.append(Verdict(f"{both} {asked}", _answer(one, tests) + "".join(starts)))
    return found


def _answer(one: Ranking, tests: int) -> str:
    best, second = (
        shown(found.value if found else math.nan)
        for found in (summary_of(one.best, one.metric), summary_of(one.second, one.metric))
    )
    values, test = f"{one.best.title} has {best}, {one.second.title} {second}", one.test
    if test is None or math.isnan(one.p):
        return f"{values}. This cannot be tested here, so it is no ranking."
    if test.value == 0:
        return f"{values}: the same."
    digits = digits_for(test.interval)
    gap = f"difference {shown(test.value, digits, sign=True)}"
    if test.interval is not None:
        gap += f", 95 % interval {shown(test.interval.low, digits, True)} to {shown(test.interval.high, digits, True)}"
    p = p_text(test.p)
    gap += f", p {p if p.startswith('<') else f'= {p}'}"
    if tests > 1:  # the interval is of this test alone, and may leave out 0 where the corrected p is not small
        gap += f" alone, {p_text(one.p)} after correction for {tests} tests"
    if not one.p < SIGNIFICANT:
        more = "more seeds or more test data" if test.seeds > 1 else "more seeds and more test data"
        return f"Not decided: {values} ({gap}). It would take {more}."
    won = f"{one.best.title}, with {best}; {one.second.title} has {second} ({gap})."
    if test.seeds > 1:
        return won
    return f"Of these very models {won} With one training run each, this says nothing about training again."


# ---- answers -------------------------------------------------------------------------------------------------------


def answers(evidence: Evidence) -> list[Json]:
    """Some problems of each set with an answer by row: the greedy one, or the first sample where there is none, of the
    first seed that was evaluated. Problems that some rows solve and others do not come first."""
    sets: dict[str, dict[str, Json]] = defaultdict(dict)
    for row in evidence.rows:
        folder = next((model.evaluation for model in row.models if model.evaluation is not None), None)
        for file in sorted(folder.glob("*.prompts.jsonl")) if folder is not None else ():
            name = file.name.removesuffix(".prompts.jsonl")
            prompts = {asked["task_id"]: asked["prompt"] for asked in read_jsonl(file)}
            stem = f"{name}.greedy" if file.with_name(f"{name}.greedy.jsonl").exists() else f"{name}.samples"
            of_programs, of_translations, given = (
                [one for one in read_jsonl(file.with_name(f"{stem}.{ending}")) if one["sample"] == 0]
                for ending in ("scores.samples.jsonl", "scores.jsonl", "jsonl")
            )
            scores = {one["task_id"]: one for one in of_translations + of_programs}
            for key, text in ((one["task_id"], one["completion"]) for one in given):
                score = scores.get(key, {})
                numbers = ", ".join(f"{n.replace('_', ' ')} {v:.1f}" for n, v in score.items() if isinstance(v, float))
                message = _cut(score.get("message") or numbers)
                answer = {"text": _cut(text), "status": score.get("status", ""), "message": message}
                problem = {"title": f"{name}: {key}", "prompt": _cut(prompts.get(key, "")), "answers": {}}
                sets[name].setdefault(key, problem)["answers"][row.title] = answer
    found = []
    for problems in sets.values():
        split = {key: len({one["status"] for one in problems[key]["answers"].values()}) > 1 for key in problems}
        found += [problems[key] for key in sorted(problems, key=lambda key: not split[key])[:_PROBLEMS]]
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n... ({len(text) - _LONGEST:,} more characters)"
