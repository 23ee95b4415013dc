"""What `--help` of the training commands says; tests/command_line has the order of its groups."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ebft.config.baseline_options import RLVROptions, SFTOptions
from ebft.config.help import settings_help
from ebft.config.method import MethodConfig


def line_of(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"  --{name} ")]
    return line


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
