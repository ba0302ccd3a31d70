"""Numbers that policies compare and tell: chances, counts of late shards."""

from __future__ import annotations

import pytest

from downpour.base.values import Forecast
from downpour.core.stragglers import POLICIES
from downpour.core.stragglers.base import Close
from downpour.core.stragglers.outlook import chance_above
from tests.core.stragglers.rounds import round_of, running


@pytest.mark.parametrize(
    ("seconds", "chance"),
    [(0.5, 1.0), (1.0, 0.9), (1.5, 0.7), (3.0, 0.3), (4.5, 0.06), (5.0, 0.0), (9.0, 0.0)],
)
def test_a_chance_lies_between_those_of_the_quantiles(seconds: float, chance: float) -> None:
    """It falls evenly from one to the next; beyond the outermost, nothing is known."""
    forecast = Forecast(q10=1.0, q50=2.0, q90=4.0, q98=5.0)
    assert chance_above(forecast, seconds) == pytest.approx(chance)


def test_a_policy_says_how_many_updates_it_does_not_wait_for() -> None:
    """The counts are of this round, and one update fewer is not enough."""
    policy = POLICIES["backup"]
    tasks = [running("ann", 0, 0.5)]
    told = policy.decide(round_of(tasks, published=[5.0, 5.0, 5.0], options={"backups": 1}))
    reason = "3 of 4 updates are there; 1 not waited for"
    assert told == [Close(reason=reason, leave_running=True)]
    two = [*tasks, running("bob", 1, 0.5)]
    assert policy.decide(round_of(two, published=[5.0, 5.0], options={"backups": 1})) == []
