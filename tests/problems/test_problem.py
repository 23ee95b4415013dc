from __future__ import annotations

from ebft.problems.problem import Attempt, run_many
from ebft.sandbox.bubblewrap import Limits
from tests.sandbox.sandboxed import ADD, needs_sandbox


@needs_sandbox
def test_many_at_a_time() -> None:
    attempts = [Attempt(ADD, "    return a + b\n" if n % 2 else "    return a - b\n", n) for n in range(8)]
    outcomes = run_many(attempts, limits=Limits(seconds=30), workers=2)
    found = {attempt.tag: outcome.passed for attempt, outcome in outcomes}
    assert found == {n: bool(n % 2) for n in range(8)}
