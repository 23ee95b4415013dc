"""`--launch N`, as far as the command line goes; tests/distributed starts processes."""

from __future__ import annotations

from typing import Any

import pytest

from ebft import cli

pytest.importorskip("trl")
from ebft.runtime import launch


@pytest.mark.parametrize("number", [[], ["0"], ["two"]])
def test_launch_wants_a_number(number: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--model", "m", "--launch", *number]) == 2
    assert "--launch takes the number of processes to start" in capfd.readouterr().err


def test_launch_inside_a_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["train", "--launch=2"]) == 2
    assert "leave it out under torchrun" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["train", "sft", "rlvr"])
def test_launch_starts_the_command_it_was_given(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(launch, "launch", lambda *given: started.append(given) or 0)
    settings = ["--model", "m", "--dataset", "d", "--output_dir", "o"]
    assert cli.main([command, "--launch", "2", *settings]) == 0
    assert started == [(2, command, settings)]
