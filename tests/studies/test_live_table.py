"""The table that is drawn anew in place."""

from __future__ import annotations

import logging
import sys

import pytest

from ebft.studies.live_table import LiveTable, columns


def test_cells_stand_below_each_other() -> None:
    assert columns([("job", "state"), ("a long name", "x")]) == ["job          state", "a long name  x"]


def test_in_a_terminal_it_is_drawn_over_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    states = iter(["waiting", "running"])
    table = LiveTable(lambda: [("one", next(states)), ("two", "x")], every=0.0)
    launcher = logging.getLogger("ebft.studies.local_launcher")
    assert launcher.level == logging.WARNING  # its lines would stand in between
    table.show()
    table.show()
    table.close()
    assert launcher.level == logging.NOTSET
    first, second, end = capsys.readouterr().out.split("\x1b[2A\x1b[J")
    assert first == "one  waiting\ntwo  x\n"
    assert second == "one  running\ntwo  x\n"
    assert end == ""


def test_elsewhere_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    table = LiveTable(lambda: [("one", "x")], every=0.0)
    table.show()
    table.close()
    assert capsys.readouterr().out == ""
