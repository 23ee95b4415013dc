"""Programs that try to pass without solving the problem."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebft.problems.problem import run_tests
from ebft.sandbox.command import Limits
from tests.sandbox.attacks.python import FORGERIES
from tests.sandbox.sandboxed import ADD, SMALL, Background, in_background, needs_sandbox


@needs_sandbox
def test_a_right_answer_passes_under_the_same_limits() -> None:
    """Without this, the tests below could pass because nothing ever does."""
    outcome = run_tests(ADD, "    return a + b\n", limits=Limits(**{**vars(SMALL), "seconds": 20.0}))
    assert outcome.passed, outcome


@pytest.fixture(scope="module")
def background(request: pytest.FixtureRequest) -> Iterator[Background]:
    yield from in_background(request, lambda chosen: run_tests(ADD, FORGERIES[chosen["name"]], limits=SMALL))


@needs_sandbox
@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_do_not_pass(name: str, background: Background, request: pytest.FixtureRequest) -> None:
    outcome, _ = background[request.node.name].result()
    assert outcome.status in ("failed", "timeout"), outcome
