"""Which numbers of two runs compare, from what their validation depends on: `ruler` in results.json."""

from __future__ import annotations

from typing import Any

from ebft.config.evaluation import NOT_SET
from ebft.config.method import settings_that_change


def settings_that_differ(mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    differ = {key for key in {**other, **mine} if other.get(key) != mine.get(key)}
    if mine.get("network") == "moving average":  # of the run's own weights: two runs never have the same
        differ.add("network")
    return sorted(differ)


def compares(metric: str, differ: list[str]) -> bool:
    """Whether the values of a metric compare although these settings differ."""
    harmless: tuple[str, ...] = ()
    if metric not in ("whitened_proxy", "reward"):
        harmless += settings_that_change("proxy")
    if metric.endswith("cross_entropy"):
        harmless += ("network", "means_over", *settings_that_change("features"))
    return all(key in harmless for key in differ)


def what_differs(name: str, mine: dict[str, Any], other_name: str, other: dict[str, Any]) -> list[str]:
    """How two runs were measured differently, and which of their numbers can be compared nevertheless."""
    differ = settings_that_differ(mine, other)
    if not differ:
        return []
    serious = [key for key in differ if key not in settings_that_change("proxy")]
    words = {"network": "the frozen feature network", "validation": "the validation text"}
    words["means_over"] = "one by an older version, whose means were over sequences instead of contexts"
    shown = ", ".join(
        words.get(key, f"{key} {mine.get(key, NOT_SET)} and {other.get(key, NOT_SET)}") for key in serious or differ
    )
    if not serious:
        return [f"{name} and {other_name} differ in {shown}; their whitened proxy and reward do not compare"]
    only = "only their cross-entropies can be compared"
    advice = only if compares("cross_entropy", differ) else "do not compare their numbers"
    return [f"{name} and {other_name} were measured differently ({shown}); {advice}"]
