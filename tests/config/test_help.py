"""What `--help` of the training commands says; tests/command_line has the order of its groups."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from ebft.config.baseline_options import RLVROptions, SFTOptions
from ebft.config.help import settings_help
from ebft.config.method import MethodConfig


def line_of(text: str, name: str) -> str:
    """What is said about a setting, in one line."""
    (said,) = re.findall(rf"^  --{name} .*(?:\n {{8}}.*)*", text, flags=re.MULTILINE)
    return " ".join(said.split())


@pytest.mark.parametrize(("command", "own"), [("train", ()), ("sft", (SFTOptions,)), ("rlvr", (RLVROptions,))])
def test_every_setting_stands_once_with_its_default(command: str, own: tuple[type, ...]) -> None:
    text = settings_help(command)
    for cls in (MethodConfig, *own):
        for f in fields(cls):
            line_of(text, f.name)
    assert line_of(text, "model").endswith("[required]")
    assert line_of(text, "horizon").endswith("[8]")
    assert ("\nThe method\n" in text) == (command == "train")
    assert ("--generations " in text) == (command == "rlvr")


def test_defaults_are_those_of_the_command() -> None:
    assert line_of(settings_help("train"), "num_train_epochs").endswith("[2.0]")
    assert line_of(settings_help("sft"), "num_train_epochs").endswith("[5.0]")
    assert line_of(settings_help("rlvr"), "num_train_epochs").endswith("[1.0]")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["train", "sft", "rlvr"])
def test_no_line_is_wider_than_the_terminal(command: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = settings_help(command).splitlines()
    assert width - 10 < max(map(len, lines)) <= width
    narrow = settings_help(command, 20)
    assert " ".join(narrow.split()) == " ".join(settings_help(command, 1000).split()), "the same words"


def test_an_empty_default_is_left_out() -> None:
    text = settings_help("train")
    assert line_of(text, "tokenizer").endswith("default: the model's")
    assert line_of(text, "dataset_weights").endswith("default: all of everything")
    assert line_of(text, "feature_layers").endswith("[0.25, 0.5, 0.75]")
    assert line_of(text, "lora").endswith("[False]")
    assert not re.search(r"\[(None|\[\]|\{\}|)\]", text)
