from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, so that nobody's home is touched."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EBFT_CACHE", str(folder))
    return folder
