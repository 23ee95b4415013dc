"""The tables of a study, the tests behind them, and how a table looks as Markdown, LaTeX and CSV, where whatever comes
from data is escaped."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, NamedTuple

import yaml

from ebft.config.method import ONLY_EBFT
from ebft.runtime.files import read_json
from ebft.studies.evidence import VALIDATION, Evidence, ReportRow, Score
from ebft.studies.runs import Json, Run, facts
from ebft.studies.statistics import Interval, Runs, Summary, difference, holm, summarise

if TYPE_CHECKING:
    from pandas import DataFrame

SIGNIFICANT = 0.05
_MOST_ROWS_FOR_PAIRS = 6
# The columns of the paper's main table, in its order; everything else is in the table of all metrics.
_MAIN = [
    *("cross_entropy", "answer_cross_entropy", "cfm", "greedy_pass@1", "pass@1", "pass@4", "pass@16"),
    *("empty", "cut", "no_code", "greedy_bleu", "greedy_chrf", "greedy_comet", "reward"),
]
_COSTS = {
    "steps": ("step", ",.0f"),
    "tokens": ("spent/tokens", ",.0f"),
    "generated": ("spent/generated_tokens", ",.0f"),
    "seconds": ("spent/seconds", ",.1f"),
    "FLOPs": ("spent/flops", ".3g"),
}
# Every run has its own.
_NOT_A_DIFFERENCE = ("output_dir", "logging_dir", "seed", "data_seed", "run_name")


class Number(NamedTuple):
    """A cell with a value, and its interval behind or under it."""

    text: str
    value: float
    interval: Interval | None = None
    interval_text: str = ""
    bold: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.interval_text}".strip()


Cell = str | Number


@dataclass
class Table:
    name: str  # of its files
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    caption: str = ""

    def is_number(self, column: int) -> bool:
        return any(isinstance(row[column], Number) for row in self.rows)


# ---- formats -------------------------------------------------------------------------------------------------------


def as_markdown(table: Table) -> str:
    sides = ["right" if table.is_number(place) else "left" for place in range(len(table.columns))]
    cells, headers = _escaped(table, markdown_text, "**{}**"), list(map(markdown_text, table.columns))
    text = cells.to_markdown(index=False, headers=headers, colalign=sides, disable_numparse=True)
    return "\n\n".join([f"## {markdown_text(table.title)}", text, markdown_text(table.caption), ""])


def as_latex(table: Table) -> str:
    """For the package booktabs."""
    sides = "".join("r" if table.is_number(place) else "l" for place in range(len(table.columns)))
    # pandas formats headers with `str.format`.
    headers = [tex_text(title).replace("{", "{{").replace("}", "}}") for title in table.columns]
    caption, cells = tex_text(f"{table.title}. {table.caption}"), _escaped(table, tex_text, r"\textbf{{{}}}")
    # A bracket that begins a row would be read as an option of the line break before it.
    cells[0] = ["{}" + cell if cell.startswith("[") else cell for cell in cells[0]]
    return cells.to_latex(index=False, header=headers, escape=False, column_format=sides, caption=caption)


def _escaped(table: Table, escape: Callable[[str], str], bold: str) -> DataFrame:
    import pandas as pd

    def shown(cell: Cell) -> str:
        if isinstance(cell, Number) and cell.bold:
            return f"{bold.format(escape(cell.text))} {escape(cell.interval_text)}".strip()
        return escape(str(cell))

    return pd.DataFrame([[shown(cell) for cell in row] for row in table.rows])


def markdown_text(text: str) -> str:
    """Any text on one line, without meaning for Markdown or HTML inside it."""
    return re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


_TEX = {"\\": "textbackslash", "~": "textasciitilde", "^": "textasciicircum", "<": "textless", ">": "textgreater"}
_TEX = {letter: f"\\{name}{{}}" for letter, name in (_TEX | {"|": "textbar"}).items()}
_TEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def tex_text(text: str) -> str:
    """Any text on one line, without meaning for LaTeX."""
    return "".join(_TEX.get(letter, letter) for letter in " ".join(text.split()))


def as_csv(table: Table) -> str:
    """Numbers as they are; intervals in columns of their own."""
    import pandas as pd

    columns: list[tuple[str, list[str | float]]] = []
    for place, title in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        columns.append((title, [cell.value if isinstance(cell, Number) else _no_formula(cell) for cell in cells]))
        ends = [cell.interval if isinstance(cell, Number) else None for cell in cells]
        if any(ends):
            columns += [(f"{title}: {n}", ["" if e is None else getattr(e, n) for e in ends]) for n in ("low", "high")]
    frame = pd.DataFrame({place: values for place, (_, values) in enumerate(columns)}, dtype=object)
    return frame.to_csv(index=False, header=[_no_formula(title) for title, _ in columns])


def _no_formula(text: str) -> str:
    """A spreadsheet would compute a text that begins like a formula."""
    return "'" + text if text[:1] in ("=", "@", "\t", "\r") or re.match(r"[+-](?![\d.])", text) else text


def number(found: Summary, bold: bool = False, sign: bool = False) -> Number:
    """A value with its interval, with as many digits as that allows."""
    interval = found.interval
    if interval is None:
        return Number(shown(found.value, sign=sign), found.value, bold=bold)
    if found.items and found.value == 0 and interval.low == interval.high:
        return Number("0", found.value, interval, "equal on every item", bold)
    digits = digits_for(interval)
    low, high = (shown(end, digits, sign) for end in interval)
    return Number(shown(found.value, digits, sign), found.value, interval, f"[{low}, {high}]", bold)


def digits_for(interval: Interval | None) -> int:
    """Decimals that show an interval with at least one digit, and no more than it needs."""
    width = 0.0 if interval is None else interval.high - interval.low
    return min(8, max(2, 2 - math.floor(math.log10(width)))) if 0 < width < math.inf else 4


def shown(value: float, digits: int = 4, sign: bool = False) -> str:
    return "not a number" if math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def p_text(p: float) -> str:
    return "" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


# ---- values and tests ----------------------------------------------------------------------------------------------


class Ranking(NamedTuple):
    """The best row by one metric, against the runner-up."""

    metric: str
    best: ReportRow
    second: ReportRow
    test: Summary | None  # best minus second; None if they cannot be paired
    p: float  # adjusted for all rankings of the report


def main_metrics(evidence: Evidence) -> list[str]:
    """In the order of the paper's table, task after task."""

    def column(name: str) -> str:
        """Where a metric stands: beside its own, where it is of another temperature or of greedy answers."""
        name = "cfm" if name.startswith("cfm_temperature_") else name
        return name.removeprefix("greedy_") if name.endswith(("empty", "cut", "no_code")) else name

    def place(metric: str) -> tuple[bool, bool, str, int]:
        task, _, name = metric.rpartition(" ")
        return task not in ("calibration", VALIDATION), task == "", task, _MAIN.index(column(name))

    # A task as a whole, not one of its languages.
    return sorted((m for m in evidence.metrics if column(m.split()[-1]) in _MAIN and m.count(" ") < 2), key=place)


def summary_of(row: ReportRow, metric: str) -> Summary | None:
    """The mean over a row's seeds, with its interval."""
    if not (scores := row.scores(metric)):
        return None
    if (sides := _by_item(scores)) is None:
        return _summary_of_values(scores)
    return _within(summarise(sides[0], facts(metric).is_rate), 0.0 if metric.endswith("distinct") else None)


def compare_rows(mine: ReportRow, other: ReportRow, metric: str) -> Summary | None:
    """`mine` minus `other` on the same items; None if they have none in common."""
    if (sides := _by_item(mine.scores(metric), other.scores(metric))) is None:
        return None
    return _within(difference(*sides), -1.0 if facts(metric).is_rate else None)


def _within(found: Summary, least: float | None) -> Summary:
    """No share is more than all."""
    if least is None or found.interval is None:
        return found
    return replace(found, interval=Interval(max(least, found.interval.low), min(1.0, found.interval.high)))


def _by_item(*sides: Sequence[Score]) -> list[Runs] | None:
    """What each item adds to the scores, if the items are the same in all of them."""
    every = [score for side in sides for score in side]
    if not all(sides) or len({score.items for score in every}) > 1 or any(s.by_item is None for s in every):
        return None
    return [[score.by_item for score in side] for side in sides]  # type: ignore[misc]


def _summary_of_values(scores: Sequence[Score]) -> Summary:
    """Of scores of a whole corpus: its own error, and how the seeds vary."""
    value, known = fmean(score.value for score in scores), [s.error for s in scores if s.error is not None]
    variances = [fmean(error * error for error in known)] if len(known) == len(scores) else []
    if len(scores) > 1:
        variances.append(sum((s.value - value) ** 2 for s in scores) / (len(scores) - 1) / len(scores))
    half = NormalDist().inv_cdf(0.975) * math.sqrt(sum(variances))
    return Summary(value, Interval(value - half, value + half) if variances else None, math.nan, 0, len(scores))


def rankings(evidence: Evidence, metrics: Sequence[str]) -> list[Ranking]:
    """The best row by each metric, tested against the runner-up; p-values by Holm's method over all of them."""
    ordered = [(metric, _best_first(evidence, metric)) for metric in metrics]
    return _ranked([(metric, rows[0], rows[1]) for metric, rows in ordered if len(rows) > 1])


def rankings_of_kinds(evidence: Evidence, metrics: Sequence[str]) -> list[Ranking]:
    """The same for the best rows of two methods, such as EBFT and SFT, where the runner-up is another row of the same
    method: whether one beats the other would stay open."""
    found = []
    for metric in metrics:
        rows = [row for row in _best_first(evidence, metric) if row.kind != "base"]
        other = next((row for row in rows if row.kind != rows[0].kind), None)
        if other is not None and other is not rows[1]:
            found.append((metric, rows[0], other))
    return _ranked(found)


def _best_first(evidence: Evidence, metric: str) -> list[ReportRow]:
    about, sign = facts(metric), 1 if facts(metric).smaller_is_better else -1
    found = [(row, summary) for row in evidence.rows if (summary := summary_of(row, metric)) is not None]
    known = [(row, sign * summary.value) for row, summary in found if not math.isnan(summary.value)]
    return [row for row, _ in sorted(known, key=lambda one: one[1])] if about.is_ranked else []


def _ranked(pairs: Sequence[tuple[str, ReportRow, ReportRow]]) -> list[Ranking]:
    tests = [compare_rows(best, second, metric) for metric, best, second in pairs]
    adjusted = holm([math.nan if test is None else test.p for test in tests])
    return [Ranking(*pair, test, p) for pair, test, p in zip(pairs, tests, adjusted, strict=True)]


# ---- the tables ----------------------------------------------------------------------------------------------------


def main_table(evidence: Evidence, metrics: Sequence[str], ranked: Sequence[Ranking]) -> Table:
    winners = {r.metric: r.best.name for r in ranked if r.p < SIGNIFICANT}
    rows: list[list[Cell]] = []
    single = []
    for row in evidence.rows:
        runs = sum(bool(model.scores) for model in row.models)
        single += [row.title] * (runs == 1 and row.kind != "base")
        cells: list[Cell] = [row.title, str(runs) if row.kind != "base" else ""]
        # Never a zero: what is not there is said.
        missing = "missing" if any(model.problem for model in row.models) else ""
        for metric in metrics:
            found, none = summary_of(row, metric), "" if metric == "reward" and row.kind != "rlvr" else missing
            cells.append(none if found is None else number(found, winners.get(metric) == row.name))
        rows.append(cells)
    caption = (
        "Means over seeds with 95 % intervals, over the measured items and the training runs. Bold: the best of its "
        f"column, where the paired test against the runner-up gives p < {SIGNIFICANT} after Holm's correction for the "
        f"{sum(not math.isnan(r.p) for r in ranked)} such tests of this table."
    )
    if single:
        caption += (
            f" One training run: {', '.join(single)}. Intervals and tests of these cover which items were measured, "
            "and say nothing about training again with another seed."
        )
    return Table("main", "Main results", ["method", "seeds", *map(column_title, metrics)], rows, caption)


def column_title(metric: str) -> str:
    return facts(metric).title.replace("cross-entropy", "CE")


def paper_tables(task: str | None) -> list[Table]:
    """The paper's own numbers of one of its tasks, or of all three."""
    every = yaml.safe_load(files("ebft.studies").joinpath("paper_numbers.yaml").read_text(encoding="utf-8"))
    caption = (
        "Copied from the paper, not measured here: best results per method, on its models, data and benchmarks (means "
        "over them). CE and FM: cross-entropy and feature-matching loss on its validation data; ws.: after a warm "
        "start."
    )
    found = []
    for name in [name for name in every if name == task] or every:
        title, columns = f"The paper's own numbers: {every[name]['title']}", ["method", *every[name]["columns"]]
        rows = every[name]["rows"].items()
        cells: list[list[Cell]] = [[row, *(Number(f"{v:.3f}", v) for v in values)] for row, values in rows]
        found.append(Table(f"paper-{name.replace('_', '-')}", title, columns, cells, caption))
    return found


def other_metrics_table(evidence: Evidence, metrics: Sequence[str]) -> Table | None:
    others = [metric for metric in evidence.metrics if metric not in metrics and "cfm_at_" not in metric]
    return _untested_table(evidence, others, "other-metrics", "Other metrics")


def profile_tables(evidence: Evidence) -> list[Table | None]:
    """The feature-matching loss over completion length, and how methods of different kinds differ in it; where all
    are of one kind, how they differ among themselves."""
    lengths = [metric for metric in evidence.metrics if "cfm_at_" in metric]
    rows = [row for row in evidence.rows if row.kind != "base"]
    one_kind = len({row.kind for row in rows}) == 1
    pairs = [(one, other) for one, other in itertools.combinations(rows, 2) if one_kind or one.kind != other.kind]
    profile = _untested_table(evidence, lengths, "profile", "Feature-matching loss over completion length")
    if profile is not None:
        # Only contexts that are followed by a text of the greatest length are in it, so that these may be few.
        measured = [score.by_item for row in evidence.rows for m in lengths for score in row.scores(m)]
        contexts = int(min(one.count for one in measured))  # type: ignore[union-attr]
        sequences = min(sum(pull is not None for pull in one.pulls) for one in measured)  # type: ignore[union-attr]
        profile.caption += f" Measured on {contexts:,} contexts in {sequences:,} sequences."
    return [profile, _tested_table(lengths, pairs, "profile-differences", "Paired differences over completion length")]


def _untested_table(evidence: Evidence, metrics: Sequence[str], name: str, title: str) -> Table | None:
    rows: list[list[Cell]] = [
        [row.title, *("" if (s := summary_of(row, m)) is None else number(s) for m in metrics)] for row in evidence.rows
    ]
    columns = ["method", *(column_title(m).removeprefix("feature-matching loss at ") for m in metrics)]
    table = Table(name, title, columns, rows, "Means over seeds with 95 % intervals; not tested.")
    return table if metrics else None


def differences_table(evidence: Evidence, metrics: Sequence[str]) -> Table | None:
    """Every pair of rows, or with many rows each against the first that was trained."""
    rows = [row for row in evidence.rows if any(model.scores for model in row.models)]
    pairs = list(itertools.combinations(rows, 2))
    if len(rows) > _MOST_ROWS_FOR_PAIRS:
        first = next((row for row in rows if row.kind != "base"), rows[0])
        pairs = [(first, row) for row in rows if row is not first]
    return _tested_table(metrics, pairs, "differences", "Paired differences")


def _tested_table(
    metrics: Sequence[str], pairs: Sequence[tuple[ReportRow, ReportRow]], name: str, title: str
) -> Table | None:
    every = [(m, one, other, compare_rows(other, one, m)) for m, (one, other) in itertools.product(metrics, pairs)]
    found = [(metric, one, other, test) for metric, one, other, test in every if test is not None]
    adjusted = holm([test.p for *_, test in found])
    tests = sum(not math.isnan(p) for p in adjusted)
    rows: list[list[Cell]] = []
    for (metric, one, other, test), p in zip(found, adjusted, strict=True):
        ps = [Number(p_text(each), each) for each in (test.p, p)]
        is_better = (test.value < 0) == facts(metric).smaller_is_better
        reading = "better" if is_better else "worse"
        reading = "not tested" if math.isnan(p) else reading if p < SIGNIFICANT else "not separable"
        rows.append([column_title(metric), other.title, one.title, number(test, sign=True), *ps, reading])
    caption = (
        f"{tests} tests were made here. At a level of 5 %, about one in twenty would show a difference where "
        "there is none; the corrected p-values hold that chance at 5 % for all of them together."
        if tests
        else "Nothing is tested: that takes two sequences or problems at least."
    )
    columns = ["metric", "difference of", "from", "difference [95 %]", "p", "p, corrected", "reading"]
    return Table(name, title, columns, rows, caption) if rows else None


def costs_table(runs: Sequence[tuple[Sequence[str], str, Run | None]], titles: Sequence[str]) -> Table | None:
    """runs: what each is called, under these titles, and its state."""
    rows: list[list[Cell]] = []
    for names, state, run in runs:
        costs = {} if run is None else run.total_costs()
        known = [(costs.get(key), style) for key, style in _COSTS.values()]
        cells = ["" if value is None else Number(format(value, style), float(value)) for value, style in known]
        rows.append([*names, state, *cells])
    return Table("costs", "Runs and what they cost", [*titles, "state", *_COSTS], rows) if rows else None


def searches_table(evidence: Evidence) -> Table | None:
    """What was tried on validation, and what was chosen."""
    rows: list[list[Cell]] = []
    for row in evidence.manifest["rows"]:
        for one in row["searched"]:
            results = read_json(evidence.folder / one["run"] / "results.json") or {}
            value = (results.get("after") or {}).get(f"eval_{row['choose_by']}")
            settings = ", ".join(f"{name} {_setting(tried)}" for name, tried in one["values"].items())
            found = "not finished" if value is None else Number(shown(value), value)
            mark = "chosen" if one["values"] == row["chosen"] else ""
            rows.append([row["title"], settings, facts(row["choose_by"]).title, found, mark])
    caption = "Chosen on the validation data with one seed; the test data had no part in it."
    columns = ["method", "setting", "chosen by", "on validation", ""]
    return Table("searches", "What was searched", columns, rows, caption) if rows else None


def settings_tables(runs: dict[str, Run]) -> list[Table]:
    """In what the settings of some runs differ, and what they share of what their recipes set."""
    every: dict[str, dict[str, str]] = {}
    given: set[str] = set()
    for title, run in runs.items():
        settings: Json = read_json(run.folder / "resolved.json") or {}
        idle = _NOT_A_DIFFERENCE if run.method == "ebft" else (*_NOT_A_DIFFERENCE, *ONLY_EBFT)
        if settings.get("max_steps", -1) > 0:  # which then also ends the epochs
            idle = (*idle, "num_train_epochs")
        every[title] = {name: _setting(value) for name, value in settings.items() if name not in idle}
        if (recipe := run.folder / "recipe.yaml").is_file():
            given |= set(yaml.safe_load(recipe.read_text(encoding="utf-8")))
    every = {title: settings for title, settings in every.items() if settings}
    differ: list[list[Cell]] = []
    shared: list[list[Cell]] = []
    for name in dict.fromkeys(itertools.chain(*every.values())):
        values = [settings.get(name) for settings in every.values()]
        if len(set(values)) > 1 and (name in given or None not in values):
            differ.append([name, *(value or "" for value in values)])
        elif len(set(values)) == 1 and name in given:
            shared.append([name, values[0] or ""])
    tables = [Table("settings", "What differs between the settings", ["setting", *every], differ)]
    tables.append(Table("shared-settings", "What all rows share", ["setting", "in every row"], shared))
    return [table for table in tables if table.rows]


def _setting(value: object) -> str:
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
