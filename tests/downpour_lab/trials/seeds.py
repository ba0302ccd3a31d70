"""Seeds whose plans have the faults that a defect takes to show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from downpour_lab.trials.faults import FaultKind
from downpour_lab.trials.plan import Plan, plan_of


def seeds_with(
    *kinds: FaultKind, operation: str = "", named: str = "", number: int
) -> Iterator[int]:
    """Yield the first seeds whose plans have faults of all these kinds.

    A plan is made in less than a millisecond and run in a hundred, so to leave out those that
    cannot show a defect makes a rare one found in seconds. An `operation` is one of the directory
    that must fail; `named` is the mode or the policy that an experiment must have.
    """
    found = (seed for seed in count() if _has(plan_of(seed), set(kinds), operation, named))
    return islice(found, number)


def _has(plan: Plan, kinds: set[FaultKind], operation: str, named: str) -> bool:
    fails = not operation or any(operation in fault.detail.split()[1:2] for fault in plan.faults)
    there = not named or any(named in {spec.policy, spec.mode} for _, spec in plan.specs)
    return fails and there and kinds <= {fault.kind for fault in plan.faults}
