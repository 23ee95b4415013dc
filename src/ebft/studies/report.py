"""`ebft study report`: everything that a study's folder says, as a page, tables and figures."""

from __future__ import annotations

import base64
import itertools
import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.runtime.files import read_jsonl, write_text
from ebft.studies import figures, tables
from ebft.studies.evidence import VALIDATION, Evidence, Model, read_study_folder, reference_run, validated_apart
from ebft.studies.runs import AXES, facts
from ebft.studies.tables import SIGNIFICANT, Ranking, digits_for, markdown_text, p_text, shown, summary_of

PAGE, TEXT, TABLES, FIGURES = "report.html", "report.md", "tables", "figures"
_PROBLEMS = 5  # of each set, whose answers are shown side by side
_LONGEST = 4000  # characters of a text: the page must stay a page

Pictures = dict[str, list[tuple[str, str]]]  # by heading: descriptions and where they are


@dataclass(frozen=True)
class Verdict:
    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question} {self.answer}"


@dataclass
class Report:
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def write(study: str, output: str | None = None, paper: bool = False) -> Report:
    folder = Path(study).expanduser()
    evidence = read_study_folder(folder)
    place = folder / "report" if output is None else Path(output).expanduser()
    if place.exists() and (not place.is_dir() or (any(place.iterdir()) and not (place / PAGE).exists())):
        raise ConfigError(f"--output {place} is there and holds no report; choose another folder")
    metrics = tables.main_metrics(evidence)
    ranked = tables.rankings(evidence, metrics)
    every = [
        tables.main_table(evidence, metrics, ranked) if metrics else None,
        *(tables.paper_tables(evidence.manifest.get("paper")) if paper else ()),
        tables.differences_table(evidence, metrics),
        tables.other_metrics_table(evidence, metrics),
        *tables.profile_tables(evidence),
        tables.searches_table(evidence),
        *tables.settings_tables({r.title: m.run for r in evidence.rows for m in r.models[:1] if m.run is not None}),
        tables.costs_table(evidence),
    ]
    shown_tables = [table for table in every if table is not None]
    for part in (place / TABLES, place / FIGURES):
        shutil.rmtree(part, ignore_errors=True)  # of an earlier report
        part.mkdir(parents=True)
    for table in shown_tables:
        write_text(place / TABLES / f"{table.name}.csv", tables.as_csv(table))
        write_text(place / TABLES / f"{table.name}.tex", tables.as_latex(table))
    of_kinds = tables.rankings_of_kinds(evidence, metrics)
    found = verdicts(ranked, of_kinds)
    about, made_with = _about(evidence), _made_with(evidence.manifest)
    pictures = _draw(evidence, metrics, place / FIGURES)
    page = {"title": evidence.name, "about": about, "notes": evidence.notes, "verdicts": found, "tables": shown_tables}
    write_text(
        place / PAGE, render({**page, "figures": pictures, "answers": answers(evidence), "made_with": made_with})
    )
    lines = [f"# {markdown_text(evidence.name)}", "", markdown_text(about), ""]
    lines += [f"> {markdown_text(note)}\n" for note in evidence.notes]
    lines += [f"- **{markdown_text(v.question)}** {markdown_text(v.answer)}" for v in found]
    lines += ["", *map(tables.as_markdown, shown_tables)]
    lines += [f"![{file.stem}]({FIGURES}/{file.name})\n" for file in sorted((place / FIGURES).glob("*.png"))]
    lines += ["## How this was made", "", *(f"- {name}: `{value}`" for name, value in made_with), ""]
    write_text(place / TEXT, "\n".join(lines))
    return Report(found, evidence.notes, [place / PAGE, place / TEXT, place / TABLES, place / FIGURES])


def render(page: Mapping[str, Any]) -> str:
    """One HTML file that loads nothing. Whatever is put into it is escaped."""
    from jinja2 import Environment

    template = files("ebft.studies").joinpath("report.html.j2").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(template).render(page)


def as_data(picture: bytes) -> str:
    """An SVG as an address, for a page that is one file; as an image it can run nothing."""
    return f"data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"


def colors_of(names: Iterable[str]) -> dict[str, str]:
    return dict(zip(names, itertools.cycle(figures.COLORS), strict=False))


def _draw(evidence: Evidence, metrics: Sequence[str], folder: Path) -> Pictures:
    colors = colors_of(row.title for row in evidence.rows)
    rows = [(row.title, [m.run for m in row.models if m.run is not None]) for row in evidence.rows]
    reference = reference_run([runs[0] for _, runs in rows if runs])
    trained = [(title, runs, validated_apart(runs[0], reference)) for title, runs in rows if runs]
    drawn: dict[str, list[tuple[str, Any]]] = {}
    for axis in ("steps", "flops"):
        panels = figures.metric_curves(trained, axis)
        drawn[f"Training, over {AXES[axis][1]}"] = [(p[0], figures.curves_figure([p], axis, colors)) for p in panels]
    if profile := figures.profile_curves(evidence):
        drawn["Profile"] = [("feature-matching loss over completion length", figures.profile_figure(profile, colors))]
    if (pareto := figures.pareto_figure(evidence, colors)) is not None:
        drawn["Pareto"] = [("cross-entropy against feature-matching loss", pareto)]
    drawn["Maps"] = [(f"map {n}", figure) for n, figure in enumerate(figures.heat_figures(evidence, metrics), 1)]
    pictures: Pictures = defaultdict(list)
    for heading, group in drawn.items():
        for number, (name, figure) in enumerate(group, 1):
            file = heading.lower().replace(", over ", "-") + f"-{number}" * (len(group) > 1)
            svg, png = figures.saved(figure, "svg", "png")
            (folder / f"{file}.svg").write_bytes(svg)
            (folder / f"{file}.png").write_bytes(png)
            pictures[heading].append((name, as_data(svg)))
    return dict(pictures)


def _about(evidence: Evidence) -> str:
    runs = [model for row in evidence.rows if row.kind != "base" for model in row.models]
    done = sum(model.run is not None and model.run.finished for model in runs)
    started = str(evidence.manifest.get("started", ""))[:10]
    about = f"{len(evidence.rows)} rows, {done} of {len(runs)} final runs finished; begun {started}. "
    measured = (model.results.get("calibration") for model in evidence.models)
    test: dict[str, Any] = next(filter(None, measured), {})
    if "tokens" not in test:
        return f"{about}Made by ebft study."
    counts = f"{test['sequences']:,} sequences with {test['tokens']:,} tokens, and {test['contexts']:,} contexts"
    return f"{about}Test data: {counts} for completions. Cross-entropy is in nats per token. Made by ebft study."


def _made_with(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    found = {
        "command": " ".join(manifest.get("command", [])),
        **manifest.get("code", {}),
        **manifest.get("machine", {}),
    }
    return [(name, str(value)) for name, value in found.items() if value != "not installed"]


# ---- verdicts ------------------------------------------------------------------------------------------------------


def verdicts(ranked: Sequence[Ranking], of_kinds: Sequence[Ranking] = ()) -> list[Verdict]:
    """A plain sentence for each question, made from the tests and never stronger than they allow."""
    found = []
    for group in (ranked, of_kinds):
        tests = sum(not math.isnan(one.p) for one in group)
        for one in group:
            question = _question(one.metric)
            if group is of_kinds:
                asked = question.removesuffix("?").removeprefix("Which ")
                question = f"Of {one.best.kind} and {one.second.kind}, each with its best row: which {asked}?"
            found.append(Verdict(question, _answer(one, tests) + _head_starts(one)))
    return found


def _head_starts(one: Ranking) -> str:
    """What was trained before counts for a row that started from there, and not for the other."""
    warm = [row for row in (one.best, one.second) if row.after is not None and one.best.after != one.second.after]
    more = "so it had more training."
    return "".join(f" {row.title} started from the final models of {row.after}, {more}" for row in warm)


def _question(metric: str) -> str:
    about = facts(metric)
    where = "on validation data" if metric.startswith(f"{VALIDATION} ") else "on the test data"
    if about.is_rate:
        return f"Which solves the most problems, by {about.title}?"
    return f"Which has the {'lowest' if about.smaller_is_better else 'highest'} {about.title} {where}?"


def _answer(one: Ranking, tests: int) -> str:
    best, second = (
        found.value if found else math.nan
        for found in (summary_of(one.best, one.metric), summary_of(one.second, one.metric))
    )
    values = f"{one.best.title} has {shown(best)}, {one.second.title} {shown(second)}"
    if one.test is None or math.isnan(one.p):
        return f"{values}. This cannot be tested here, so it is no ranking."
    if one.test.value == 0:
        return f"{values}: the same."
    interval = one.test.interval
    digits = digits_for(interval)
    gap = f"difference {shown(one.test.value, digits, sign=True)}"
    if interval is not None:
        gap += f", 95 % interval {shown(interval.low, digits, True)} to {shown(interval.high, digits, True)}"
    p = p_text(one.test.p)
    gap += f", p {p if p.startswith('<') else f'= {p}'}"
    if tests > 1:  # the interval is of this test alone, and may leave out 0 where the corrected p is not small
        gap += f" alone, {p_text(one.p)} after correction for {tests} tests"
    if not one.p < SIGNIFICANT:
        more = "more seeds or more test data" if one.test.seeds > 1 else "more seeds and more test data"
        return f"Not decided: {values} ({gap}). It would take {more}."
    won = f"{one.best.title}, with {shown(best)}; {one.second.title} has {shown(second)} ({gap})."
    if one.test.seeds > 1:
        return won
    return f"Of these very models {won} With one training run each, this says nothing about training again."


# ---- answers -------------------------------------------------------------------------------------------------------


def answers(evidence: Evidence) -> list[dict[str, Any]]:
    """Some problems of each set with an answer by row: the greedy one, or the first sample where there is none, of the
    first seed that was evaluated. Problems that some rows solve and others do not come first."""
    sets: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in evidence.rows:
        model = next((model for model in row.models if model.evaluation is not None), None)
        for file in sorted(model.evaluation.glob("*.prompts.jsonl")) if model and model.evaluation else ():
            name = file.name.removesuffix(".prompts.jsonl")
            prompts = {str(asked["task_id"]): asked["prompt"] for asked in _read(model, file.name)}
            for key, answer in _answers(model, name).items():
                problem = {"title": f"{name}: {key}", "prompt": _cut(prompts.get(key, "")), "answers": {}}
                sets[name].setdefault(key, problem)["answers"][row.title] = answer
    found = []
    for problems in sets.values():
        split = lambda one: len({answer["status"] for answer in one["answers"].values()}) > 1  # noqa: E731
        found += sorted(problems.values(), key=split, reverse=True)[:_PROBLEMS]
    return found


def _answers(model: Model | None, name: str) -> dict[str, dict[str, str]]:
    decoding = "greedy" if _read(model, f"{name}.greedy.jsonl") else "samples"
    said: dict[str, dict[str, str]] = {}
    for ending in ("scores.samples", "scores"):  # of programs, of translations
        for score in _read(model, f"{name}.{decoding}.{ending}.jsonl"):
            if score["sample"] == 0:
                numbers = ", ".join(f"{n.replace('_', ' ')} {v:.1f}" for n, v in score.items() if isinstance(v, float))
                words = {"status": score.get("status", ""), "message": _cut(score.get("message") or numbers)}
                said.setdefault(str(score["task_id"]), words)
    rows = [row for row in _read(model, f"{name}.{decoding}.jsonl") if row["sample"] == 0]
    nothing = {"status": "", "message": ""}
    return {(key := str(row["task_id"])): {"text": _cut(row["completion"]), **said.get(key, nothing)} for row in rows}


def _read(model: Model | None, name: str) -> list[dict[str, Any]]:
    try:
        return read_jsonl(model.evaluation / name) if model and model.evaluation else []
    except ValueError:  # broken; what the tables say of it is said there
        return []


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n... ({len(text) - _LONGEST:,} more characters)"
