"""The tables of a study, the tests behind them, and how a table looks as Markdown, LaTeX and CSV, where whatever comes
from data is escaped."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

import yaml

from ebft.config.method import ONLY_EBFT
from ebft.runtime.files import read_json
from ebft.studies.evidence import VALIDATION, Evidence, ReportRow, Score
from ebft.studies.runs import Run, facts
from ebft.studies.statistics import Interval, Runs, Summary, difference, holm, summarise

SIGNIFICANT = 0.05
_MOST_ROWS_FOR_PAIRS = 6
# The columns of the paper's main table, in its order; everything else is in the table of all metrics.
_MAIN = [
    *("cross_entropy", "answer_cross_entropy", "cfm", "greedy_pass@1", "pass@1", "pass@4", "pass@16"),
    *("empty", "cut", "no_code", "greedy_bleu", "greedy_chrf", "greedy_comet", "reward"),
]
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
    notes: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """What stands under it."""
        return [text for text in (self.caption, *self.notes) if text]

    def is_number(self, column: int) -> bool:
        return any(isinstance(row[column], Number) for row in self.rows)


# ---- formats -------------------------------------------------------------------------------------------------------


def as_markdown(table: Table) -> str:
    sides = ["right" if table.is_number(place) else "left" for place in range(len(table.columns))]
    headers = list(map(markdown_text, table.columns))
    cells = _cells(table, markdown_text, "**{}**")
    text = cells.to_markdown(index=False, headers=headers, colalign=sides, disable_numparse=True)
    return "\n\n".join([f"## {markdown_text(table.title)}", text, *map(markdown_text, table.words), ""])


def as_latex(table: Table) -> str:
    """For the package booktabs."""
    sides = "".join("r" if table.is_number(place) else "l" for place in range(len(table.columns)))
    # pandas formats headers with `str.format`.
    headers = [tex_text(title).replace("{", "{{").replace("}", "}}") for title in table.columns]
    caption = tex_text(" ".join([f"{table.title}.", *table.words]))
    cells = _cells(table, tex_text, r"\textbf{{{}}}")
    # A bracket that begins a row would be read as an option of the line break before it.
    cells[0] = ["{}" + cell if cell.startswith("[") else cell for cell in cells[0]]
    return cells.to_latex(index=False, header=headers, escape=False, column_format=sides, caption=caption)


def _cells(table: Table, escaped: Callable[[str], str], bold: str) -> Any:
    import pandas as pd

    def shown(cell: Cell) -> str:
        if isinstance(cell, Number) and cell.bold:
            return f"{bold.format(escaped(cell.text))} {escaped(cell.interval_text)}".strip()
        return escaped(str(cell))

    return pd.DataFrame([[shown(cell) for cell in row] for row in table.rows])


def markdown_text(text: str) -> str:
    """Any text on one line, without meaning for Markdown or HTML inside it."""
    return re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


_TEX = {"\\": "textbackslash", "~": "textasciitilde", "^": "textasciicircum", "<": "textless", ">": "textgreater"}
_TEX |= {"|": "textbar", **{letter: letter for letter in "&%$#_{}"}}


def tex_text(text: str) -> str:
    """Any text on one line, without meaning for LaTeX."""
    words = {letter: f"\\{name}{{}}" if len(name) > 1 else f"\\{name}" for letter, name in _TEX.items()}
    return "".join(words.get(letter, letter) for letter in " ".join(text.split()))


def as_csv(table: Table) -> str:
    """Numbers as they are; intervals in columns of their own."""
    import pandas as pd

    columns: list[tuple[str, list[Any]]] = []
    for place, title in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        columns.append((title, [cell.value if isinstance(cell, Number) else _no_formula(cell) for cell in cells]))
        if any(isinstance(cell, Number) and cell.interval for cell in cells):
            ends = [cell.interval if isinstance(cell, Number) else None for cell in cells]
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


@dataclass(frozen=True)
class Ranking:
    """The best row by one metric, against the runner-up."""

    metric: str
    best: ReportRow
    second: ReportRow
    test: Summary | None  # best minus second; None if they cannot be paired
    p: float = math.nan  # adjusted for all rankings of the report


def main_metrics(evidence: Evidence) -> list[str]:
    """In the order of the paper's table, task after task."""

    def place(metric: str) -> tuple[bool, bool, str, int]:
        task, _, name = metric.rpartition(" ")
        return task not in ("calibration", VALIDATION), task == "", task, _MAIN.index(_column(name))

    # A task as a whole, not one of its languages.
    found = [m for m in evidence.metrics if _column(m.split()[-1]) in _MAIN and " " not in m.rpartition(" ")[0]]
    return sorted(found, key=place)


def _column(name: str) -> str:
    """Where a metric stands: beside its own, where it is of another temperature or of greedy answers."""
    name = "cfm" if name.startswith("cfm_temperature_") else name
    return name.removeprefix("greedy_") if name.endswith(("empty", "cut", "no_code")) else name


def summary_of(row: ReportRow, metric: str) -> Summary | None:
    """The mean over a row's seeds, with its interval."""
    if not (scores := row.scores(metric)):
        return None
    if (sides := _by_item(scores)) is None:
        return _summary_of_values(scores)
    found = summarise(sides[0], facts(metric).is_rate)
    if metric.endswith("distinct") and found.interval is not None:  # no share is more than all
        return replace(found, interval=Interval(found.interval.low, min(1.0, found.interval.high)))
    return found


def _by_item(*sides: Sequence[Score]) -> list[Runs] | None:
    """What each item adds to the scores, if the items are the same in all of them."""
    every = [score for side in sides for score in side]
    if not all(sides) or len({score.items for score in every}) > 1 or any(s.by_item is None for s in every):
        return None
    return [[score.by_item for score in side] for side in sides]  # type: ignore[misc]


def _summary_of_values(scores: Sequence[Score]) -> Summary:
    """Of scores of a whole corpus: its own error, and how the seeds vary."""
    value = fmean(score.value for score in scores)
    known = [score.error for score in scores if score.error is not None]
    spread = [(score.value - value) ** 2 for score in scores]
    variance = fmean(e * e for e in known) if len(known) == len(scores) else math.nan
    if len(scores) > 1:
        variance = (0.0 if math.isnan(variance) else variance) + sum(spread) / (len(scores) - 1) / len(scores)
    half = NormalDist().inv_cdf(0.975) * math.sqrt(variance) if variance == variance else math.nan
    interval = None if math.isnan(half) else Interval(value - half, value + half)
    return Summary(value, interval, math.nan, 0, len(scores))


def compare_rows(mine: ReportRow, other: ReportRow, metric: str) -> Summary | None:
    """`mine` minus `other` on the same items; None if they have none in common."""
    if (sides := _by_item(mine.scores(metric), other.scores(metric))) is None:
        return None
    found = difference(*sides)
    if facts(metric).is_rate and found.interval is not None:  # no share is more than all
        return replace(found, interval=Interval(max(-1.0, found.interval.low), min(1.0, found.interval.high)))
    return found


def rankings(evidence: Evidence, metrics: Sequence[str]) -> list[Ranking]:
    """The best row by each metric, tested against the runner-up; p-values by Holm's method over all of them."""
    ordered = [(metric, _best_first(evidence, metric)) for metric in metrics]
    return _tested([(metric, rows[0], rows[1]) for metric, rows in ordered if len(rows) > 1])


def rankings_of_kinds(evidence: Evidence, metrics: Sequence[str]) -> list[Ranking]:
    """The same for the best rows of two methods, such as EBFT and SFT, where the runner-up is another row of the same
    method: whether one beats the other would stay open."""
    found = []
    for metric in metrics:
        rows = [row for row in _best_first(evidence, metric) if row.kind != "base"]
        other = next((row for row in rows if row.kind != rows[0].kind), None)
        if other is not None and other is not rows[1]:
            found.append((metric, rows[0], other))
    return _tested(found)


def _best_first(evidence: Evidence, metric: str) -> list[ReportRow]:
    if not facts(metric).is_ranked:
        return []
    values = {row.name: s.value for row in evidence.rows if (s := summary_of(row, metric)) is not None}
    rows = [row for row in evidence.rows if not math.isnan(values.get(row.name, math.nan))]
    return sorted(rows, key=lambda row: values[row.name] * (1 if facts(metric).smaller_is_better else -1))


def _tested(pairs: Sequence[tuple[str, ReportRow, ReportRow]]) -> list[Ranking]:
    found = [(*pair, compare_rows(pair[1], pair[2], pair[0])) for pair in pairs]
    adjusted = holm([math.nan if test is None else test.p for *_, test in found])
    return [Ranking(*one, p) for one, p in zip(found, adjusted, strict=True)]


# ---- the tables ----------------------------------------------------------------------------------------------------


def main_table(evidence: Evidence, metrics: Sequence[str], ranked: Sequence[Ranking]) -> Table:
    winners = {r.metric: r.best.name for r in ranked if r.p < SIGNIFICANT}
    rows: list[list[Cell]] = []
    for row in evidence.rows:
        runs = sum(model.seed is not None and bool(model.scores) for model in row.models)
        cells: list[Cell] = [row.title, str(runs) if row.kind != "base" else ""]
        # Never a zero: what is not there is said.
        missing = "missing" if any(model.problem for model in row.models) else ""
        for metric in metrics:
            found, none = summary_of(row, metric), "" if metric == "reward" and row.kind != "rlvr" else missing
            cells.append(none if found is None else number(found, winners.get(metric) == row.name))
        rows.append(cells)
    tests = sum(not math.isnan(r.p) for r in ranked)
    caption = (
        "Means over seeds with 95 % intervals, over the measured items and the training runs. Bold: the best of its "
        f"column, where the paired test against the runner-up gives p < {SIGNIFICANT} after Holm's correction for the "
        f"{tests} such tests of this table."
    )
    single = [row.title for row in evidence.rows if row.kind != "base" and sum(bool(m.scores) for m in row.models) == 1]
    note = (
        f"One training run: {', '.join(single)}. Intervals and tests of these cover which items were measured, and say "
        "nothing about training again with another seed."
    )
    columns = ["method", "seeds", *map(column_title, metrics)]
    return Table("main", "Main results", columns, rows, caption, [note] if single else [])


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
    for name, given in every.items():
        rows: list[list[Cell]] = [
            [row, *(Number(f"{v:.3f}", v) for v in values)] for row, values in given["rows"].items()
        ]
        title, columns = f"The paper's own numbers: {given['title']}", ["method", *given["columns"]]
        found.append(Table(f"paper-{name.replace('_', '-')}", title, columns, rows, caption))
    return [table for table, name in zip(found, every, strict=True) if task in (None, name)]


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
    measured = [s.by_item for row in evidence.rows for m in lengths for s in row.scores(m) if s.by_item is not None]
    if profile is not None and measured:
        # Only contexts that are followed by a text of the greatest length are in it, so that these may be few.
        contexts = int(min(one.count for one in measured))  # type: ignore[union-attr]
        sequences = min(sum(pull is not None for pull in one.pulls) for one in measured)  # type: ignore[union-attr]
        said = f"Measured on {contexts:,} context{'s' * (contexts != 1)} in {sequences:,} sequence"
        few = ": without a second sequence there are no intervals and no tests."
        profile.caption += f" {said}{few if sequences < 2 else 's.'}"
    differences = _tested_table(lengths, pairs, "profile-differences", "Paired differences over completion length")
    return [profile, differences]


def _untested_table(evidence: Evidence, metrics: Sequence[str], name: str, title: str) -> Table | None:
    if not metrics:
        return None
    rows: list[list[Cell]] = [
        [row.title, *("" if (s := summary_of(row, m)) is None else number(s) for m in metrics)] for row in evidence.rows
    ]
    columns = ["method", *(column_title(m).removeprefix("feature-matching loss at ") for m in metrics)]
    return Table(name, title, columns, rows, "Means over seeds with 95 % intervals; not tested.")


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
    if not found:
        return None
    adjusted = holm([test.p for *_, test in found])
    tests = sum(not math.isnan(p) for p in adjusted)
    rows: list[list[Cell]] = []
    for (metric, one, other, test), p in zip(found, adjusted, strict=True):
        words = [column_title(metric), other.title, one.title]
        ps = [Number(p_text(each), each) for each in (test.p, p)]
        rows.append([*words, number(test, sign=True), *ps, _reading(metric, test.value, p)])
    caption = (
        f"{tests} tests were made here. At a level of 5 %, about one in twenty would show a difference where "
        "there is none; the corrected p-values hold that chance at 5 % for all of them together."
        if tests
        else "Nothing is tested: that takes two sequences or problems at least."
    )
    columns = ["metric", "difference of", "from", "difference [95 %]", "p", "p, corrected", "reading"]
    return Table(name, title, columns, rows, caption)


def _reading(metric: str, value: float, p: float) -> str:
    if math.isnan(p):
        return "not tested"
    if not p < SIGNIFICANT:
        return "not separable"
    return "better" if (value < 0) == facts(metric).smaller_is_better else "worse"


def costs_table(evidence: Evidence) -> Table | None:
    formats = {"step": ",.0f", "spent/tokens": ",.0f", "spent/generated_tokens": ",.0f", "spent/seconds": ",.1f"}
    formats["spent/flops"] = ".3g"
    rows: list[list[Cell]] = []
    of_models = [(row, model) for row in evidence.rows if row.kind != "base" for model in row.models]
    for row, model in of_models:
        costs = {} if model.run is None else model.run.total_costs()
        known = [(costs.get(key), style) for key, style in formats.items()]
        cells = ["" if value is None else Number(format(value, style), float(value)) for value, style in known]
        rows.append([row.title, "" if model.seed is None else str(model.seed), model.problem or "finished", *cells])
    columns = ["method", "seed", "state", "steps", "tokens", "generated", "seconds", "FLOPs"]
    return Table("costs", "Runs and what they cost", columns, rows) if rows else None


def searches_table(evidence: Evidence) -> Table | None:
    """What was tried on validation, and what was chosen."""
    rows: list[list[Cell]] = []
    for row in evidence.manifest["rows"]:
        for one in row["searched"]:
            results = read_json(evidence.folder / one["run"] / "results.json")
            after = (results.get("after") if isinstance(results, dict) else None) or {}
            value = after.get(f"eval_{row['choose_by']}")
            settings = ", ".join(f"{name} {_setting(tried)}" for name, tried in one["values"].items())
            found = "not finished" if value is None else Number(shown(value), value)
            mark = "chosen" if one["values"] == row["chosen"] else ""
            rows.append([row["title"], settings, facts(row["choose_by"]).title, found, mark])
    caption = "Chosen on the validation data with one seed; the test data had no part in it."
    columns = ["method", "setting", "chosen by", "on validation", ""]
    return Table("searches", "What was searched", columns, rows, caption) if rows else None


def settings_tables(runs: dict[str, Run]) -> list[Table]:
    """In what the settings of some runs differ, and what they share of what their recipes set."""
    every: dict[str, dict[str, Any]] = {}
    given: set[str] = set()
    for title, run in runs.items():
        settings, recipe = read_json(run.folder / "resolved.json"), run.folder / "recipe.yaml"
        if not isinstance(settings, dict):
            continue
        idle = _NOT_A_DIFFERENCE if run.method == "ebft" else (*_NOT_A_DIFFERENCE, *ONLY_EBFT)
        if settings.get("max_steps", -1) > 0:  # which then also ends the epochs
            idle = (*idle, "num_train_epochs")
        every[title] = {name: value for name, value in settings.items() if name not in idle}
        values = yaml.safe_load(recipe.read_text(encoding="utf-8")) if recipe.is_file() else None
        given |= set(values) if isinstance(values, dict) else set()
    differ: list[list[Cell]] = []
    shared: list[list[Cell]] = []
    for name in dict.fromkeys(name for settings in every.values() for name in settings):
        having = [settings[name] for settings in every.values() if name in settings]
        everywhere, alike = len(having) == len(every), all(value == having[0] for value in having)
        if everywhere and alike and name in given:
            shared.append([name, _setting(having[0])])
        elif (everywhere and not alike) or (name in given and not everywhere):
            differ.append([name, *(_setting(found[name]) if name in found else "" for found in every.values())])
    tables = [Table("settings", "What differs between the settings", ["setting", *every], differ)]
    tables.append(Table("shared-settings", "What all rows share", ["setting", "in every row"], shared))
    return [table for table in tables if table.rows]


def _setting(value: Any) -> str:
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
