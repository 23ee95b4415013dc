"""The pictures of docs/speed.md can be drawn from the committed results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import picture

RESULTS = Path(picture.__file__).parent / "results"


@pytest.mark.pictures
@pytest.mark.parametrize("name", ["step-h200-smollm2-135m.json", "grid-h200-smollm2-135m.json"])
def test_a_committed_result_is_drawn(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", ["picture.py", str(RESULTS / name), "--output", str(output)])
    picture.main()
    assert output.read_bytes().startswith(b"\x89PNG")
