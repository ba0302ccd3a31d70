"""What a worker decides: which attempt it is at, what it reports of it, and to which manager.

The manager alone decides what a worker does, so a new task supersedes the one before it. An attempt
is mentioned in heartbeats from its acceptance, although it may have to wait for the one before it
to stop, until the manager has acknowledged its report; only then is the worker free. A
`WorkerNode` holds no clock, thread or socket: `worker/agent.py` and `simulator/worker.py` tell it
what happens and do what it asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from downpour.errors import Refused
from downpour.node.attempt import HeldAttempt
from downpour.node.pace import until_next_beat
from downpour.values import AttemptId, Failure, FailureKind, Progress, Snapshot, Update

_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 1.0
"""Between two tries at a report, at most: the manager that takes over next waits for it."""
_LOOK_AGAIN_SECONDS = 0.25
"""Between heartbeats that are not heard: a manager that was started again learns from them which
workers it can call."""

H = TypeVar("H", bound=HeldAttempt)
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Stop(Generic[H]):
    """Let an attempt end at its next step."""

    held: H


@dataclass(frozen=True, slots=True)
class SaveAndStop(Generic[H]):
    """Let an attempt publish its state at its next step, and end; another worker goes on."""

    held: H


@dataclass(frozen=True, slots=True)
class Register:
    """Register with the manager, which does not know this worker."""


@dataclass(frozen=True, slots=True)
class TryAnotherManager:
    """Speak with another manager from now on, where there may be one."""


Action = Stop[H] | SaveAndStop[H] | Register | TryAnotherManager


@dataclass(frozen=True, slots=True)
class Stopped:
    """An attempt has ended because it was stopped."""


End = Update | Snapshot | Failure | Stopped
"""How an attempt ends: trained, handed over, failed or stopped."""

Report = Update | Snapshot | Failure
"""What the manager hears of that."""


@dataclass(frozen=True, slots=True)
class Beat(Generic[H]):
    """What a heartbeat tells: the attempts that the worker holds, and how far they have come."""

    held: tuple[H, ...]
    running: tuple[Progress, ...]


class WorkerNode(Generic[H]):
    """One life of a worker, from its start until it leaves.

    `H` is what its driver keeps of an attempt. Every method but `leave` runs alone; `leave` may
    come in the middle of another one, because a signal may.

    Args:
        name: what the worker calls itself; the manager may give it another name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.term = 0
        self.patience = 1.0
        self.leaving = False
        self.heartbeat_seconds = 1.0
        self._wanted: H | None = None
        self._running: H | None = None
        self._to_hand_over: AttemptId | None = None
        self._last: H | None = None
        self._draining = False
        self._longest_wait_seconds = _FIRST_WAIT_SECONDS
        self._is_heard = True

    # What it holds

    @property
    def running(self) -> H | None:
        """The attempt that was begun, until its report is acknowledged."""
        return self._running

    @property
    def held(self) -> tuple[H, ...]:
        """What is running and what was accepted last, which may be the same."""
        running, wanted = self._running, self._wanted
        both = running, wanted if wanted is not running else None
        return tuple(held for held in both if held is not None)

    @property
    def attempt(self) -> AttemptId | None:
        """What the worker was asked for last, or is still at."""
        return self.held[-1].attempt if self.held else None

    @property
    def is_done(self) -> bool:
        """Whether it is time to say goodbye: nothing runs, and nothing more will."""
        return self._running is None and (self.leaving or (self._draining and not self._is_next))

    # What the manager asks for

    def met(self, term: int, patience: float, heartbeat_seconds: float) -> None:
        """Take in what the manager says of itself."""
        self.term = max(self.term, term)
        self.patience = patience
        self.heartbeat_seconds = heartbeat_seconds

    def train(self, held: H, term: int) -> list[Action[H]]:
        """Accept an attempt; another one that is running is given up for it.

        A call that is repeated, because its answer was lost, changes nothing.

        Raises:
            Refused: the manager who asks was replaced, perhaps without its knowledge.
        """
        if term < self.term:
            reason = f"is {term}, and {self.name} works for a manager of term {self.term}"
            raise Refused("term", reason)
        if self._wanted is not None and self._wanted.attempt == held.attempt:
            return []
        self._wanted = held
        actions: list[Action[H]] = []
        if self._to_hand_over == held.attempt:
            actions.append(SaveAndStop(held))
        if self._running is not None:
            actions.append(Stop(self._running))
        return actions

    def cancel(self, attempt: AttemptId) -> list[Action[H]]:
        """Stop an attempt at its next step, or forget it where it has not begun."""
        actions: list[Action[H]] = [Stop(held) for held in self.held if held.attempt == attempt]
        if self._wanted is not None and self._wanted.attempt == attempt:
            self._wanted = None
        return actions

    def hand_over(self, attempt: AttemptId) -> list[Action[H]]:
        """Let an attempt stop at its next step, also where it is loading or still to come."""
        self._to_hand_over = attempt
        return [SaveAndStop(held) for held in self.held if held.attempt == attempt]

    def drain(self) -> None:
        """Finish what was accepted so far, then leave."""
        self._draining = True
        self._last = self._wanted

    def leave(self) -> list[Action[H]]:
        """Give up what is running, begin nothing more, and say goodbye."""
        self.leaving = True
        running = self._running
        return [Stop(running)] if running is not None else []

    # From the beginning of an attempt to the end of its report

    def take(self, at_seconds: float) -> H | None:
        """Return the attempt to begin now; None where there is none, or another one runs."""
        wanted = self._wanted if self._is_next else None
        if self._running is not None or wanted is None:
            return None
        wanted.began_at_seconds = at_seconds
        self._longest_wait_seconds = _FIRST_WAIT_SECONDS
        self._running = wanted
        if self.leaving:  # asked last: a signal that comes later finds what it has to stop
            self._running = None
            return None
        return wanted

    def ended(self, end: End) -> Report | None:
        """Take in how the running attempt has ended.

        Returns:
            What to report, until `report_failed` says that it is enough. None where the worker
            leaves: its goodbye hands back what it held, and a report before that would only bring
            it another task. It is free then.
        """
        if not isinstance(end, Stopped):
            return end
        if self.leaving:
            self._free()
            return None
        return Failure(FailureKind.CANCELLED, f"{self.name} handed it back")

    def report_taken(self) -> None:
        """Take in that the manager has acknowledged the report: the worker is free."""
        self._free()

    def report_failed(self, chance: float, *, may_be_heard_later: bool) -> float | None:
        """Take in that the report was not acknowledged.

        Args:
            chance: a random number in 0..1. Workers that lost the same manager at one moment
                would come back to it together.
            may_be_heard_later: whether the same report may be taken later, or elsewhere.

        Returns:
            The seconds until the next try; None where there is to be none, and the worker is free.
        """
        if self.leaving or not may_be_heard_later:
            self._free()
            return None
        longest = self._longest_wait_seconds
        self._longest_wait_seconds = min(2 * longest, _LONGEST_WAIT_SECONDS)
        return chance * longest

    @property
    def _is_next(self) -> bool:
        """Whether what was accepted last is to be begun; not what came after the call to drain."""
        return self._wanted is not None and (not self._draining or self._wanted is self._last)

    def _free(self) -> None:
        running, self._running = self._running, None
        if self._wanted is running:
            self._wanted = None
        if running is not None and self._to_hand_over == running.attempt:
            self._to_hand_over = None

    # The heartbeat

    def until_next_beat(self, at_seconds: float) -> float:
        """Return the seconds until the next heartbeat; to be asked again when an attempt begins."""
        running = self._running
        length = running.expected_seconds(at_seconds) if running is not None else None
        wait = until_next_beat(self.heartbeat_seconds, length)
        return wait if self._is_heard else min(wait, _LOOK_AGAIN_SECONDS)

    def beat(self) -> Beat[H]:
        """Return what a heartbeat tells now."""
        held = self.held
        return Beat(held, tuple(one.progress() for one in held))

    def beat_answered(
        self, beat: Beat[H], *, known: bool, unwanted: Sequence[AttemptId]
    ) -> list[Action[H]]:
        """Take in the answer to a heartbeat: is the worker known, and what should it not run?

        A snapshot is known to a manager that knows the worker and wants the attempt; any other
        one has not taken note of it.
        """
        self._is_heard = True
        for held, progress in zip(beat.held, beat.running, strict=True) if known else ():
            if progress.attempt not in unwanted:
                held.known_snapshot = progress.snapshot
        actions = [action for attempt in unwanted for action in self.cancel(attempt)]
        return actions if known else [*actions, Register()]

    def beat_failed(self, *, unreachable: bool) -> list[Action[H]]:
        """Take in that a heartbeat was not answered.

        A manager that is merely slow is still the leader, so there is no other to look for.
        """
        self._is_heard = False
        return [TryAnotherManager()] if unreachable else []


def next_address(told: P, in_office: Sequence[P], last: P) -> P | None:
    """Return where to look for a manager that did not answer at `last`; None: nowhere else.

    It is by turns the place that was told and those of the leading manager: the first may be a
    name that moves, the others may not be seen from here.
    """
    places = list(dict.fromkeys([told, *in_office]))
    position = places.index(last) if last in places else -1
    following = places[(position + 1) % len(places)]
    return following if following != last else None
