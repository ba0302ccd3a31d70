"""Seeds whose plans have the faults that a defect takes to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

from downpour.virtual.faults.faults import Fault, FaultKind
from downpour.virtual.faults.plan import plan_of


def seeds_with(*kinds: FaultKind, operation: str = "", number: int) -> Iterator[int]:
    """Yield the first seeds whose plans have faults of all these kinds.

    A plan is made in less than a millisecond and run in a hundred, so to leave out those that
    cannot show a defect makes a rare one found in seconds. An `operation` is one of the directory
    that must fail.
    """
    found = (seed for seed in count() if _has(plan_of(seed).faults, set(kinds), operation))
    return islice(found, number)


def _has(faults: Sequence[Fault], kinds: set[FaultKind], operation: str) -> bool:
    fails = not operation or any(operation in fault.detail.split()[1:2] for fault in faults)
    return fails and kinds <= {fault.kind for fault in faults}
