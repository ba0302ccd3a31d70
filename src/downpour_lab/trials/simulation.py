"""Runs one plan to its end, reports whether all checks held, and searches for a seed that fails."""

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import starmap
from random import Random
from threading import get_ident
from typing import Any

from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.stragglers.base import POLICIES
from downpour.files.store import layout
from downpour.record.journal import replay
from downpour.record.record import line_text
from downpour_lab.simulated.disk import Disk
from downpour_lab.simulated.environment import (
    Guessing,
    Observation,
    Observer,
    Stories,
    WorkerAction,
)
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials.checks import (
    CallCheck,
    DurabilityCheck,
    InvariantCheck,
    LeaderCheck,
    ProgressCheck,
    RecordCheck,
    ReplayCheck,
    RetryCheck,
    check_the_end,
)
from downpour_lab.trials.counting_check import CountingCheck
from downpour_lab.trials.plan import Plan, plan_of
from downpour_lab.trials.promises import (
    Broken,
    Comparisons,
    Happening,
    Happenings,
    Promise,
    WorkerCheck,
    catalogue,
)
from downpour_lab.trials.striking import Cluster, ManagerClass

Happened = Counter[Happening]


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
    Promise.APART: lambda _plan, seen: seen["fact", "Assigned"],
    Promise.AUDITS: lambda _plan, seen: seen["fact", "Quarantined"],
    Promise.REFUSES: lambda plan, seen: (
        all(spec.in_step for _, spec in plan.specs) and seen["event", "AggregationFailed"]
    ),
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


_GRACE_SECONDS = 60.0
_FAULT_GRACE_SECONDS = 45.0
_TASK_GRACE = 8.0
"""A run must end in this many times what its tasks take in sequence, plus the graces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run; `failure` is the first failed check, if any; `seconds` are virtual.

    `broken` is the promise that the run broke, if that was the failure. `compared` counts the
    comparisons with each promise, `happened` the events that the run has shown. Runs of one plan
    have the same `digest`, which covers everything that they did and when. `records` are the lines
    of each experiment's record, if the caller wants them.
    """

    plan: Plan
    failure: str
    seconds: float
    steps: int
    story: tuple[str, ...]
    broken: Promise | None = None
    compared: Mapping[Promise, int] = field(default_factory=dict)
    happened: Mapping[Happening, int] = field(default_factory=dict)
    digest: str = ""
    records: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def simulate(
    plan: Plan,
    manager_class: ManagerClass = SimulatedManager,
    *,
    story: bool = False,
    records: bool = False,
    **defects: Any,
) -> Outcome:
    """Run a plan to its end, or to the first check that fails; for `defects` see `Cluster`."""
    run = _Run(plan, manager_class, defects, told_in_full=story)
    failure, broken = "", None
    try:
        with _quiet():
            run.to_its_end()
    except Broken as error:
        failure, broken = str(error), error.promise
    except Exception as error:  # noqa: BLE001 - any exception in a run is a finding
        failure = f"{type(error).__name__}: {error}"
    finally:
        run.cluster.clock.end()
    if failure:
        run.tell(failure)
    return Outcome(
        plan=plan,
        failure=failure,
        seconds=run.cluster.clock.now_seconds,
        steps=run.cluster.clock.steps,
        story=tuple(run.story),
        broken=broken,
        compared=run.comparisons.made,
        happened=run.happenings.counted,
        digest=run.cluster.clock.digest,
        records=run.records() if records else {},
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the managers and workers of this thread, whose faults are the run's."""
    thread = get_ident()

    def is_foreign(_: logging.LogRecord) -> bool:
        return get_ident() != thread

    with ExitStack() as filters:
        for name in list(logging.Logger.manager.loggerDict):
            if name.startswith("downpour."):
                logging.getLogger(name).addFilter(is_foreign)
                filters.callback(logging.getLogger(name).removeFilter, is_foreign)
        yield


class _Run:
    """A run: its cluster, its observers and its story."""

    def __init__(
        self,
        plan: Plan,
        manager_class: ManagerClass,
        defects: dict[str, Any],
        *,
        told_in_full: bool,
    ) -> None:
        self.story: list[str] = []
        self.comparisons = Comparisons()
        self.happenings = Happenings()
        self._plan = plan
        self._told_in_full = told_in_full
        watched = any(POLICIES[spec.policy].watches for _, spec in plan.specs)
        random = Random(plan.seed)
        self.cluster = Cluster(
            plan,
            self._watch,
            self.tell,
            manager_class,
            predictor=(lambda: Guessing(random)) if watched else None,
            **defects,
        )
        self.happenings.drawn(plan)
        self.cluster.report_to(self.happenings)

    def tell(self, line: str) -> None:
        self.story.append(f"{self.cluster.clock.now_seconds:8.3f}  {line}")

    def records(self) -> dict[str, tuple[str, ...]]:
        disk = self.cluster.disk
        names = [name for name, _ in self._plan.specs if name not in disk.harmed]
        return {name: tuple(starmap(line_text, disk.record(name))) for name in names}

    def _watch(self, disk: Disk) -> Observer:
        made = self.comparisons
        self._counting = CountingCheck(made, disk, dict(self._plan.specs))
        self._records = RecordCheck(made, disk)
        self._ending = _Ending(disk)
        observers: list[Observer] = [
            # This comes first, so that an event counts even if a check fails on it.
            self.happenings,
            InvariantCheck(made),
            self._counting,
            ReplayCheck(made),
            self._records,
            DurabilityCheck(made, disk),
            LeaderCheck(made, disk),
            CallCheck(made),
            ProgressCheck(made),
            WorkerCheck(made),
            self._ending,
        ]
        if self._plan.only_managers_end:
            observers.append(RetryCheck(made))
        if self._told_in_full:
            observers.insert(0, _Narrator(self.tell))
        return _All(observers)

    def to_its_end(self) -> None:
        """Run until all experiments have ended; raise AssertionError if a check fails."""
        clock, disk, made = self.cluster.clock, self.cluster.disk, self.comparisons
        all_tasks = self._plan.tasks * self._plan.timings.task_seconds
        grace = _GRACE_SECONDS + _FAULT_GRACE_SECONDS * len(self._plan.faults)
        limit = self._plan.calm_at_seconds + grace + _TASK_GRACE * all_tasks
        self.cluster.begin()
        while len(self._ending.ended) < len(self._plan.specs):
            clock.step()
            if self.comparisons.broken is not None:
                raise self.comparisons.broken
            if clock.now_seconds > limit:
                wrong = "nothing has gone wrong for long, and the run does not end"
                raise Broken(Promise.ENDS, wrong)
        self.comparisons.expect(Promise.ENDS, True, "")  # noqa: FBT003
        # We use only the journals: the last manager may be dead, or believe entries that were lost.
        core = Scheduler()
        replay(core, disk.stories())
        may_fail = self._plan.may_fail | disk.harmed
        check_the_end(made, disk, core, self._counting, may_fail)
        self.tell("all experiments have ended")
        known = core.state.experiments
        self._tidy_up(limit, {file.name for each in known.values() for file in each.files()})
        whole = [name for name in known if name not in disk.harmed]
        for name, lines in self.happenings.recorded(disk, whole):
            self._records.check_end(name, known[name].version, lines)
        check_compared(self._plan, self.happenings.counted, made, disk.harmed)

    def _tidy_up(self, limit_seconds: float, kept: Collection[str]) -> None:
        """Let the last commands end; raise AssertionError if files are left over."""
        clock, disk = self.cluster.clock, self.cluster.disk
        stores = [disk.store(name) for name, _ in self._plan.specs if name not in disk.harmed]
        limit_seconds = max(limit_seconds, clock.now_seconds + _GRACE_SECONDS)
        while left := [
            name
            for one in stores
            for name in one.list()
            if layout.is_in_flight(name) and name not in kept and not disk.may_stay(name)
        ]:
            clock.step()
            if clock.now_seconds > limit_seconds:
                raise Broken(Promise.TIDY, f"{left} are left over")
        self.comparisons.expect(Promise.TIDY, True, "")  # noqa: FBT003


class _All(Observer):
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._onlookers = observers

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        for observer in self._onlookers:
            observer.recovered(core, stories)

    def handled(self, step: Observation) -> None:
        for observer in self._onlookers:
            observer.handled(step)

    def acting(self, step: Observation) -> None:
        for observer in self._onlookers:
            observer.acting(step)

    def working(self, happened: WorkerAction) -> None:
        for observer in self._onlookers:
            observer.working(happened)


class _Ending(Observer):
    """Notes which experiments have ended."""

    def __init__(self, disk: Disk) -> None:
        self.ended: set[str] = set()
        self._disk = disk

    def recovered(self, core: Scheduler, stories: Stories) -> None:  # noqa: ARG002
        ended = {name for name, one in core.state.experiments.items() if one.life.state.ended}
        left_out = self._disk.harmed - set(core.state.experiments)
        self.ended = ended | left_out

    def acting(self, step: Observation) -> None:
        self.ended |= {
            fact.experiment for fact in step.output.facts if isinstance(fact, out.Concluded)
        }


class _Narrator(Observer):
    """Adds the managers' decisions to the story."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def acting(self, step: Observation) -> None:
        for each in (step.event, *step.output.facts, *step.output.commands):
            if line := _told(each):
                self._tell(line)


def _told(happened: on.Event | out.Fact | out.Command) -> str:
    match happened:
        case on.WorkerJoined():
            running = f", running {happened.running}" if happened.running else ""
            told = f"{happened.worker} joins{running}"
        case on.Aggregated():
            told = f"round {happened.round} of {happened.experiment} is {happened.model.name}"
        case on.AggregationFailed():
            told = f"round {happened.round} of {happened.experiment}: updates are refused"
        case out.Accepted():
            told = f"{happened.worker} has trained {happened.attempt}"
        case out.GivenUp():
            told = f"{happened.attempt} is given up: {happened.reason}"
        case out.Concluded():
            told = f"{happened.experiment} is {happened.ending}: {happened.reason}"
        case out.Assign():
            told = f"{happened.assigned.worker} is asked for {happened.assigned.attempt}"
        case _:
            told = ""
    return told


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


_EVERY = 100
"""One of this many seeds runs twice."""
_OTHER_HASHES = "20121026"


def different(outcomes: Sequence[Outcome]) -> list[int]:
    """Return the seeds whose second run differs from the first.

    The second run is in another process, because earlier runs must not change what a seed gives.
    That process hashes text differently, so an order that comes from a set shows. It has run no
    other seeds, so anything that one run leaves behind for the next shows as well.
    """
    if not outcomes:
        return []
    digests = _digests_elsewhere([outcome.plan.seed for outcome in outcomes])
    return [
        outcome.plan.seed
        for outcome, digest in zip(outcomes, digests, strict=True)
        if outcome.digest != digest
    ]


def _digests_elsewhere(seeds: Sequence[int]) -> list[str]:
    words = [sys.executable, "-m", __name__, *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": _OTHER_HASHES, "PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run(  # noqa: S603 - this interpreter, with numbers
        words, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return told.stdout.split()


if __name__ == "__main__":
    for word in sys.argv[1:]:
        print(simulate(plan_of(int(word))).digest)  # noqa: T201 - the other process reads it


class RunsTally:
    """Adds outcomes up; `to_repeat` are the outcomes whose seeds run a second time."""

    def __init__(self) -> None:
        self.runs = self.steps = 0
        self.virtual_seconds = 0.0
        self.compared: Counter[Promise] = Counter()
        self.happened: Counter[Happening] = Counter()
        self.to_repeat: list[Outcome] = []

    def take(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs += 1
        self.steps += outcome.steps
        self.virtual_seconds += outcome.seconds
        self.compared.update(outcome.compared)
        self.happened.update(outcome.happened)
        if outcome.plan.seed % _EVERY == 0:
            self.to_repeat.append(outcome)

    def never(self) -> dict[str, list[str]]:
        """Return, by group, what happened in no run."""
        missing: dict[str, list[str]] = {}
        for group, name in catalogue():
            if not self.happened[group, name]:
                missing.setdefault(group, []).append(name)
        return missing
