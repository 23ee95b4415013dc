"""`ebft study report`: everything that a study's folder says, as a page, tables and figures."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.runtime.files import write_text
from ebft.studies.report import curves, pictures, study_tables
from ebft.studies.report.evidence import VALIDATION, Evidence, read_study_folder, reference_run, validated_apart
from ebft.studies.report.generations import generations
from ebft.studies.report.page import Page
from ebft.studies.report.paper_numbers import paper_tables
from ebft.studies.report.settings_table import settings_of, settings_table, shared_settings_table
from ebft.studies.report.tables import Table, as_csv, as_latex, as_markdown, markdown_text
from ebft.studies.report.verdicts import Verdict, verdicts
from ebft.studies.runs import AXES, Run, what_differs

PAGE, TEXT, TABLES, FIGURES = "report.html", "report.md", "tables", "figures"


@dataclass
class Report:
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def write(study: str, output: str | None = None, paper: bool = False) -> Report:
    folder = Path(study).expanduser()
    if (folder / PAGE).is_file() and not (folder / "runs").exists():
        raise ConfigError(f"{folder} has no runs to make a report of; the one that was made is {folder / PAGE}")
    evidence = read_study_folder(folder)
    place = _claim(folder / "report" if output is None else Path(output).expanduser())
    metrics = study_tables.main_metrics(evidence)
    ranked = study_tables.rankings(evidence, metrics)
    rows = curve_rows(evidence)
    notes = [*evidence.notes, *_measured_differently(evidence)]
    settings = settings_of({r.title: m.run for r in evidence.rows for m in r.models[:1]})
    tables: list[Table | None] = [
        study_tables.main_table(evidence, metrics, ranked) if metrics else None,
        *(paper_tables(evidence.manifest.get("paper")) if paper else ()),
        study_tables.differences_table(evidence, metrics),
        study_tables.all_metrics_table(evidence, metrics),
        *study_tables.profile_tables(evidence),
        study_tables.searches_table(evidence, folder),
        settings_table(*settings),
        shared_settings_table(*settings),
        study_tables.costs_table(evidence),
    ]
    shown, left_out = generations(evidence)
    keys = curves.training_metrics([run for _, runs, _ in rows for run in runs])
    by_key = {key: curves.training_curves(rows, key) for key in keys}
    page = Page(
        title=evidence.name,
        about=_about(evidence),
        names=[row.title for row in evidence.rows],
        verdicts=verdicts(ranked, study_tables.rankings_of_kinds(evidence, metrics)),
        notes=notes,
        tables=[table for table in tables if table is not None],
        curves=[(curves.metric_title(k), found) for k, found in by_key.items() if k.startswith("eval_")],
        training=[(curves.metric_title(k), found) for k, found in by_key.items() if not k.startswith("eval_")],
        profile=curves.profile_curves(evidence),
        pareto=_pareto(evidence),
        heat_maps=curves.heat_maps(evidence, metrics),
        generations=shown,
        generation_notes=left_out,
        made_with=_made_with(evidence.manifest),
    )
    files = _write(place, page, evidence)
    return Report(list(page.verdicts), list(notes), files)


def _claim(place: Path) -> Path:
    if place.exists() and not place.is_dir():
        raise ConfigError(f"--output {place} is a file; give a folder")
    if place.is_dir() and any(place.iterdir()) and not (place / PAGE).exists():
        raise ConfigError(f"--output {place} is not empty and holds no report; choose another folder")
    return place


def curve_rows(evidence: Evidence) -> list[tuple[str, Sequence[Run], list[str]]]:
    """Rows with the runs of their seeds, and in what they were validated differently from the first row of the largest
    group that was validated alike."""
    found = [(row.title, [m.run for m in row.models if m.run is not None]) for row in evidence.rows]
    found = [(title, runs) for title, runs in found if runs]
    reference = reference_run([runs[0] for _, runs in found])
    return [(title, runs, validated_apart(runs[0], reference)) for title, runs in found]


def _measured_differently(evidence: Evidence) -> list[str]:
    runs = {row.title: m.run for row in evidence.rows for m in row.models[:1] if m.run is not None}
    reference = reference_run(list(runs.values()))
    name = next((title for title, run in runs.items() if run is reference), "")
    alike: dict[tuple[str, ...], list[str]] = {}  # by what is said of them, with a name to put in: one note for all
    for title, run in runs.items():
        if reference is not None and run is not reference and run.validation and reference.validation:
            said = tuple(what_differs("{}", run.validation, name, reference.validation))
            alike.setdefault(said, []).append(title)
    return [
        f"Validation, in the curves: {note.replace('{}', ', '.join(titles), 1)}"
        for said, titles in alike.items()
        for note in said
    ]


def _about(evidence: Evidence) -> str:
    runs = [model for row in evidence.rows for model in row.models if row.kind != "base"]
    done = sum(model.run is not None and model.run.finished for model in runs)
    started = str(evidence.manifest.get("started", ""))[:10]
    about = (
        f"{len(evidence.rows)} rows, {done} of {len(runs)} final runs finished; begun {started}. Made by ebft study."
    )
    measured = (model.results.get("calibration") for row in evidence.rows for model in row.models)
    if (test := next(filter(None, measured), None)) is not None and "tokens" in test:
        about += (
            f" Test data: {test['sequences']:,} sequences with {test['tokens']:,} tokens, and {test['contexts']:,} "
            "contexts for completions. Cross-entropy is in nats per token."
        )
    return about


def _pareto(evidence: Evidence) -> dict[str, Any] | None:
    for where in ("calibration", VALIDATION):
        points = curves.pareto_points(evidence, f"{where} cross_entropy", f"{where} cfm")
        if len(points) > 1:
            break
    else:
        return None
    series = []
    for row, x, y in points:
        low, high = (x.interval.low, x.interval.high) if x.interval else (x.value, x.value)
        y_low, y_high = (y.interval.low, y.interval.high) if y.interval else (y.value, y.value)
        series.append(
            {
                "name": row.title,
                "x": {"value": x.value},
                "xlow": low,
                "xhigh": high,
                "y": [y.value],
                "low": [y_low],
                "high": [y_high],
            }
        )
    return {"title": "feature-matching loss", "label": "cross-entropy, all tokens", "series": series, "rows": points}


def _made_with(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    code, machine = manifest.get("code", {}), manifest.get("machine", {})
    found = [("command", " ".join(manifest.get("command", [])))]
    found += [(name, str(value)) for name, value in code.items()]
    return found + [
        (name, str(value)) for name, value in machine.items() if value != "not installed" and name != "ebft"
    ]


def _write(place: Path, page: Page, evidence: Evidence) -> list[Path]:
    for folder in (place / TABLES, place / FIGURES):
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier report
        folder.mkdir(parents=True)
    for table in page.tables:
        write_text(place / TABLES / f"{table.name}.csv", as_csv(table))
        write_text(place / TABLES / f"{table.name}.tex", as_latex(table))
    for name, figure in _figures(page):
        for kind, picture in pictures.both(figure).items():
            (place / FIGURES / f"{name}.{kind}").write_bytes(picture)
    if page.pareto is not None:
        page.pareto = {name: value for name, value in page.pareto.items() if name != "rows"}
    write_text(place / TEXT, _markdown(page, place))
    write_text(place / PAGE, page.html())
    return [place / PAGE, place / TEXT, place / TABLES, place / FIGURES]


def _figures(page: Page) -> list[tuple[str, Any]]:
    found = []
    for axis in AXES:
        if page.curves and any(axis in curve.x for _, of_metric in page.curves for curve in of_metric):
            found.append((f"curves-{axis}", pictures.curves_figure(page.curves, axis, page.names)))
    if page.profile:
        found.append(("profile", pictures.profile_figure(page.profile, page.names)))
    if page.pareto is not None:
        labels = ("cross-entropy, all tokens", "feature-matching loss")
        found.append(("pareto", pictures.pareto_figure(page.pareto["rows"], labels, page.names)))
    for number, heat in enumerate(page.heat_maps, 1):
        found.append((f"heat-map-{number}", pictures.heat_figure(heat)))
    return found


def _markdown(page: Page, place: Path) -> str:
    lines = [f"# {markdown_text(page.title)}", "", markdown_text(page.about), ""]
    lines += [f"> {markdown_text(note)}\n" for note in page.notes]
    lines += [f"- **{markdown_text(v.question)}** {markdown_text(v.answer)}" for v in page.verdicts]
    lines += ["", *(as_markdown(table) for table in page.tables)]
    lines += [f"![{file.stem}]({FIGURES}/{file.name})\n" for file in sorted((place / FIGURES).glob("*.png"))]
    lines += ["## How this was made", "", *(f"- {name}: `{value}`" for name, value in page.made_with), ""]
    return "\n".join(lines)
