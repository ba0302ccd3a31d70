"""A cluster's promises under any faults, and the events that a run must show.

We count each comparison of a run with a promise, so a run that ends well can show that it has
compared something. For each promise, `tests/downpour_lab/trials/planted.py` plants a defect that
breaks it. `WorkerCheck` compares a worker's duties to its managers, by its visible actions alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, get_args

from downpour.base.names import Family
from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import AttemptId
from downpour.core import families
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from downpour.network.rpc.messages import messages
from downpour.network.rpc.wire import kinds_of_refusals
from downpour.record.record_lines import KINDS, RecordLine, kind_of
from downpour_lab.simulated.disk import Disk
from downpour_lab.simulated.environment import Observation, Observer, Stories, What, WorkerAction
from downpour_lab.trials.faults import VARIANTS, Fault, FaultKind
from downpour_lab.trials.plan import Plan


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
    AUDITS = "no audit confirms a wrong update, or accuses a worker that computes right"
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
    "aggregator": (families.AGGREGATORS, lambda spec: spec.aggregate.partition("(")[0]),
    "codec": (families.CODECS, lambda spec: spec.compression),
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
        "variant": [f"{kind}: {each}" for kind, of in VARIANTS.items() for each in of],
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
        if fault.kind in VARIANTS:
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
            lines = [line for _, line in disk.record(name)]
            for line in lines:
                self.counted["line of the record", kind_of(line)] += 1
            yield name, lines


def _types(union: Any) -> list[str]:
    return [each.__name__ for each in get_args(union)]


_STEP_SECONDS = 0.1
"""The time that a worker has to stop an attempt, unless its training ends earlier."""


@dataclass(slots=True, eq=False)
class _Asked:
    """An attempt that a manager asked a worker for; if it asks again, that is another object.

    `save_with_left` is how many steps were left when the manager asked for the attempt's state, or
    None if it did not ask. If the attempt is `trained`, it has an update to publish and no state.
    A snapshot is `unheard` until the manager has answered a heartbeat that could mention it.
    """

    attempt: AttemptId
    told_to_stop_at: float | None = None
    save_with_left: int | None = None
    trained: bool = False
    unheard: bool = False
    mentioned: bool = False


@dataclass(slots=True)
class _Seen:
    """The facts about a worker: the latest attempt asked of it, and the attempt it has begun.

    If it `drains`, it begins only the `last` attempt that came before the order to drain.
    """

    term: int = 0
    latest: _Asked | None = None
    begun: _Asked | None = None
    last: _Asked | None = None
    leaves: bool = False
    drains: bool = False


class WorkerCheck(Observer):
    """A worker begins only the attempt it was last asked for, and holds it until its report."""

    def __init__(self, comparisons: Comparisons) -> None:
        self._trains = comparisons.of(Promise.TRAINS)
        self._mentions = comparisons.of(Promise.MENTIONS)
        self._ends = comparisons.of(Promise.STOPS)
        self._keeps = comparisons.of(Promise.SAVES)
        self._seen: dict[object, _Seen] = {}

    def working(self, happened: WorkerAction) -> None:
        """Compare an action of a worker with its orders."""
        seen = self._seen.setdefault(happened.worker, _Seen())
        self._hears(seen, happened)
        self._acts(seen, happened)

    def _hears(self, seen: _Seen, happened: WorkerAction) -> None:
        match happened.what:
            case "met":
                seen.term = max(seen.term, happened.term)
            case "asked":
                self._asked(seen, happened)
            case "cancelled":
                self._cancelled(seen, happened)
            case "to hand over":
                self._to_save(seen.begun, happened)
            case "drains":
                seen.last, seen.drains = seen.latest, True
            case "leaves":
                seen.leaves = True
                self._to_save(seen.begun, happened)
            case "heard" if seen.begun is not None:
                seen.begun.unheard = seen.begun.unheard and not seen.begun.mentioned

    def _acts(self, seen: _Seen, happened: WorkerAction) -> None:
        match happened.what:
            case "begins":
                self._begins(seen, happened.attempts[0])
            case "saves" | "saved" if seen.begun is not None:
                self._saves(seen.begun, happened)
            case "stopped":
                self._stopped(seen, happened)
            case "trained":
                self._trained(seen, happened)
            case "free":
                seen.latest = None if seen.latest is seen.begun else seen.latest
                seen.begun = None
            case "beats":
                self._beats(seen, happened)

    def _asked(self, seen: _Seen, happened: WorkerAction) -> None:
        [attempt] = happened.attempts
        repeated = seen.latest is not None and seen.latest.attempt == attempt
        if happened.term < seen.term or repeated:
            return
        seen.latest = _Asked(attempt)
        self._stop(seen.begun, happened)

    def _cancelled(self, seen: _Seen, happened: WorkerAction) -> None:
        [attempt] = happened.attempts
        if seen.latest is not None and seen.latest.attempt == attempt:
            self._stop(seen.latest, happened)
            seen.latest = None
        if seen.begun is not None and seen.begun.attempt == attempt:
            self._stop(seen.begun, happened)

    def _stop(self, asked: _Asked | None, happened: WorkerAction) -> None:
        if asked is not None and asked.told_to_stop_at is None:
            asked.told_to_stop_at = happened.at_seconds

    def _begins(self, seen: _Seen, attempt: AttemptId) -> None:
        self._trains(
            seen.begun is None, f"{attempt} is begun before the one before it was reported"
        )
        wanted = seen.latest is not None and seen.latest.attempt == attempt
        self._trains(wanted, f"{attempt} is begun, and was not asked for last")
        late = seen.drains and seen.latest is not seen.last
        self._trains(not late, f"{attempt} is begun, though it came after the call to drain")
        seen.begun = seen.latest

    def _to_save(self, asked: _Asked | None, happened: WorkerAction) -> None:
        """Note that a manager wants the attempt's state, unless it was to stop, or has ended."""
        wanted = asked is not None and asked.told_to_stop_at is None and not asked.trained
        if asked is not None and wanted and asked.attempt in happened.attempts:
            asked.save_with_left = happened.steps_left

    def _saves(self, begun: _Asked, happened: WorkerAction) -> None:
        if happened.what == "saved":
            begun.unheard, begun.mentioned = True, False
            return
        [attempt] = happened.attempts
        self._keeps(begun.told_to_stop_at is None, f"{attempt} is saved, though it is to stop")
        asked_for = begun.save_with_left is not None
        self._keeps(
            asked_for or not begun.unheard,
            f"{attempt} saves a snapshot before its manager has heard of the last one",
        )
        begun.save_with_left = None

    def _beats(self, seen: _Seen, happened: WorkerAction) -> None:
        held = {one.attempt for one in (seen.latest, seen.begun) if one is not None}
        missing = held - set(happened.attempts)
        attempts = ", ".join(map(str, sorted(missing)))
        self._mentions(not missing, f"{attempts}: held, and not mentioned")
        if seen.begun is not None:
            seen.begun.mentioned = seen.begun.unheard

    def _stopped(self, seen: _Seen, happened: WorkerAction) -> None:
        [attempt] = happened.attempts
        told = seen.begun is not None and seen.begun.told_to_stop_at is not None
        self._ends(told or seen.leaves, f"{attempt} is stopped without being asked to")
        unsaved = seen.begun is not None and seen.begun.save_with_left is not None
        lost = not told and unsaved and happened.own_steps > 0
        self._keeps(not lost, f"{attempt} is stopped, and its steps are not saved")

    def _trained(self, seen: _Seen, happened: WorkerAction) -> None:
        [attempt] = happened.attempts
        self._trains(not happened.steps_left, f"{attempt} ends before its last step")
        if seen.begun is None:
            return
        told_at, left = seen.begun.told_to_stop_at, seen.begun.save_with_left
        late = told_at is not None and happened.at_seconds > told_at + _STEP_SECONDS
        self._ends(not late, f"{attempt} is trained on, though it is to stop")
        self._keeps(left is None or left <= 1, f"{attempt} is trained on, though it is to be saved")
        seen.begun.save_with_left, seen.begun.trained = None, True
