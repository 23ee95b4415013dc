"""One self-contained HTML page from tables, charts and generations: opens from disk, needs no network.

What comes from data is escaped, or stands in a block of JSON that the script reads as text.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

from ebft.studies.report.curves import Curve, HeatMap
from ebft.studies.report.pictures import color
from ebft.studies.report.tables import Table, as_html
from ebft.studies.report.verdicts import Verdict
from ebft.studies.runs import AXES

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass
class Page:
    title: str
    about: str  # a line under the title
    names: Sequence[str]  # of rows, in the order of their colours
    axis: str = "steps"
    verdicts: Sequence[Verdict] = ()
    notes: Sequence[str] = ()
    tables: list[Table] = field(default_factory=list)
    curves: Sequence[tuple[str, Sequence[Curve]]] = ()  # of validation metrics
    training: Sequence[tuple[str, Sequence[Curve]]] = ()  # of what training logs, to choose from
    profile: Sequence[Curve] = ()
    pareto: dict[str, Any] | None = None
    heat_maps: Sequence[HeatMap] = ()
    generations: Sequence[dict[str, Any]] = ()
    generation_notes: Sequence[str] = ()
    made_with: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        self._charts: list[dict[str, Any]] = []
        sections = {
            "verdicts": ("Verdicts", self._verdicts()),
            "tables": ("Results", "".join(_table(table) for table in self.tables)),
            "curves": ("Training curves", self._curves()),
            "profile": ("Feature-matching loss over completion length", self._profile()),
            "pareto": ("Cross-entropy against feature-matching loss", self._pareto()),
            "heat": ("Heat maps", "".join(_heat(found) for found in self.heat_maps)),
            "generations": ("Generations", self._generations()),
            "made": ("How this was made", _pairs(self.made_with)),
        }
        sections = {key: (title, text) for key, (title, text) in sections.items() if text}
        links = "".join(f"<a href=#{key}>{title}</a>" for key, (title, _) in sections.items())
        body = "".join(f"<section id={key}><h2>{title}</h2>{text}</section>" for key, (title, text) in sections.items())
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.notes)
        data = {
            "axis": self.axis,
            "axes": {name: label for name, (_, label) in AXES.items()},
            "colors": {name: color(place) for place, name in enumerate(self.names)},
            "charts": self._charts,
            "generations": list(self.generations),
        }
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_file('page.css')}</style></head><body>"
            f"<nav>{links}</nav><h1>{html.escape(self.title)}</h1><p class=sub>{html.escape(self.about)}</p>{notes}"
            "<noscript><p class=note>The figures of this page are drawn by its script, which is turned off.</p>"
            f"</noscript>{body}"
            f'<script type="application/json" id="data">{_as_json(data)}</script>'
            f"<script>{_file('page.js')}</script></body></html>\n"
        )

    def _chart(self, title: str, curves: Sequence[Curve], **options: Any) -> int:
        series = [asdict(curve) for curve in curves]
        self._charts.append({"title": title, "series": series, **options})
        return len(self._charts) - 1

    def _verdicts(self) -> str:
        items = (f"<li><b>{html.escape(v.question)}</b>{html.escape(v.answer)}</li>" for v in self.verdicts)
        return f"<ul class=verdicts>{''.join(items)}</ul>" if self.verdicts else ""

    def _curves(self) -> str:
        if not self.curves and not self.training:
            return ""
        every = [curve for _, curves in (*self.curves, *self.training) for curve in curves]
        axes = [name for name in AXES if any(name in curve.x for curve in every)]
        buttons = "".join(
            f"<button type=button class=axis data-axis={name} aria-pressed={str(name == self.axis).lower()}>"
            f"{AXES[name][1]}</button>"
            for name in axes
        )
        charts = "".join(_place(self._chart(title, curves)) for title, curves in self.curves)
        chosen = ""
        if self.training:
            first = len(self._charts)
            options = "".join(
                f"<option value={self._chart(title, curves)}>{html.escape(title)}</option>"
                for title, curves in self.training
            )
            chosen = f"<div class=bar><label for=metric>Also:</label><select id=metric>{options}</select></div>"
            chosen += f"<div class=charts>{_place(first, ' id=chosen')}</div>"
        return (
            f"<div class=bar>{buttons}</div>{_LEGEND}<div class=charts>{charts}</div>{chosen}"
            "<p class=caption>Means over seeds; the band spans the seeds, or one standard error either way where there "
            "is only one. On validation data, which learning rates may have been chosen on.</p>"
        )

    def _profile(self) -> str:
        if not self.profile:
            return ""
        options = {"axis": "length", "log": True, "label": "completion length (tokens)", "tall": True}
        place = _place(self._chart("feature-matching loss", self.profile, **options))
        return (
            f"{_LEGEND}<div class=charts>{place}</div><p class=caption>On the test data. It grows with the length also "
            "for a perfect model, since longer completions can differ in more ways, and falls where most texts have "
            "ended (short_truths); what matters is the distance between the curves.</p>"
        )

    def _pareto(self) -> str:
        if self.pareto is None:
            return ""
        self._charts.append({**self.pareto, "points": True, "axis": "value", "tall": True})
        place = _place(len(self._charts) - 1)
        return (
            f"{_LEGEND}<div class=charts>{place}</div><p class=caption>Lower and further left is better. Bars are 95 % "
            "intervals.</p>"
        )

    def _generations(self) -> str:
        if not self.generations:
            return ""
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.generation_notes)
        return (
            "<div class=bar><select id=set aria-label=task></select>"
            '<input type=search id=search placeholder="search prompts, answers and messages" aria-label=search>'
            "<select id=which aria-label=which><option value=all>all problems</option>"
            "<option value=differ>some pass, some fail</option><option value=none>none passes</option></select>"
            f"<span class=sub id=count></span></div>{notes}<div id=problems></div>"
            "<button type=button id=more>show more</button>"
            "<p class=caption>The greedy answer of the first seed, or its first sample.</p>"
        )


_LONG = 14  # rows of a table that is folded
_LEGEND = "<div class='bar legend' aria-label='show or hide'></div>"


def _place(number: int, more: str = "") -> str:
    return f"<div class=chart data-chart={number}{more}><h3></h3></div>"


def _table(table: Table) -> str:
    title = html.escape(table.title)
    if len(table.rows) <= _LONG:
        return f"<h3 id=table-{table.name}>{title}</h3>{as_html(table)}"
    folded = f"<summary>{title}: {len(table.rows)} rows</summary>{as_html(table)}"
    return f"<details id=table-{table.name}>{folded}</details>"


def _heat(found: HeatMap) -> str:
    known = [value for line in found.values for value in line if value is not None]
    low, width = min(known), (max(known) - min(known)) or 1.0
    head = "".join(f"<th class=number>{html.escape(str(value))}</th>" for value in found.x)
    rows = ""
    for value, line in zip(found.y, found.values, strict=True):
        cells = ""
        for number in line:
            if number is None:
                cells += "<td class=number>missing</td>"
                continue
            share = (number - low) / width
            shade = 1 - share if found.smaller_is_better else share
            cells += f"<td class=cell style='--shade:{shade:.3f}'>{number:.4f}</td>"
        rows += f"<tr><th>{html.escape(str(value))}</th>{cells}</tr>"
    names = f"{html.escape(found.y_name)} \\ {html.escape(found.x_name)}"
    table = f"<table><thead><tr><th>{names}</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div class=heat><h3>{html.escape(found.title)}</h3><div class=scroll>{table}</div></div>"


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in pairs)
    return f"<div class=scroll><table>{rows}</table></div>" if rows else ""


def _file(name: str) -> str:
    return files("ebft.studies.report").joinpath(name).read_text(encoding="utf-8")


def _as_json(value: Any) -> str:
    """JSON that cannot end the block it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
