"""Seeds whose plans have the faults that a defect takes to show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from downpour.virtual.faults.faults import FaultKind
from downpour.virtual.faults.plan import Plan, plan_of


def seeds_with(
    *kinds: FaultKind, operation: str = "", policy: str = "", number: int
) -> Iterator[int]:
    """Yield the first seeds whose plans have faults of all these kinds.

    A plan is made in less than a millisecond and run in a hundred, so to leave out those that
    cannot show a defect makes a rare one found in seconds. An `operation` is one of the directory
    that must fail, and a `policy` one that an experiment must have.
    """
    found = (seed for seed in count() if _has(plan_of(seed), set(kinds), operation, policy))
    return islice(found, number)


def _has(plan: Plan, kinds: set[FaultKind], operation: str, policy: str) -> bool:
    fails = not operation or any(operation in fault.detail.split()[1:2] for fault in plan.faults)
    decides = not policy or any(spec.policy == policy for _, spec in plan.specs)
    return fails and decides and kinds <= {fault.kind for fault in plan.faults}
