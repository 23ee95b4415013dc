"""The tables of a study, and the tests behind them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean
from typing import Any

from ebft.runtime.files import read_json
from ebft.studies.metric_facts import MetricFacts, facts
from ebft.studies.report.evidence import VALIDATION, Evidence, ReportRow, Score
from ebft.studies.report.tables import Cell, Column, Table, cell, number_cell, shown
from ebft.studies.statistics import Interval, Summary, difference, holm, summarise

SIGNIFICANT = 0.05
_MOST_ROWS_FOR_PAIRS = 6
# The columns of the paper's main table, in its order; everything else is in the table of all metrics.
_MAIN = (
    "cross_entropy",
    "answer_cross_entropy",
    "cfm",
    "greedy_pass@1",
    "pass@1",
    "pass@4",
    "pass@16",
    "greedy_bleu",
    "greedy_chrf",
    "greedy_comet",
    "reward",
)


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
    by_task: dict[str, list[str]] = {}
    for metric in evidence.metrics:
        task, _, name = metric.rpartition(" ")
        if _column(name) in _MAIN and " " not in task:  # a task as a whole, not one of its languages
            by_task.setdefault(task, []).append(metric)
    order = sorted(by_task, key=lambda task: (task not in ("calibration", VALIDATION), task == "", task))
    return [
        m for task in order for m in sorted(by_task[task], key=lambda m: _MAIN.index(_column(m.rpartition(" ")[2])))
    ]


def _column(name: str) -> str:
    """Where a metric stands: the loss at another temperature beside its own."""
    return "cfm" if name.startswith("cfm_temperature_") else name


def summary_of(row: ReportRow, metric: str) -> Summary | None:
    """The mean over a row's seeds, with its interval."""
    scores = row.scores(metric)
    if not scores:
        return None
    by_item = [score.measured for score in scores if score.measured is not None]
    if len(by_item) == len(scores) and len({score.items for score in scores}) == 1:
        found = summarise(by_item, facts(metric).is_rate)
        if found.interval is not None and found.interval.high > facts(metric).most:
            found = replace(found, interval=Interval(found.interval.low, facts(metric).most))
        return found
    corpora = [score.corpus for score in scores if score.corpus is not None]
    if len(corpora) == len(scores) and len({score.items for score in scores}) == 1:
        return summarise(corpora)
    return _summary_of_values(scores)


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
    scores = mine.scores(metric), other.scores(metric)
    if not all(scores) or len({score.items for side in scores for score in side}) != 1:
        return None
    corpora = [[score.corpus for score in side if score.corpus is not None] for side in scores]
    if all(len(side) == len(given) for side, given in zip(corpora, scores, strict=True)):
        return difference(*corpora)
    sides = [[score.measured for score in side if score.measured is not None] for side in scores]
    if any(len(side) < len(given) for side, given in zip(sides, scores, strict=True)):
        return None
    found = difference(*sides)
    if facts(metric).is_rate and found.interval is not None:  # no share is more than all
        found = replace(found, interval=Interval(max(-1.0, found.interval.low), min(1.0, found.interval.high)))
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
    values = {row.name: s.value for row in evidence.rows if (s := summary_of(row, metric)) is not None}
    rows = [row for row in evidence.rows if row.name in values and not math.isnan(values[row.name])]
    sign = 1 if facts(metric).smaller_is_better else -1
    return [] if metric == "reward" else sorted(rows, key=lambda row: sign * values[row.name])


def _tested(pairs: Sequence[tuple[str, ReportRow, ReportRow]]) -> list[Ranking]:
    found = [Ranking(metric, best, second, compare_rows(best, second, metric)) for metric, best, second in pairs]
    adjusted = holm([math.nan if r.test is None else r.test.p for r in found])
    return [Ranking(r.metric, r.best, r.second, r.test, p) for r, p in zip(found, adjusted, strict=True)]


def main_table(evidence: Evidence, metrics: Sequence[str], ranked: Sequence[Ranking]) -> Table:
    winners = {r.metric: r.best.name for r in ranked if r.p < SIGNIFICANT}
    columns = [Column("method", text=True), Column("seeds", "Training runs behind the row.")]
    columns += [Column(column_title(metric), meaning_of(metric)) for metric in metrics]
    rows = []
    for row in evidence.rows:
        runs = sum(model.seed is not None and bool(model.scores) for model in row.models)
        cells = [cell(row.title), cell(str(runs) if row.kind != "base" else "")]
        for metric in metrics:
            found = summary_of(row, metric)
            cells.append(
                _missing(row, metric) if found is None else number_cell(found, winners.get(metric) == row.name)
            )
        rows.append(cells)
    caption = (
        "Means over seeds with 95 % intervals, over the measured items and the training runs. Bold: the best of its "
        f"column, where the paired test against the runner-up gives p < {SIGNIFICANT} after Holm's correction for the "
        f"{sum(not math.isnan(r.p) for r in ranked)} such tests of this table."
    )
    return Table("main", "Main results", columns, rows, caption, _on_seeds(evidence))


def _on_seeds(evidence: Evidence) -> list[str]:
    single = [row.title for row in evidence.rows if row.kind != "base" and sum(bool(m.scores) for m in row.models) == 1]
    if not single:
        return []
    return [
        f"One training run: {', '.join(single)}. Intervals and tests of these cover which items were measured, and say "
        "nothing about training again with another seed."
    ]


def _missing(row: ReportRow, metric: str) -> Cell:
    """Never a zero: what is not there is said."""
    if metric == "reward" and row.kind != "rlvr":
        return cell("")
    return cell("missing" if any(model.problem for model in row.models) else "")


def column_title(metric: str) -> str:
    return facts(metric).title.replace("cross-entropy", "CE")


def meaning_of(metric: str) -> str:
    about: MetricFacts = facts(metric)
    task = metric.rpartition(" ")[0]
    where = {
        "calibration": " On the test data, which nothing was trained or chosen on.",
        VALIDATION: " On the validation data, which learning rates may have been chosen on: nothing was tested.",
    }.get(task, "")
    return about.meaning + where


def all_metrics_table(evidence: Evidence, metrics: Sequence[str]) -> Table | None:
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
        profile = replace(profile, caption=f"{profile.caption} {_contexts(evidence, lengths)}".strip())
    return [
        profile,
        _tested_table(lengths, pairs, "profile-differences", "Paired differences over completion length"),
    ]


def _contexts(evidence: Evidence, lengths: Sequence[str]) -> str:
    """What a profile rests on. Only contexts that are followed by a text of the greatest length are in it, so that
    these may be few."""
    found = [s.measured for row in evidence.rows for m in lengths for s in row.scores(m) if s.measured is not None]
    if not found:
        return ""
    contexts = int(min(one.count for one in found))
    sequences = min(sum(pull is not None for pull in one.pulls) for one in found)
    said = f"Measured on {contexts:,} context{'s' * (contexts != 1)} in {sequences:,} sequence{'s' * (sequences != 1)}"
    return f"{said}: without a second sequence there are no intervals and no tests." if sequences < 2 else f"{said}."


def _untested_table(evidence: Evidence, metrics: Sequence[str], name: str, title: str) -> Table | None:
    if not metrics:
        return None
    titles = [column_title(m).removeprefix("feature-matching loss at ") for m in metrics]
    columns = [Column(title, meaning_of(m)) for title, m in zip(titles, metrics, strict=True)]
    columns = [Column("method", text=True), *columns]
    rows = [
        [cell(row.title), *(cell("") if (s := summary_of(row, m)) is None else number_cell(s) for m in metrics)]
        for row in evidence.rows
    ]
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
    found: list[tuple[str, ReportRow, ReportRow, Summary]] = []
    for metric, (one, other) in itertools.product(metrics, pairs):
        if (test := compare_rows(other, one, metric)) is not None:
            found.append((metric, one, other, test))
    if not found:
        return None
    adjusted = holm([test.p for *_, test in found])
    tests = sum(not math.isnan(p) for p in adjusted)
    columns = [
        Column("metric", text=True),
        Column("difference of", text=True),
        Column("from", text=True),
        Column(
            "difference [95 %]", "Paired: on the same sequences or problems. Negative: the first has the smaller value."
        ),
        Column(
            "p", "Of the paired t test with seeds counted (corpus scores: and of the bootstrap), before correction."
        ),
        Column("p, corrected", f"By Holm's method, for the {tests} tests of this table together."),
        Column("reading", text=True),
    ]
    body = []
    for (metric, one, other, test), p in zip(found, adjusted, strict=True):
        body.append(
            [
                cell(column_title(metric)),
                cell(other.title),
                cell(one.title),
                number_cell(test, sign=True),
                Cell(p_text(test.p), value=test.p),
                Cell(p_text(p), value=p),
                cell(_reading(metric, test.value, p)),
            ]
        )
    caption = (
        f"{tests} tests were made here. At a level of 5 %, about one in twenty would show a difference where "
        "there is none; the corrected p-values hold that chance at 5 % for all of them together."
        if tests
        else "Nothing is tested: that takes two sequences or problems at least."
    )
    return Table(name, title, columns, body, caption)


def _reading(metric: str, value: float, p: float) -> str:
    if math.isnan(p):
        return "not tested"
    if not p < SIGNIFICANT:
        return "not separable"
    return "better" if (value < 0) == facts(metric).smaller_is_better else "worse"


def p_text(p: float) -> str:
    return "" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def costs_table(evidence: Evidence) -> Table | None:
    columns = [
        Column("method", text=True),
        Column("seed"),
        Column("state", text=True),
        Column("steps"),
        Column("tokens", "Tokens of text from the dataset."),
        Column("generated", "Tokens that the model generated for training."),
        Column("seconds", "Of training, without evaluation and saving."),
        Column("FLOPs", "Estimated: 2 per parameter and token of a forward pass."),
    ]
    rows = []
    for row in evidence.rows:
        for model in row.models if row.kind != "base" else ():
            costs = {} if model.run is None else model.run.total_costs()
            cells = [cell(row.title), cell("" if model.seed is None else str(model.seed))]
            cells += [cell(model.problem or "finished"), _cost(costs.get("step"), ",.0f")]
            cells += [
                _cost(costs.get(f"spent/{n}"), f)
                for n, f in (("tokens", ",.0f"), ("generated_tokens", ",.0f"), ("seconds", ",.1f"), ("flops", ".3g"))
            ]
            rows.append(cells)
    return Table("costs", "Runs and what they cost", columns, rows) if rows else None


def _cost(value: float | None, style: str) -> Cell:
    return cell("") if value is None else Cell(format(value, style), value=float(value))


def searches_table(evidence: Evidence, folder: Any) -> Table | None:
    """What was tried on validation, and what was chosen."""
    rows = []
    for row in evidence.manifest.get("rows", []):
        for one in row["searched"]:
            results = read_json(folder / one["run"] / "results.json")
            after = results.get("after") if isinstance(results, dict) else None
            value = (after or {}).get(f"eval_{row['choose_by']}")
            settings = ", ".join(
                f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in one["values"].items()
            )
            number = Cell("not finished") if value is None else Cell(shown(value), value=value)
            mark = "chosen" if one["values"] == row["chosen"] else ""
            rows.append([cell(row["title"]), cell(settings), cell(facts(row["choose_by"]).title), number, cell(mark)])
    if not rows:
        return None
    columns = [
        Column("method", text=True),
        Column("setting", text=True),
        Column("chosen by", text=True),
        Column("on validation"),
        Column("", text=True),
    ]
    caption = "Chosen on the validation data with one seed; the test data had no part in it."
    return Table("searches", "What was searched", columns, rows, caption)
