"""Names of other tools lead to ours."""

from __future__ import annotations

import pytest

from ebft.config.evaluation import options
from ebft.config.recipe import known_settings
from ebft.config.synonyms import _INSTEAD, _MEANT, suggestion

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
        ("train", "torch_dtype", "model_dtype"),
        ("eval", "--torch_dtype", "--dtype"),
        ("train", "completion_only_loss", "answer_only"),
        ("sft", "assistant_only_loss", "answer_only"),
        ("train", "dataset_text_field", "text_column"),
        ("train", "validation_file", "validation_dataset"),
        ("train", "rollout_length", "horizon"),
        ("train", "attn_implementation", "attention_backend"),
    ],
)
def test_names_of_the_field(command: str, name: str, ours: str) -> None:
    assert suggestion(name, KNOWN[command]) == f"; here it is called {ours!r}"


def test_a_slip_is_corrected_by_its_spelling() -> None:
    assert suggestion("horizen", KNOWN["train"]) == "; did you mean 'horizon'?"
    assert suggestion("--modle", KNOWN["eval"]) == "; did you mean '--model'?"
    assert suggestion("xyzzy", KNOWN["train"]) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train_on_inputs", "answer_only says the opposite"),
        ("dataset_config", "dataset=name:configuration"),
        ("device", "use_cpu=true"),
        ("logging_dir", "output_dir/runs"),
        ("overwrite_output_dir", "choose another folder"),
        ("system_prompt", "the first message of every conversation"),
    ],
)
def test_what_is_done_in_another_way_here(name: str, words: str) -> None:
    assert words in suggestion(name, KNOWN["train"])
    assert words not in suggestion(name, ["--tasks"]), "only where the command has what the words name"


def test_suggestions_are_options_that_exist() -> None:
    known = {option.lstrip("-").replace("-", "_") for options in KNOWN.values() for option in options}
    assert set(_MEANT) <= known
    assert {needed for needed, _ in _INSTEAD.values()} <= known
