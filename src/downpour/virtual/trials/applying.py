"""The promises that apply to a run; if a run compares nothing with one of them, it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from downpour.virtual.checks.happenings import Happening
from downpour.virtual.checks.promises import Broken, Comparisons, Promise
from downpour.virtual.faults.plan import Plan

Happened = Counter[Happening]


def _all_in_step(plan: Plan) -> bool:
    return all(spec.in_step for _, spec in plan.specs)


def _none_in_step(plan: Plan) -> bool:
    return not any(spec.in_step for _, spec in plan.specs)


_APPLIES: Mapping[Promise, Callable[[Plan, Happened], object]] = {
    Promise.ENDS: lambda _plan, _seen: True,
    Promise.FINISHES: lambda _plan, seen: seen["fact", "Concluded"],
    Promise.CONSISTENT: lambda _plan, _seen: True,
    Promise.REPLAYS: lambda _plan, seen: seen["event", "ExperimentSubmitted"],
    Promise.RECORDS: lambda _plan, seen: seen["event", "Aggregated"],
    Promise.REMEMBERS: lambda _plan, seen: seen["manager", "goes on"],
    Promise.LEADS: lambda _plan, seen: seen["event", "ExperimentSubmitted"],
    Promise.REGISTERED: lambda _plan, seen: seen["command", "Assign"],
    Promise.PLACES: lambda _plan, seen: seen["command", "Assign"],
    Promise.BLAMELESS: lambda plan, seen: plan.only_managers_end and seen["fact", "GivenUp"],
    Promise.PROGRESS: lambda _plan, seen: seen["fact", "GivenUp"],
    Promise.OWN: lambda _plan, seen: seen["manager", "begins"],
    Promise.ONCE: lambda _plan, seen: seen["fact", "Accepted"],
    Promise.FOLDS: lambda _plan, seen: seen["command", "Aggregate"],
    Promise.BYTES: lambda _plan, seen: seen["event", "Aggregated"],
    Promise.APART: lambda plan, seen: _none_in_step(plan) and seen["fact", "Assigned"],
    Promise.REFUSES: lambda plan, seen: _all_in_step(plan) and seen["event", "AggregationFailed"],
    Promise.TRAINS: lambda _plan, seen: seen["worker", "begins"],
    Promise.MENTIONS: lambda _plan, seen: seen["worker", "beats"],
    Promise.STOPS: lambda _plan, seen: seen["worker", "stopped"],
    Promise.SAVES: lambda _plan, seen: seen["worker", "saves"],
    Promise.RESULTS: lambda _plan, seen: seen["ending", "finished"],
    Promise.TIDY: lambda _plan, _seen: True,
}
"""Only `Happenings` counts these, because a check must not decide that it may look away."""


def check_compared(
    plan: Plan, seen: Happened, comparisons: Comparisons, harmed: Collection[str]
) -> None:
    """Raise Broken for a promise that applies, but that no check compared anything with.

    Experiments that lost files or may fail leave little to compare.
    """
    excused = {name for name, _ in plan.specs} <= plan.may_fail | set(harmed)
    for promise, applies in _APPLIES.items():
        wanted = applies(plan, seen) and not (excused and promise in _OF_THE_WHOLE)
        if wanted and not comparisons.made[promise]:
            raise Broken(promise, "nothing was compared with it")


_OF_THE_WHOLE = {Promise.FINISHES, Promise.RECORDS, Promise.REMEMBERS, Promise.RESULTS}
