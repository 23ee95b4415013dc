"""Values from YAML and from the text of flags as the types of their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebft.config.convert import convert
from ebft.errors import ConfigError
from tests.config.recipes import load, refuse


class TestTypes:
    @pytest.mark.parametrize(
        ("name", "value", "kind"),
        [
            ("model", 5, "text"),
            ("model", True, "text"),
            ("output_dir", 5, "text"),
            ("text_column", ["a"], "text"),
            ("horizon", "many", "a whole number"),
            ("horizon", 1.5, "a whole number"),
            ("horizon", "1.5", "a whole number"),
            ("horizon", True, "a whole number"),
            ("horizon", [8], "a whole number"),
            ("limit_documents", "all", "a whole number"),
            ("temperature", "warm", "a number"),
            ("temperature", True, "a number"),
            ("learning_rate", {}, "a number"),
            ("packing", "perhaps", "true or false"),
            ("packing", 2, "true or false"),
            ("feature_layers", True, "a list"),
            ("dataset", True, "a list"),
            ("accelerator_config", 5, "a mapping or text"),
        ],
    )
    def test_wrong_type_names_field_value_and_what_it_takes(self, name: str, value: Any, kind: str) -> None:
        assert refuse(name, value) == f"{name}={value!r} is not {kind}"

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("horizon", 4, 4),
            ("horizon", "4", 4),
            ("horizon", 4.0, 4),
            ("horizon", "1e2", 100),
            ("temperature", 1, 1.0),
            ("temperature", "0.7", 0.7),
            ("learning_rate", "1e-5", 1e-5),
            ("feature_layers", "0.5", [0.5]),
            ("feature_layers", "0.25, 0.5,1", [0.25, 0.5, 1.0]),
            ("feature_layers", ["0.25", 1], [0.25, 1.0]),
            ("feature_layers", 0.5, [0.5]),
            ("feature_model", "none", None),
            ("feature_model", None, None),
            ("rollout_batch_size", "None", None),
            ("rollout_batch_size", "3", 3),
            ("report_to", "none", []),
            ("report_to", None, []),
            ("eval_steps", None, None),
        ],
    )
    def test_conversions(self, name: str, value: Any, expected: Any) -> None:
        assert getattr(load(**{name: value}).training, name) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("a.jsonl", ["a.jsonl"]), ("a.jsonl,b.csv", ["a.jsonl", "b.csv"]), (" a , b ,", ["a", "b"])],
    )
    def test_lists_from_text_with_commas(self, text: str, expected: list[str]) -> None:
        assert load(dataset=text).data.dataset == expected

    @pytest.mark.parametrize("true", [True, "true", "True", "yes", "1", 1])
    @pytest.mark.parametrize("false", [False, "false", "no", "0", 0])
    def test_true_and_false(self, true: Any, false: Any) -> None:
        training = load(document_masks=true, packing=false).training
        assert training.document_masks is True
        assert training.packing is False

    def test_none_is_a_form_of_whitening(self, tmp_path: Path) -> None:
        # And not the absence of a value, as it is elsewhere.
        assert load(whitening="none").training.whitening == "none"
        assert load("whitening: none\n", tmp_path).training.whitening == "none"

    @pytest.mark.parametrize("name", ["horizon", "whitening", "packing", "dataset", "text_column"])
    def test_a_setting_that_needs_a_value_is_not_left_empty(self, name: str) -> None:
        assert refuse(name, None).startswith(f"{name} must not be empty; it takes ")

    def test_yamls_bare_no_is_an_evaluation_strategy(self, tmp_path: Path) -> None:
        assert load("eval_strategy: no\nsave_strategy: no\n", tmp_path).training.eval_strategy == "no"

    def test_typo_in_a_choice_of_transformers_names_field_and_choices(self) -> None:
        message = refuse("eval_strategy", "step")
        assert message == "eval_strategy='step' is not one of no, steps, epoch; did you mean 'steps'?"


def test_the_item_of_a_list_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigError, match=r"profile_lengths holds 'foo', which is not a whole number"):
        convert("profile_lengths", ["8", "foo"], list[int])
    with pytest.raises(ConfigError, match=r"weights holds 'x', which is not a number"):
        convert("weights", "1,x", list[float])
    assert refuse("feature_layers", "first,last").startswith("feature_layers holds 'first', which is not a")
    assert refuse("dataset", ["a.jsonl", 5]) == "dataset holds 5, which is not text"
