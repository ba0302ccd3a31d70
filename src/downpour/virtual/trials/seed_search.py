"""Searches for a seed whose plan fails, and for the fewest of its faults that still fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from downpour.core.node.step_loop import StepLoop
from downpour.core.node.worker import WorkerNode
from downpour.virtual.faults.plan import Plan, plan_of
from downpour.virtual.simulated.manager import SimulatedManager
from downpour.virtual.simulated.worker import NodeClass
from downpour.virtual.trials.cluster import ManagerClass
from downpour.virtual.trials.simulation import Outcome, simulate


def outcomes(
    seeds: Iterable[int],
    manager_class: ManagerClass = SimulatedManager,
    *,
    worker_node: NodeClass = WorkerNode,
    step_loop: type[StepLoop] = StepLoop,
) -> Iterator[Outcome]:
    """Run the plan of each seed."""
    return (
        simulate(plan_of(seed), manager_class, worker_node=worker_node, step_loop=step_loop)
        for seed in seeds
    )


def shrunken(plan: Plan, manager_class: ManagerClass = SimulatedManager) -> Plan:
    """Return a plan with the fewest of its faults that still fails.

    The search leaves out faults while the plan still fails, many at once at first, until it can
    leave out none. It returns a plan that does not fail unchanged.
    """

    def fails(numbers: set[int]) -> bool:
        return bool(simulate(plan.with_faults(numbers), manager_class).failure)

    kept = [fault.number for fault in plan.faults]
    if not fails(set(kept)):
        return plan
    return plan.with_faults(set(_fewest(kept, fails)))


def _fewest(kept: list[int], fails: Callable[[set[int]], bool]) -> list[int]:
    """Leave out parts of a list, first halves and finally single items, while the rest fails."""
    size = len(kept)
    while size >= 1:
        begin = 0
        while begin < len(kept):
            rest = kept[:begin] + kept[begin + size :]
            if fails(set(rest)):
                kept = rest
            else:
                begin += size
        size //= 2
    return kept
