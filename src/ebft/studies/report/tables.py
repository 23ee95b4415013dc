"""A table, and how it looks as HTML, Markdown, LaTeX and CSV. Whatever comes from data is escaped in each of them."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebft.studies.statistics import Summary


@dataclass(frozen=True)
class Column:
    title: str
    meaning: str = ""  # one hover or tap away
    text: bool = False  # words, not numbers


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False
    interval: str = ""  # behind the text, or under it
    value: float | None = None  # what the CSV holds instead of the text
    low: float | None = None
    high: float | None = None
    meaning: str = ""


@dataclass
class Table:
    name: str  # of its files
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    caption: str = ""
    notes: list[str] = field(default_factory=list)


def cell(text: str, bold: bool = False, meaning: str = "") -> Cell:
    return Cell(text, bold, meaning=meaning)


def number_cell(found: Summary, bold: bool = False, sign: bool = False) -> Cell:
    """A value with its interval."""
    interval = found.interval
    counts = {"sequences or problems": found.items, "training runs": found.seeds}
    meaning = "Over " + " and ".join(f"{count} {what}" for what, count in counts.items() if count) + "."
    if interval is None:
        return Cell(shown(found.value, sign=sign), bold, value=found.value, meaning=meaning)
    if found.items and found.value == 0 and interval.low == interval.high:
        return Cell("0", bold, "equal on every item", found.value, interval.low, interval.high, meaning)
    digits = digits_for(interval.high - interval.low)
    value, low, high = (shown(number, digits, sign) for number in (found.value, interval.low, interval.high))
    return Cell(value, bold, f"[{low}, {high}]", found.value, interval.low, interval.high, meaning)


def digits_for(width: float) -> int:
    """Decimals that show an interval of this width with at least one digit, and no more than it needs."""
    if not math.isfinite(width) or width <= 0:
        return 4
    return min(8, max(2, 2 - math.floor(math.log10(width))))


def shown(value: float, digits: int = 4, sign: bool = False) -> str:
    return "not a number" if math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


# ---- HTML ----------------------------------------------------------------------------------------------------------


def as_html(table: Table) -> str:
    head = "".join(f"<th{_kind(column)}>{_explained(column.title, column.meaning)}</th>" for column in table.columns)
    body = "".join(
        f"<tr>{''.join(_html_cell(c, column) for c, column in _pairs(table, row))}</tr>" for row in table.rows
    )
    caption = f"<p class=caption>{html.escape(table.caption)}</p>" if table.caption else ""
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in table.notes)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{caption}{notes}"


def _pairs(table: Table, row: Sequence[Cell]) -> list[tuple[Cell, Column]]:
    return list(zip(row, table.columns, strict=True))


def _kind(column: Column) -> str:
    return "" if column.text else " class=number"


def _html_cell(given: Cell, column: Column) -> str:
    text = html.escape(given.text)
    if given.bold:
        text = f"<strong>{text}</strong>"
    if given.interval:
        text += f" <span class=interval>{html.escape(given.interval)}</span>"
    return f"<td{_kind(column)}>{_explained_html(text, given.meaning)}</td>"


def _explained(text: str, meaning: str) -> str:
    return _explained_html(html.escape(text), meaning)


def _explained_html(text: str, meaning: str) -> str:
    """Text with an explanation that shows on hover, on focus and on tap."""
    if not meaning:
        return text
    return (
        f"<span class=explained tabindex=0>{text}<span class=meaning role=tooltip>{html.escape(meaning)}</span></span>"
    )


# ---- Markdown ------------------------------------------------------------------------------------------------------


def as_markdown(table: Table) -> str:
    lines = [f"## {markdown_text(table.title)}", ""]
    lines.append(f"| {' | '.join(markdown_text(column.title) for column in table.columns)} |")
    lines.append("|" + "".join("---|" if column.text else "---:|" for column in table.columns))
    for row in table.rows:
        lines.append(f"| {' | '.join(_markdown_cell(given) for given in row)} |")
    lines += [part for text in (table.caption, *table.notes) if text for part in ("", markdown_text(text))]
    return "\n".join(lines) + "\n"


def _markdown_cell(given: Cell) -> str:
    text = f"**{markdown_text(given.text)}**" if given.bold else markdown_text(given.text)
    return f"{text} {markdown_text(given.interval)}" if given.interval else text


def markdown_text(text: str) -> str:
    """Any text on one line, without meaning for Markdown or HTML inside it."""
    text = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", text).replace("&", "&amp;")


# ---- LaTeX ---------------------------------------------------------------------------------------------------------

_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "\u00d7": r"$\times$",
    "\u2013": "--",
}


def tex_text(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in " ".join(text.split()))


def as_latex(table: Table) -> str:
    """A table for the package booktabs."""
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{''.join('l' if column.text else 'c' for column in table.columns)}}}",
        r"\toprule",
        " & ".join(rf"\textbf{{{tex_text(column.title)}}}" for column in table.columns) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        lines.append(" & ".join(_tex_cell(given) for given in row) + r" \\")
    caption = " ".join(text for text in (f"{table.title}.", table.caption, *table.notes) if text)
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{tex_text(caption)}}}", r"\end{table}", ""]
    return "\n".join(lines)


def _tex_cell(given: Cell) -> str:
    text = rf"\textbf{{{tex_text(given.text)}}}" if given.bold else tex_text(given.text)
    if given.interval:
        text += rf" {{\scriptsize {tex_text(given.interval)}}}"
    # A bracket that begins a row would be read as an option of the line break before it.
    return "{}" + text if text.startswith("[") else text


# ---- CSV -----------------------------------------------------------------------------------------------------------


def as_csv(table: Table) -> str:
    """Numbers as they are; intervals in columns of their own."""
    wide = [any(row[place].low is not None for row in table.rows) for place in range(len(table.columns))]
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    header: list[str] = []
    for column, has_interval in zip(table.columns, wide, strict=True):
        header += [column.title, *([f"{column.title}: low", f"{column.title}: high"] if has_interval else [])]
    writer.writerow(header)
    for row in table.rows:
        cells: list[str] = []
        for given, has_interval in zip(row, wide, strict=True):
            cells.append(_no_formula(given.text) if given.value is None else repr(given.value))
            if has_interval:
                cells += ["" if end is None else repr(end) for end in (given.low, given.high)]
        writer.writerow(cells)
    return lines.getvalue()


def _no_formula(text: str) -> str:
    """A spreadsheet would compute a text that begins like a formula."""
    return "'" + text if text[:1] in ("=", "@", "\t", "\r") or re.match(r"[+-](?![\d.])", text) else text
