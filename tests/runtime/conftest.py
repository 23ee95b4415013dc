from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebft.runtime import processes
from tests.runtime.sharded_models import CPU


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone."""
    processes.join_alone(CPU)
    yield
    processes.leave()
