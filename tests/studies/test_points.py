"""Which points a sweep has, what they are called, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ebft.config.recipe import load_recipe
from ebft.errors import ConfigError
from ebft.studies.points import points

BASE: dict[str, Any] = {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True}


def made(tmp_path: Path, sets: list[str], section: Any = None, **changes: Any) -> list[Any]:
    file = tmp_path / "recipe.yaml"
    values = {**BASE, "output_dir": str(tmp_path / "out"), **changes}
    file.write_text(yaml.safe_dump(values if section is None else {**values, "sweep": section}, sort_keys=False))
    return points(file, {}, sets)


def test_every_combination_once_in_order(tmp_path: Path) -> None:
    found = made(tmp_path, ["learning_rate=1e-6,3e-6", "gamma=0,0.1,0.3"])
    assert [point.name for point in found] == [
        f"learning_rate={rate},gamma={gamma}" for rate in ("1e-06", "3e-06") for gamma in ("0", "0.1", "0.3")
    ]
    assert [(p.given["learning_rate"], p.given["gamma"]) for p in found] == [
        (rate, gamma) for rate in (1e-6, 3e-6) for gamma in (0.0, 0.1, 0.3)
    ]
    assert {p.given["output_dir"] for p in found} == {str(tmp_path / "out" / p.name) for p in found}
    assert not (tmp_path / "out").exists()


def test_a_section_of_the_recipe_and_flags_that_win(tmp_path: Path) -> None:
    section = {"gamma": [0, 0.1], "feature_layers": [[0.5], [0.25, 0.75]]}
    found = made(tmp_path, ["gamma=0.3"], section)
    assert [point.name for point in found] == ["gamma=0.3,feature_layers=0.5", "gamma=0.3,feature_layers=0.25+0.75"]
    assert [p.given["feature_layers"] for p in found] == [[0.5], [0.25, 0.75]]


def test_a_point_written_is_a_recipe(tmp_path: Path) -> None:
    for point in made(tmp_path, ["model=a/one,b/two", "whitening=both", "document_masks=true,false"]):
        point.write()
        assert load_recipe(point.recipe, {}).given == point.given
    assert (tmp_path / "out" / "points" / "model=two,whitening=both,document_masks=false.yaml").exists()


@pytest.mark.parametrize(
    ("sets", "section", "words"),
    [
        ([], None, "nothing to sweep"),
        (["learning_rat=1"], None, "unknown setting 'learning_rat' to sweep; did you mean 'learning_rate'"),
        (["lr=1e-6,3e-6"], None, "unknown setting 'lr' to sweep; here it is called 'learning_rate'"),
        (["learning_rate=fast,1"], None, "learning_rate='fast' is not a number"),
        (["whitening=both,refrence"], None, "did you mean 'reference'"),
        (["learning_rate"], None, "write --set name=value,value"),
        (["gamma=0", "gamma=1"], None, "given twice"),
        (["gamma=0.1,0.10"], None, "same name"),
        (["output_dir=a,b"], None, "cannot be swept"),
        (["alpha=0.5,1.5"], None, "alpha=1.5: alpha=1.5 must lie between 0 and 1"),
        ([], {"gamma": 0.1}, "mapping of settings to lists"),
        ([], {"gamma": []}, "no values"),
    ],
)
def test_what_is_refused_before_anything_starts(sets: list[str], section: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        made(tmp_path, sets, section)
    assert not (tmp_path / "out").exists()


def test_settings_of_a_baseline(tmp_path: Path) -> None:
    values = {**BASE, "output_dir": str(tmp_path)}
    assert len(points(None, values, ["max_length=128,256"], "sft")) == 2
    with pytest.raises(ConfigError, match="unknown setting 'max_length'"):
        points(None, values, ["max_length=128,256"])


def test_a_recipe_with_a_sweep_is_not_one_run(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**BASE, "output_dir": "x", "sweep": {"gamma": [0]}}))
    with pytest.raises(ConfigError, match="start them with `ebft sweep`"):
        load_recipe(file, {})
