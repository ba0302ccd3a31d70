"""Seeds whose plans have the faults that a defect takes to show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from downpour.simulator.faults import FaultKind
from downpour.simulator.plan import plan_of


def seeds_with(*kinds: FaultKind, number: int) -> Iterator[int]:
    """Yield the first seeds whose plans have faults of all these kinds.

    A plan is made in less than a millisecond and run in a hundred, so to leave out those that
    cannot show a defect makes a rare one found in seconds.
    """
    found = (s for s in count() if set(kinds) <= {fault.kind for fault in plan_of(s).faults})
    return islice(found, number)
