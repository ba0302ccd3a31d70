"""A cluster's promises under any faults, and the events that a run must show.

We count each comparison of a run with a promise, so a run that ends well can show that it has
compared something. For each promise, `tests/downpour_lab/trials/planted.py` plants a defect that
breaks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, get_args

from downpour.base.family import Family
from downpour.base.states import ExperimentState, FailureKind
from downpour.core import families
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from downpour.network.rpc.services import kinds_of_refusals, messages
from downpour.record.record_lines import KINDS, RecordLine, kind_of
from downpour.record.view import View
from downpour_lab.faults.faults import Fault, FaultKind
from downpour_lab.faults.plan import Plan
from downpour_lab.simulated.disk import DAMAGES, ERRORS, OPERATIONS, Disk
from downpour_lab.simulated.environment import Observation, Observer, Stories, What, WorkerAction
from downpour_lab.simulated.manager import DEATH_POINTS
from downpour_lab.simulated.network import DIRECTIONS
from downpour_lab.simulated.training import PHASES


class Promise(StrEnum):
    """A promise; the value is its text in a failure."""

    ENDS = "every experiment ends"
    FINISHES = "an experiment that may not fail finishes"
    CONSISTENT = "the scheduler's state holds its invariants"
    REPLAYS = "the journal gives the state that it was written in"
    RECORDS = "the record tells of each version once, in order"
    REMEMBERS = "the journals hold all that a manager acted on or acknowledged"
    LEADS = "one manager leads at a time"
    REGISTERED = "only workers that have registered are asked"
    PLACES = "a shard goes only to workers that have what it needs"
    BLAMELESS = "the end of a manager costs no shard a retry"
    PROGRESS = "an attempt that got further costs its task no retry"
    OWN = "a manager takes up only experiments submitted to it"
    ONCE = "every shard counts once in a round"
    FOLDS = "a version holds the updates that count, in order"
    BYTES = "files hold what a run without faults makes"
    APART = "shards are no further apart, and wait no shorter, than their mode says"
    REFUSES = "no update is refused that is whole"
    TRAINS = "a worker trains what it was asked for last, alone and to its end"
    MENTIONS = "heartbeats mention all that a worker holds"
    STOPS = "a worker stops the tasks that its manager names, and no others"
    SAVES = "a worker saves its steps where that is of use, and only there"
    RESULTS = "the result is the last version, and the best one is kept"
    TIDY = "no file is left over"


class Broken(AssertionError):
    """A run broke a promise."""

    def __init__(self, promise: Promise, sentence: str) -> None:
        super().__init__(f"{promise}: {sentence}")
        self.promise = promise


Expect = Callable[[bool, str], None]
"""Compares: takes whether something holds, and the sentence to report if it does not."""


class Comparisons:
    """Counts the comparisons that a run has made with each promise."""

    def __init__(self) -> None:
        self.made: Counter[Promise] = Counter()
        self.broken: Broken | None = None

    def expect(self, promise: Promise, holds: bool, sentence: str) -> None:  # noqa: FBT001
        """Compare; raises Broken with the sentence if the run breaks the promise."""
        self.made[promise] += 1
        if not holds:
            # The code that ships may catch it in one of a process's threads.
            self.broken = self.broken or Broken(promise, sentence)
            raise self.broken

    def of(self, promise: Promise) -> Expect:
        """Return a function that compares with one promise."""
        return partial(self.expect, promise)


Happening = tuple[str, str]
"""A group, such as "fact", and a name in it."""

_FAMILIES: Mapping[str, tuple[Family, Callable[[ResolvedSpec], str]]] = {
    "mode": (families.MODES, lambda spec: spec.mode),
    "policy": (families.POLICIES, lambda spec: spec.policy),
    "split": (families.SPLITTERS, lambda spec: spec.split.partition("(")[0]),
    "aggregator": (families.AGGREGATORS, lambda spec: spec.aggregate),
    "codec": (families.CODECS, lambda spec: spec.compression),
}
_VARIANTS: Mapping[FaultKind, Iterable[str]] = {
    FaultKind.MANAGER_DIES_AT: DEATH_POINTS,
    FaultKind.WORKER_DIES_AT: PHASES,
    FaultKind.DAMAGED_MEANWHILE: DAMAGES,
    FaultKind.MANAGER_HALF_CUT_OFF: DIRECTIONS,
    FaultKind.WORKER_HALF_CUT_OFF: DIRECTIONS,
    FaultKind.DISK_REFUSES: [f"{error} {each}" for error in ERRORS for each in OPERATIONS],
}


def catalogue() -> list[Happening]:
    """Return all that can happen; messages are "manager.heartbeat" or "worker.train"."""
    named: dict[str, Iterable[str]] = {
        "event": _types(on.Event),
        "fact": _types(out.Fact),
        "command": _types(out.Command),
        "line of the record": KINDS,
        "failure": FailureKind,
        "ending": [state for state in ExperimentState if state.ended],
        "worker": get_args(What),
        "fault": FaultKind,
        "variant": [f"{kind}: {each}" for kind, of in _VARIANTS.items() for each in of],
        "message": messages(),
        "refusal": kinds_of_refusals(),
    }
    named |= {group: family.built_in for group, (family, _) in _FAMILIES.items()}
    return [(group, str(name)) for group, names in named.items() for name in names]


class Happenings(Observer):
    """Counts what happens in one run.

    A check is only worth what it sees, so we name what no run has shown. We read from the code all
    that can happen: the closed lists of events, facts, commands and lines of the record, and the
    kinds of faults, failures, messages and refusals. We also read the families that a spec can
    name. So a new member counts as missing until a seed has shown it.
    """

    def __init__(self) -> None:
        self.counted: Counter[Happening] = Counter()

    def drawn(self, plan: Plan) -> None:
        """Count the modes, policies and other families in a plan's experiments."""
        for _, spec in plan.specs:
            for group, (_, of) in _FAMILIES.items():
                self.counted[group, of(spec)] += 1

    def struck(self, fault: Fault) -> None:
        """Count a fault that has found its target, and count its variant."""
        self.counted["fault", fault.kind] += 1
        words = fault.detail.partition(" of ")[0]
        if fault.kind is FaultKind.DISK_REFUSES:
            words = " ".join(fault.detail.split()[:2])
        if fault.kind in _VARIANTS:
            self.counted["variant", f"{fault.kind}: {words}"] += 1

    def carried(self, message: str) -> None:
        """Count a message that has arrived."""
        self.counted["message", message] += 1

    def refused(self, kind: str) -> None:
        """Count a refused call."""
        self.counted["refusal", kind] += 1

    def recovered(self, core: Scheduler, stories: Stories) -> None:  # noqa: ARG002
        """Count managers that begin, and managers that find journals to continue."""
        self.counted["manager", "begins"] += 1
        self.counted["manager", "goes on"] += bool(stories)

    def handled(self, step: Observation) -> None:
        """Count an event and its results."""
        self.counted["event", type(step.event).__name__] += 1
        if isinstance(step.event, on.AttemptFailed):
            self.counted["failure", step.event.failure] += 1
        for each in step.output.commands:
            self.counted["command", type(each).__name__] += 1
        for fact in step.output.facts:
            self.counted["fact", type(fact).__name__] += 1
            if isinstance(fact, out.GivenUp):
                self.counted["failure", fact.failure] += 1
            elif isinstance(fact, out.Concluded):
                self.counted["ending", fact.ending] += 1

    def working(self, happened: WorkerAction) -> None:
        """Count a worker's action."""
        self.counted["worker", happened.what] += 1

    def recorded(
        self, disk: Disk, experiments: Iterable[str]
    ) -> Iterator[tuple[str, list[RecordLine]]]:
        """Project the records of experiments, and count their lines."""
        for name in experiments:
            view = View()
            lines = [line for each in disk.journal(name) for _, line in view.take(each)]
            for line in lines:
                self.counted["line of the record", kind_of(line)] += 1
            yield name, lines


def _types(union: Any) -> list[str]:
    return [each.__name__ for each in get_args(union)]
