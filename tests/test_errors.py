"""The words of error messages."""

from __future__ import annotations

from ebft.errors import first_line, nearest


def test_nearest_suggests_what_is_close_and_nothing_else() -> None:
    assert nearest("horizen", ["stride", "horizon"]) == "; did you mean 'horizon'?"
    assert nearest("xyzzy", ["stride", "horizon"]) == ""
    assert nearest("x", []) == ""


def test_first_line_of_an_error_is_never_empty() -> None:
    assert first_line(ValueError("\n  what happened\nand a long explanation")) == "what happened"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
