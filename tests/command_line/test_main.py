"""The command itself: help, names, exit codes, and what it imports before it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tools.commands_page import commands
from torch.distributed import DistNetworkError

from ebft import __version__, cli
from ebft.errors import Preempted
from ebft.runtime import launch
from tests.imports import Ended, run_commands

# The arguments, the exit code, and what standard error says.
LIGHT: dict[str, tuple[list[str], int, str]] = {
    "no command": ([], 2, ""),
    "unknown command": (["trian"], 2, "unknown command 'trian'; there is train, sft, rlvr, plan, "),
    "launch": (["train", "--launch", "two"], 2, "--launch takes the number of processes to start; leave it out"),
    "eval option": (["eval", "--modle", "m"], 2, "did you mean '--model'?"),
    "eval task": (["eval", "--model", "m", "--tasks", "humanevl", "--output", "o"], 2, "did you mean 'humaneval'?"),
    "fetch unknown model": (["fetch", "smollm2-135"], 2, "invalid choice: 'smollm2-135' (choose from "),
    "eval help": (["eval", "--help"], 0, ""),
}


@pytest.fixture(scope="module")
def ended() -> dict[str, Ended]:
    *light, heavy = run_commands([*(arguments for arguments, _, _ in LIGHT.values()), ["env"]])
    assert (heavy.code, "torch" in heavy.imported) == (0, True), "or no test could fail"
    return dict(zip(LIGHT, light, strict=True))


@pytest.mark.parametrize("name", LIGHT)
def test_answered_without_heavy_imports(name: str, ended: dict[str, Ended]) -> None:
    _, code, words = LIGHT[name]
    found = ended[name]
    assert found.imported == []
    assert found.code == code, found.errors
    assert words in found.errors
    lines = found.errors.splitlines()
    assert [line.startswith("ebft: ") for line in lines] == ([True] if code and name != "no command" else [])


def test_help_and_with_it_the_page_of_commands_name_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (cli.main(["--help"]), cli.main(["--version"])) == (0, 0)
    text = capsys.readouterr().out
    assert {command.split()[0] for command in commands(text)} == cli.COMMANDS.keys()
    assert text.endswith(f"\n{__version__}\n")


ENDS = [
    (KeyboardInterrupt(), 130, "stopped"),
    (Preempted("SIGTERM"), 75, "stopped by SIGTERM"),
    (FileNotFoundError(2, "No such file", "a.txt"), 1, "a.txt: No such file"),
    (ValueError("a\n\x1b[2J"), 2, "a \\x1b[2J"),
    (torch.OutOfMemoryError("CUDA out of memory"), 1, "CUDA out of memory"),
    (ImportError("vLLM is not installed"), 1, "vLLM is not installed"),
]


@pytest.mark.parametrize(("error", "code", "words"), ENDS, ids=lambda value: type(value).__name__)
def test_errors_are_lines_and_codes(error: BaseException, code: int, words: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(cli.COMMANDS, "eval", (Mock(side_effect=error), ""))
    assert cli.main(["eval"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ebft: {words}")
    is_told = line.endswith("; the same command resumes from here")
    assert is_told != isinstance(error, ValueError | OSError | ImportError)


def test_an_error_that_nobody_foresaw_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "eval", (Mock(side_effect=RuntimeError("something else")), ""))
    with pytest.raises(RuntimeError, match="something else"):
        cli.main(["eval"])


def test_a_full_disk_is_named_where_torch_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._run_failed(RuntimeError("PytorchStreamWriter failed writing file"), tmp_path) == 1
    assert capsys.readouterr().err == f"ebft: {tmp_path}: the disk is full\n"


@pytest.mark.parametrize("launched", [False, True])
def test_who_says_that_another_process_died(launched: bool, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The launcher ends the others with a signal, which may come before they notice, and says why itself."""
    stopped = Preempted("SIGTERM")
    stopped.__cause__ = DistNetworkError("no answer")
    monkeypatch.setenv(launch.LAUNCHED, "1" if launched else "")
    assert cli._run_failed(stopped, tmp_path) == 75
    assert ("stopped by SIGTERM" in capsys.readouterr().err) == (not launched)
