"""Names of other tools lead to ours."""

from __future__ import annotations

import pytest

from ebft.config.evaluation import options
from ebft.config.recipe import known_settings
from ebft.config.synonyms import _MEANT, suggestion

KNOWN = {
    **{command: known_settings(command) for command in ("train", "sft", "rlvr")},
    "eval": ["--" + name.replace("_", "-") for name, _, _ in options()],
}


@pytest.mark.parametrize(
    ("command", "name", "ours"),
    [
        ("train", "lr", "learning_rate"),
        ("train", "batch_size", "per_device_train_batch_size"),
        ("train", "per_device_batch_size", "per_device_train_batch_size"),
        ("train", "beta", "kl_weight"),
        ("rlvr", "beta", "kl_coefficient"),
        ("train", "epochs", "num_train_epochs"),
        ("train", "max_seq_length", "context_length"),
        ("sft", "max_seq_length", "max_length"),
        ("train", "num_generations", "samples"),
        ("rlvr", "num_generations", "generations"),
        ("eval", "--num-generations", "--samples"),
        ("eval", "--max_length", "--max-new-tokens"),
    ],
)
def test_names_of_the_field(command: str, name: str, ours: str) -> None:
    assert suggestion(name, KNOWN[command]) == f"; here it is called {ours!r}"


def test_a_slip_is_corrected_by_its_spelling() -> None:
    assert suggestion("horizen", KNOWN["train"]) == "; did you mean 'horizon'?"
    assert suggestion("--modle", KNOWN["eval"]) == "; did you mean '--model'?"
    assert suggestion("xyzzy", KNOWN["train"]) == ""


def test_suggestions_are_options_that_exist() -> None:
    known = {option.lstrip("-").replace("-", "_") for options in KNOWN.values() for option in options}
    assert set(_MEANT) <= known
