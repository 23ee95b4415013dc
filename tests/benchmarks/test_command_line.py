"""Errors are one line, before anything is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import grid
import picture
import step
from command_line import Parser

PROGRAMS = {"step": step.main, "grid": grid.main, "picture": picture.main}


@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        ("step", "--size foo", "invalid choice: 'foo'"),
        ("step", "--horizon -1", "-1 is not a whole number above 0"),
        ("step", "--sequences 0", "0 is not a whole number above 0"),
        ("step", "--horizon 300", "does not fit in sequences of 256 tokens"),
        ("step", "--samples 2", "needs at least 3"),
        ("step", "--backend flex", "--backend flex needs --device cuda"),
        ("step", "--released-repeats 2", "on a CPU the two implementations take turns"),
        ("step", "--gamma -1", "must not be negative"),
        ("step", "--json {folder}", "Is a directory"),
        ("grid", "--show {folder}/nothing.json", "No such file"),
        ("grid", "--show {folder}/step.json", "is not a result of grid.py"),
        ("grid", "--show {folder}/broken.json", "is not JSON"),
        ("grid", "--device cpu --size tiny --json {folder}/grid.json", "measured with other settings: size, repeats"),
        ("grid", "--at-once 0", "0 is not a whole number above 0"),
        ("picture", "{folder}/nothing.json --output {folder}/a.png", "No such file"),
        ("picture", "{folder}/step.json --output {folder}/a.png", "has no `flops`"),
    ],
)
def test_errors_are_one_line(
    program: str, arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "step.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "grid.json").write_text(json.dumps({"rows": [], "settings": {"size": "small-cpu", "repeats": 1}}))
    monkeypatch.setattr(sys, "argv", [f"{program}.py", *arguments.format(folder=tmp_path).split()])
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program]()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{program}.py: ")
    assert words in lines[0]


def test_checking_the_output_leaves_no_empty_file_and_removes_nothing_else(tmp_path: Path) -> None:
    empty, link, full = tmp_path / "folder" / "empty.json", tmp_path / "stdout", tmp_path / "full.json"
    full.write_text("{}")
    (tmp_path / "target").touch()
    link.symlink_to(tmp_path / "target")
    for file in (None, empty, link, full):
        Parser().check_output(file)
    assert not empty.exists()
    assert link.is_symlink()
    assert full.read_text() == "{}"
