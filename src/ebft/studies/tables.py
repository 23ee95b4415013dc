"""The tables of a study, the tests behind them, and how a table looks as Markdown, LaTeX and CSV, where whatever comes
from data is escaped."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import yaml

from ebft.config.method import ONLY_EBFT
from ebft.runtime.files import Json, read_json
from ebft.studies.evidence import VALIDATION, Evidence, Row
from ebft.studies.runs import AXES, Run, facts
from ebft.studies.statistics import Interval, Measured, Summary, difference, holm, same_items, summarise

if TYPE_CHECKING:
    from pandas import DataFrame

SIGNIFICANT = 0.05
_MOST_ROWS_FOR_PAIRS = 6
# The columns of the paper's main table, in its order; everything else is in the table of other metrics.
_MAIN = [
    *("cross_entropy", "answer_cross_entropy", "cfm", "greedy_pass@1", "pass@1", "pass@4", "pass@16"),
    *("empty", "cut", "no_code", "greedy_bleu", "greedy_chrf", "greedy_comet", "reward"),
]
_OF_EACH_RUN = {"output_dir", "logging_dir", "seed", "data_seed", "run_name"}  # no difference between methods

Cell = str | float | None | Summary


class Table:
    def __init__(self, name: str, title: str, rows: Sequence[Mapping[str, Cell]], caption: str = "") -> None:
        import pandas as pd

        self.name, self.title, self.caption = name, title, caption  # the name is that of its files
        self.cells = pd.DataFrame(rows, dtype=object)

    @property
    def texts(self) -> DataFrame:
        return self.cells.map(shown).rename(columns=shown)

    def as_markdown(self) -> str:
        texts = self.texts.map(markdown_text).rename(columns=markdown_text)
        title, caption = markdown_text(self.title), markdown_text(self.caption)
        return f"## {title}\n\n{texts.to_markdown(index=False, disable_numparse=True)}\n\n{caption}\n"

    def as_latex(self) -> str:
        """For the package booktabs."""
        text = self.texts.to_latex(index=False, escape=True)
        # A bracket that begins a row would be read as an option of the line break before it.
        return f"% {shown(f'{self.title}. {self.caption}')}\n" + text.replace("\n[", "\n{}[")

    def as_csv(self) -> str:
        """Numbers as they are; intervals in columns of their own."""
        import pandas as pd

        columns: dict[str, list[Cell]] = {}
        for title, cells in self.cells.items():
            columns[str(title)] = [c.value if isinstance(c, Summary) else c for c in cells]
            ends = [c.interval if isinstance(c, Summary) else None for c in cells]
            for place, end in enumerate(Interval._fields if any(ends) else ()):
                columns[f"{title}: {end}"] = [None if found is None else found[place] for found in ends]
        return pd.DataFrame(columns, dtype=object).map(_no_formula).rename(columns=_no_formula).to_csv(index=False)


def shown(cell: Cell) -> str:
    """Any text on one line; a value with its interval, with as many digits as that allows."""
    if cell is None or isinstance(cell, str):
        return " ".join((cell or "").split())
    if isinstance(cell, Summary):
        sign, interval = "" if math.isnan(cell.p) else "+", cell.interval  # of differences
        if math.isnan(cell.value):
            return "not a number"
        if interval is None:
            return f"{cell.value:{sign}.4f}"
        width = interval.high - interval.low
        digits = min(8, max(2, 2 - math.floor(math.log10(width)))) if 0 < width < math.inf else 4
        # Where there is little room, the line breaks before the interval and not inside it.
        low, high = (f"{end:{sign}.{digits}f}" for end in interval)
        return f"{cell.value:{sign}.{digits}f} [{low},\N{NO-BREAK SPACE}{high}]"
    if 0 < cell < 1e-4:
        return "< 0.0001"
    return "" if math.isnan(cell) else f"{cell:,.0f}" if 1e4 <= cell < 1e12 else f"{cell:.4g}"


def markdown_text(text: str) -> str:
    """Any text on one line, without meaning for Markdown or HTML inside it."""
    return re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", shown(text)).replace("&", "&amp;")


def _no_formula(cell: Cell) -> Cell:
    """A spreadsheet would compute a text that begins like a formula."""
    return f"'{cell}" if isinstance(cell, str) and re.match(r"[=@\t\r]|[+-](?![\d.])", cell) else cell


# ---- values and tests ----------------------------------------------------------------------------------------------


class Test(NamedTuple):
    """Two rows by one metric."""

    metric: str
    mine: Row
    other: Row
    found: Summary | None  # `mine` minus `other`; None if they have no items in common
    p: float  # adjusted for all tests that were made together

    @property
    def reading(self) -> str:
        if self.found is None or math.isnan(self.p):
            return "not tested"
        if self.p >= SIGNIFICANT:
            return "not separable"
        return "better" if (self.found.value < 0) == facts(self.metric).smaller_is_better else "worse"


def tested(pairs: Sequence[tuple[str, Row, Row]]) -> list[Test]:
    """With p-values by Holm's method over all of them."""
    found = []
    for metric, row, other in pairs:
        mine, theirs, largest = row.scores(metric), other.scores(metric), 1.0 if facts(metric).is_rate else math.inf
        found.append(difference(mine, theirs, largest) if same_items(mine, theirs) else None)
    adjusted = holm([math.nan if one is None else one.p for one in found])
    return [Test(*pair, one, p) for pair, one, p in zip(pairs, found, adjusted, strict=True)]


def summary_of(row: Row, metric: str) -> Summary | None:
    """The mean over a row's seeds, with its interval."""
    scores = row.scores(metric)
    if len({score.items for score in scores}) > 1:  # seeds that were measured on other items vary as a whole
        scores = [Measured(score.value, seed=score.seed) for score in scores]
    return summarise(scores, facts(metric).is_rate) if scores else None


def main_metrics(evidence: Evidence) -> list[str]:
    """In the order of the paper's table, task after task; of a task as a whole, not of one of its languages."""

    def place(metric: str) -> tuple[bool, bool, str, int]:
        task, _, name = metric.rpartition(" ")
        # What is of another temperature or of greedy answers stands beside its own.
        column = re.sub(r"^(cfm)_temperature_.*|^greedy_(empty|cut|no_code)$", r"\1\2", name)
        number = _MAIN.index(column) if column in _MAIN and " " not in task else -1
        return task not in ("calibration", VALIDATION), task == "", task, number

    return sorted((metric for metric in evidence.metrics if place(metric)[-1] >= 0), key=place)


def rankings(evidence: Evidence, metrics: Sequence[str], of_kinds: bool = False) -> list[Test]:
    """The best row by each metric against the runner-up. of_kinds: where that is another row of the same method, such
    as EBFT, against the best row of another one, such as SFT: whether one beats the other would stay open."""
    pairs = []
    for metric in metrics:
        values = [(row, found.value) for row in evidence.rows if (found := summary_of(row, metric)) is not None]
        known = [(row, value) for row, value in values if not math.isnan(value) and facts(metric).is_ranked]
        rows = [r for r, _ in sorted(known, key=lambda one: one[1], reverse=not facts(metric).smaller_is_better)]
        rows = [row for row in rows if row.kind != "base"] if of_kinds else rows
        others = [row for row in rows[1:] if not of_kinds or row.kind != rows[0].kind]
        if others and not (of_kinds and others[0] is rows[1]):
            pairs.append((metric, rows[0], others[0]))
    return tested(pairs)


# ---- the tables ----------------------------------------------------------------------------------------------------


def column_title(metric: str) -> str:
    return facts(metric).title.replace("cross-entropy", "CE").removeprefix("feature-matching loss at ")


def metrics_table(evidence: Evidence, metrics: Sequence[str], name: str, title: str, caption: str) -> Table:
    """Means over seeds. Never a zero: what is not there is said."""
    rows = []
    for row in evidence.rows if metrics else ():
        missing = "missing" if any(model.problems for model in row.models) else ""
        cells: dict[str, Cell] = {"method": row.title}
        cells["seeds"] = "" if row.kind == "base" else str(sum(bool(model.scores) for model in row.models))
        for metric in metrics:
            none = "" if metric == "reward" and row.kind != "rlvr" else missing
            cells[column_title(metric)] = none if (found := summary_of(row, metric)) is None else found
        rows.append(cells)
    return Table(name, title, rows, f"Means over seeds with 95 % intervals; {caption}")


def main_table(evidence: Evidence, metrics: Sequence[str], ranked: Sequence[Test]) -> Table:
    best = [f"{column_title(one.metric)}: {one.mine.title}" for one in ranked if one.p < SIGNIFICANT]
    caption = (
        "these are over the measured items and the training runs; of a single run they say nothing about training "
        "again. Best by the paired test against the runner-up, with "
        f"p < {SIGNIFICANT} after Holm's correction for the {sum(not math.isnan(one.p) for one in ranked)} such tests "
        f"of this table: {'; '.join(best) or 'none'}."
    )
    return metrics_table(evidence, metrics, "main", "Main results", caption)


def profile_table(evidence: Evidence) -> Table:
    """The feature-matching loss over completion length."""
    lengths = [metric for metric in evidence.metrics if "cfm_at_" in metric]
    # Only contexts that are followed by a text of the greatest length are in it, so that these may be few.
    items = [f.items for row in evidence.rows for m in lengths if (f := summary_of(row, m)) is not None]
    title, caption = "Feature-matching loss over completion length", f"on {min(items, default=0):,} sequences."
    return metrics_table(evidence, lengths, "profile", title, caption)


def differences_table(evidence: Evidence, metrics: Sequence[str]) -> Table:
    """Of every pair of rows, or with many rows of each from the first that was trained."""
    scored = [row for row in evidence.rows if any(model.scores for model in row.models)]
    pairs = list(itertools.combinations(scored, 2))
    if len(scored) > _MOST_ROWS_FOR_PAIRS:
        first = next((row for row in scored if row.kind != "base"), scored[0])
        pairs = [(first, row) for row in scored if row is not first]
    every = tested([(metric, mine, other) for metric, (other, mine) in itertools.product(metrics, pairs)])
    rows: list[dict[str, Cell]] = []
    for one in every:
        if one.found is not None:
            row: dict[str, Cell] = {"metric": column_title(one.metric), "difference of": one.mine.title}
            row |= {"from": one.other.title, "difference [95 %]": one.found, "p": one.found.p, "p, corrected": one.p}
            rows.append({**row, "reading": one.reading})
    tests = sum(not math.isnan(one.p) for one in every)
    caption = (
        f"{tests} tests were made here. At a level of 5 %, about one in twenty would show a difference where "
        "there is none; the corrected p-values hold that chance at 5 % for all of them together."
        if tests
        else "Nothing is tested: that takes two sequences or problems at least."
    )
    return Table("differences", "Paired differences of final models", rows, caption)


def paper_tables(task: str | None) -> list[Table]:
    """The paper's own numbers of one of its tasks, or of all three."""
    every = yaml.safe_load(files("ebft.studies").joinpath("paper_numbers.yaml").read_text(encoding="utf-8"))
    caption = (
        "Copied from the paper, not measured here: best results per method, means over its models and benchmarks. CE "
        "and FM: cross-entropy and feature-matching loss on its validation data; ws.: after a warm start."
    )
    found = []
    for name in [name for name in every if name == task] or every:
        columns, title = every[name]["columns"], f"The paper's own numbers: {every[name]['title']}"
        rows = [{"method": m, **dict(zip(columns, v, strict=True))} for m, v in every[name]["rows"].items()]
        found.append(Table(f"paper-{name.replace('_', '-')}", title, rows, caption))
    return found


def costs_table(runs: Sequence[tuple[Mapping[str, Cell], Run | None]]) -> Table:
    """runs: what each is called, and itself."""
    costs: list[tuple[Mapping[str, Cell], Json]] = [(names, run.total_costs() if run else {}) for names, run in runs]
    columns = (*AXES.values(), ("spent/generated_tokens", "generated"))
    rows = [{**names, **{title: of.get(key) for key, title in columns}} for names, of in costs]
    return Table("costs", "Runs and what they cost", rows)


def settings_table(runs: Mapping[str, Run]) -> Table:
    """What runs set differently, of what they have in common."""
    settings: dict[str, dict[str, str]] = {}
    for title, run in runs.items():
        found: Json = read_json(run.folder / "resolved.json") or {}
        idle = _OF_EACH_RUN | {*(ONLY_EBFT if run.method != "ebft" else ())}
        if found.get("max_steps", -1) > 0:  # which then also ends the epochs
            idle |= {"num_train_epochs"}
        given = {name: value for name, value in found.items() if name not in idle}
        settings[title] = {name: f"{v:g}" if isinstance(v, float) else str(v) for name, v in given.items()}
    names = dict.fromkeys(itertools.chain(*settings.values()))
    differ = [name for name in names if len({of[name] for of in settings.values() if name in of}) > 1]
    rows = [{"setting": name, **{title: of.get(name) for title, of in settings.items()}} for name in differ]
    return Table("settings", "What differs between the settings", rows)
