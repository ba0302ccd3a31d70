"""What status says that a machine saves, beside what it saves in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

import pytest

from downpour.core.stragglers.base import POLICIES, Action, RoundView, Saving
from downpour.core.stragglers.contribution import contributions
from downpour_lab.policylab.comparison import Contender, Settings, rounds_on
from downpour_lab.policylab.conditions import SAMPLES, Unequal

HANDOFF = Contender(name="handoff", standbys=0, snapshots=True)
FAST = (1.0, 1.0, 1.0, 1.0)
SLOW = "host-0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "speed", "state"),
    [
        (5, 1 / 2, "trains"),
        (5, 1 / 4, "trains"),
        (5, 1 / 10, "trains"),
        (8, 1 / 4, "trains"),
        (8, 1 / 30, "stands by"),
    ],
)
def test_the_told_saving_of_a_machine_is_its_saving(shards: int, speed: float, state: str) -> None:
    """Within a tenth of the time, by the views that the scheduler makes while it trains."""
    said: list[Saving] = []

    def look(view: RoundView) -> Sequence[Action]:
        if view.round >= 2 and len(view.workers) > len(FAST):
            said.extend(contributions(view, (SAMPLES,) * shards, [SLOW]).values())
        return POLICIES["handoff"].decide(view)

    policies = {**POLICIES, "handoff": replace(POLICIES["handoff"], decide=look)}

    def seconds(*speeds: float) -> float:
        job = Unequal(speeds=speeds, hosts=shards, rounds=8)
        settings = Settings(heartbeat_seconds=0.5)
        rounds = rounds_on(len(speeds), HANDOFF, job, settings, policies=policies)
        return fmean(one.seconds for one in rounds[2:])

    saves = 1 - seconds(speed, *FAST) / seconds(*FAST)
    stands_by = median(one.stands_by for one in said)
    predicted = median(one.share for one in said)
    assert stands_by == (state == "stands by")
    assert abs((0.0 if stands_by else predicted) - saves) < 0.1
    assert predicted < 0 or not stands_by
