"""The tables of a study, the tests behind them, and how a table looks as Markdown, LaTeX and CSV, where whatever comes
from data is escaped."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ebft.config.method import ONLY_EBFT
from ebft.method import measures
from ebft.method.measures import smaller_is_better, with_error
from ebft.runtime.files import Json, read_json
from ebft.studies.evidence import AXES, VALIDATION, Evidence, Row
from ebft.studies.statistics import Interval, Measured, Summary, difference, holm, same_items, summarise

if TYPE_CHECKING:
    from pandas import DataFrame

SIGNIFICANT = 0.05
_MOST_ROWS_FOR_PAIRS = 6
# The columns of the paper's main table, in its order; everything else is in the table of other metrics.
_MAIN = [
    *("cross_entropy", "answer_cross_entropy", "cfm", "greedy_pass@1", "pass@1", "pass@4", "pass@16"),
    *("greedy_bleu", "greedy_chrf", "greedy_comet"),
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

    @property
    def numbers(self) -> DataFrame:
        """As they are; intervals in columns of their own."""
        import pandas as pd

        columns: dict[str, list[Cell]] = {}
        for title, cells in self.cells.items():
            columns[str(title)] = [c.value if isinstance(c, Summary) else c for c in cells]
            ends = [c.interval if isinstance(c, Summary) else None for c in cells]
            for place, end in enumerate(Interval._fields if any(ends) else ()):
                columns[f"{title}: {end}"] = [None if found is None else found[place] for found in ends]
        return pd.DataFrame(columns, dtype=object)

    def as_csv(self) -> str:
        return self.numbers.map(_no_formula).rename(columns=_no_formula).to_csv(index=False)


def shown(cell: Cell) -> str:
    """Any text on one line; a value with its interval, with as many digits as that allows."""
    if cell is None or isinstance(cell, str):
        return " ".join((cell or "").split())
    if isinstance(cell, Summary):
        sign, interval = "" if math.isnan(cell.p) else "+", cell.interval  # of differences
        if math.isnan(cell.value):
            return "not a number"
        if interval is None:
            return f"{cell.value:{sign}.4g}"
        # Where there is little room, the line breaks before the interval and not inside it.
        return f"{cell.value:{sign}.4g} [{interval.low:{sign}.4g},\N{NO-BREAK SPACE}{interval.high:{sign}.4g}]"
    if 0 < cell < 1e-4:
        return "< 0.0001"
    return "" if math.isnan(cell) else f"{cell:,.0f}" if 1e4 <= cell < 1e9 else f"{cell:.4g}"


def markdown_text(text: str) -> str:
    """Any text on one line, without meaning for Markdown or HTML inside it."""
    return re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", shown(text)).replace("&", "&amp;")


def _no_formula(cell: Cell) -> Cell:
    """A spreadsheet would compute a text that begins like a formula."""
    return f"'{cell}" if isinstance(cell, str) and re.match(r"[=@\t\r]|[+-](?![\d.])", cell) else cell


# ---- metrics -------------------------------------------------------------------------------------------------------


def name_of(metric: str) -> str:
    """What a validation metric is called, or `<task> <metric>` as evaluation has it."""
    task, _, name = metric.rpartition(" ")
    if metric == "reward":  # RLVR's own, on training prompts: what was optimised
        return "training reward"
    if task in ("", "calibration", VALIDATION):
        return measures.title(name)
    words = name.replace("greedy_pass@1", "greedy").replace("_", " ").replace("bleu", "BLEU").replace("chrf", "chrF")
    return f"{task} {words.replace('comet', 'COMET')}"


def short_name(metric: str) -> str:
    return name_of(metric).replace("cross-entropy", "CE")


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
        return "better" if (self.found.value < 0) == smaller_is_better(self.metric) else "worse"


def tested(pairs: Sequence[tuple[str, Row, Row]]) -> list[Test]:
    """With p-values by Holm's method over all of them."""
    found = []
    for metric, row, other in pairs:
        mine, theirs = row.scores(metric), other.scores(metric)
        found.append(difference(mine, theirs) if same_items(mine, theirs) else None)
    adjusted = holm([math.nan if one is None else one.p for one in found])
    return [Test(*pair, one, p) for pair, one, p in zip(pairs, found, adjusted, strict=True)]


def summary_of(row: Row, metric: str) -> Summary | None:
    """The mean over a row's seeds, with its interval."""
    scores = row.scores(metric)
    if len({score.items for score in scores}) > 1:  # seeds that were measured on other items vary as a whole
        scores = [Measured(score.value, seed=score.seed) for score in scores]
    is_rate = "pass@" in metric or metric.endswith(("empty", "cut", "no_code"))  # a share of problems
    return summarise(scores, is_rate) if scores else None


def main_metrics(evidence: Evidence) -> list[str]:
    """In the order of the paper's table, task after task; of a task as a whole, not of one of its languages."""

    def place(metric: str) -> tuple[bool, str, int]:
        task, _, name = metric.rpartition(" ")
        column = name.partition("_temperature_")[0]  # at another temperature it stands beside its own
        number = _MAIN.index(column) if column in _MAIN and " " not in task else -1
        return task not in ("calibration", VALIDATION), task, number

    return sorted((metric for metric in evidence.metrics if place(metric)[-1] >= 0), key=place)


def rankings(evidence: Evidence, metrics: Sequence[str]) -> list[Test]:
    """By each metric, the best row against the best one of another kind, such as EBFT against SFT: that is the
    question. Where all are of one kind, against the runner-up."""
    pairs = []
    for metric in metrics:
        values = [(row, found.value) for row in evidence.rows if (found := summary_of(row, metric)) is not None]
        known = [(row, value) for row, value in values if not math.isnan(value)]
        rows = [r for r, _ in sorted(known, key=lambda one: one[1], reverse=not smaller_is_better(metric))]
        others = [row for row in rows if row.kind not in (rows[0].kind, "base")] or rows[1:]
        if others:
            pairs.append((metric, rows[0], others[0]))
    return tested(pairs)


# ---- the tables ----------------------------------------------------------------------------------------------------


def validation_table(evidence: Evidence, metrics: Sequence[str]) -> Table:
    """What was measured during training: first, best and last."""
    rows, keys = [], [*(f"eval_{metric}" for metric in metrics), "reward"]
    for key, (name, run) in itertools.product(keys, evidence.runs.items()):
        entries = run.measured(key) if key != "reward" or run.method == "rlvr" else []
        if entries:
            best = (min if smaller_is_better(key) else max)(entries, key=lambda entry: entry[key])
            texts = [with_error(entry[key], entry.get(f"{key}_se")) for entry in (entries[0], best, entries[-1])]
            row = {"run": name, "method": run.method, "metric": name_of(key.removeprefix("eval_"))}
            row |= {"first": texts[0], "best": texts[1], "best at": str(best["step"]), "last": texts[2]}
            # The best model may have been loaded after the last step.
            rows.append({**row, "last at": str(entries[-1].get("model_step", entries[-1]["step"]))})
    return Table("validation", "Validation", rows)


def metrics_table(evidence: Evidence, metrics: Sequence[str], name: str, title: str, caption: str) -> Table:
    """Means over seeds. Never a zero: what is not there is said."""
    rows = []
    for row in evidence.rows if metrics else ():
        seeds = "" if row.kind == "base" else str(sum(bool(model.scores) for model in row.models))
        values = {short_name(metric): summary_of(row, metric) or "missing" for metric in metrics}
        rows.append({"method": row.title, "seeds": seeds, **values})
    return Table(name, title, rows, f"Means over seeds with 95 % intervals; {caption}")


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
            row: dict[str, Cell] = {"metric": short_name(one.metric), "difference of": one.mine.title}
            row |= {"from": one.other.title, "difference [95 %]": one.found, "p": one.found.p, "p, corrected": one.p}
            rows.append({**row, "reading": one.reading})
    tests = sum(not math.isnan(one.p) for one in every)
    caption = f"{tests} tests were made here. At a level of 5 %, about one in twenty would show a difference where "
    caption += "there is none; the corrected p-values hold that chance at 5 % for all of them together. Of n sequences "
    caption += "or problems no p is below 2 to the power of 1 - n: of four, 0.125."
    return Table("differences", "Paired differences of final models", rows, caption)


def paper_tables(task: str | None) -> list[Table]:
    """The paper's own numbers, its table of best results per method, of one of its tasks or of all three."""
    import pandas as pd

    caption = "Copied from the paper, not measured here: best results per method, means over its models and benchmarks."
    caption += " CE and FM: cross-entropy and feature-matching loss on its validation data; ws.: after a warm start."
    of_tasks = pd.read_csv(Path(__file__).with_name("paper_numbers.csv"), index_col="task").groupby("task")
    every = {str(name): rows.dropna(axis=1).to_dict("records") for name, rows in of_tasks}
    return [
        Table(f"paper-{name.replace('_', '-')}", f"The paper's own numbers: {name}", every[name], caption)
        for name in ([task] if task in every else every)
    ]


def costs_table(evidence: Evidence) -> Table:
    rows: list[dict[str, Cell]] = []
    for row in evidence.rows:
        for model in row.models if row.kind != "base" else ():
            seed = {} if model.seed is None else {"seed": str(model.seed)}
            costs = model.run.total_costs() if model.run else {}
            state = "finished" if model.run and model.run.finished else "; ".join(model.problems) or "not finished"
            spent = {title: costs.get(key) for key, title in (*AXES.values(), ("spent/generated_tokens", "generated"))}
            rows.append({"run": row.title, "method": row.kind, **seed, "state": state, **spent})
    return Table("costs", "Runs and what they cost", rows)


def settings_table(evidence: Evidence) -> Table:
    """What runs set differently, of what they have in common."""
    settings: dict[str, dict[str, str]] = {}
    for title, run in evidence.runs.items():
        found: Json = read_json(run.folder / "resolved.json") or {}
        idle = _OF_EACH_RUN | {*(ONLY_EBFT if run.method != "ebft" else ())}
        given = {name: value for name, value in found.items() if name not in idle}
        settings[title] = {name: f"{v:g}" if isinstance(v, float) else str(v) for name, v in given.items()}
    names = dict.fromkeys(itertools.chain(*settings.values()))
    if all(int(of.get("max_steps", -1)) > 0 for of in settings.values()):
        names.pop("num_train_epochs", None)  # which decides nothing then
    differ = [name for name in names if len({of[name] for of in settings.values() if name in of}) > 1]
    rows = [{"setting": name, **{title: of.get(name) for title, of in settings.items()}} for name in differ]
    return Table("settings", "What differs between the settings", rows)
