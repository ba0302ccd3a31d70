"""A worker's decisions: the attempt to train, the reports to send, and the manager to send them to.

The manager alone decides what a worker does, so a new task supersedes the one before it. Heartbeats
mention an attempt from its acceptance to the acknowledgement of its report, although it may first
wait until the previous one stops. Only then is the worker free. A `WorkerNode` holds no clock,
thread or socket: `cluster/worker/agent.py` and `virtual/simulated/worker.py` tell it what happens
and carry out the actions that it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from downpour.base.errors import Refused
from downpour.base.states import Failure, FailureKind
from downpour.base.values import AttemptId, Progress, Snapshot, Update
from downpour.core.node.attempt import HeldAttempt
from downpour.core.node.pace import until_next_beat

_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 1.0
"""The longest wait between two tries at a report: a manager that takes over waits for it."""
_LOOK_AGAIN_SECONDS = 0.25
"""Between heartbeats while the last one has no answer: so a restarted manager finds its workers."""

H = TypeVar("H", bound=HeldAttempt)
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Stop(Generic[H]):
    """Stop an attempt at its next step."""

    held: H


@dataclass(frozen=True, slots=True)
class SaveAndStop(Generic[H]):
    """Publish an attempt's state at its next step, then stop it; another worker goes on from it."""

    held: H


@dataclass(frozen=True, slots=True)
class SaveOrStop(Generic[H]):
    """Save and stop an attempt if it has done steps that can be saved; else stop it."""

    held: H


@dataclass(frozen=True, slots=True)
class Register:
    """Register with the manager, which does not know this worker."""


@dataclass(frozen=True, slots=True)
class TryAnotherManager:
    """Call another manager from now on, if there may be one."""


Action = Stop[H] | SaveAndStop[H] | SaveOrStop[H] | Register | TryAnotherManager


@dataclass(frozen=True, slots=True)
class Stopped:
    """An attempt has ended because it was stopped."""


End = Update | Snapshot | Failure | Stopped
"""How an attempt ends: trained, handed over, failed or stopped."""

Report = Update | Snapshot | Failure
"""The ends that the manager must hear of."""


@dataclass(frozen=True, slots=True)
class Beat(Generic[H]):
    """The content of a heartbeat: the attempts that the worker holds, and the progress of each."""

    held: tuple[H, ...]
    running: tuple[Progress, ...]


class WorkerNode(Generic[H]):
    """One worker process, from its start until it leaves.

    `H` is the driver's type of an attempt. No two methods run at the same time, except that `leave`
    may interrupt any other one, because a signal handler calls it.

    Args:
        name: what the worker calls itself; the manager may register it under another name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.term = 0
        self.patience = 1.0
        self.leaving = False
        self.heartbeat_seconds = 1.0
        self._interval_seconds = 0.0
        self._wanted: H | None = None
        self._running: H | None = None
        self._to_hand_over: AttemptId | None = None
        self._last: H | None = None
        self._draining = False
        self._longest_wait_seconds = _FIRST_WAIT_SECONDS
        self._is_heard = True

    # The attempts that it holds

    @property
    def running(self) -> H | None:
        """The attempt that has begun, until its report is acknowledged."""
        return self._running

    @property
    def held(self) -> tuple[H, ...]:
        """The running attempt and the one accepted last, which may be the same."""
        # The accepted one as well. Otherwise a manager assumed that a worker in its import of torch
        # had never received its attempt, and on busy machines every first task was lost.
        running, wanted = self._running, self._wanted
        # The accepted one last: the worker registers with it, because the manager wants it.
        both = running, wanted if wanted is not running else None
        return tuple(held for held in both if held is not None)

    @property
    def attempt(self) -> AttemptId | None:
        """The attempt that the worker was asked for last, or still trains."""
        return self.held[-1].attempt if self.held else None

    @property
    def is_done(self) -> bool:
        """Whether the worker may leave: no attempt runs, and none will begin."""
        return self._running is None and (self.leaving or (self._draining and not self._is_next))

    # What the manager asks for

    def met(self, term: int, patience: float, heartbeat_seconds: float) -> None:
        """Take in what the manager says about itself."""
        # Never lower, because a manager that was replaced may answer after its successor.
        self.term = max(self.term, term)
        self.patience = patience
        self.heartbeat_seconds = heartbeat_seconds

    def train(self, held: H, term: int) -> list[Action[H]]:
        """Accept an attempt; one that is running is stopped for it.

        A call that is repeated because its answer was lost changes nothing.

        Raises:
            Refused: the calling manager was replaced, and may not know it.
        """
        if term < self.term:
            reason = f"is {term}, and {self.name} works for a manager of term {self.term}"
            raise Refused("term", reason)
        wanted = self._wanted
        if wanted and (wanted.attempt, wanted.part) == (held.attempt, held.part):
            return []
        self._wanted = held
        actions: list[Action[H]] = []
        # The attempt may be asked for again while it is being stopped: it is then a new object,
        # which does not know that it was to be handed over.
        if self._to_hand_over == held.attempt:
            actions.append(SaveAndStop(held))
        if self._running is not None:
            actions.append(Stop(self._running))
        return actions

    def cancel(self, attempt: AttemptId) -> list[Action[H]]:
        """Stop an attempt at its next step, or forget it if it has not begun."""
        actions: list[Action[H]] = [Stop(held) for held in self.held if held.attempt == attempt]
        if self._wanted is not None and self._wanted.attempt == attempt:
            self._wanted = None
        return actions

    def hand_over(self, attempt: AttemptId) -> list[Action[H]]:
        """Save and stop an attempt at its next step, even if it is loading or not accepted yet."""
        self._to_hand_over = attempt
        return [SaveAndStop(held) for held in self.held if held.attempt == attempt]

    def drain(self) -> None:
        """Finish the attempts accepted so far, then leave."""
        self._draining = True
        # A task that a manager assigns after this would never end the draining.
        self._last = self._wanted

    def leave(self) -> list[Action[H]]:
        """Save and stop the running attempt, begin no other one, and leave."""
        self.leaving = True
        running = self._running
        return [SaveOrStop(running)] if running is not None else []

    # From the beginning of an attempt to the end of its report

    def take(self, at_seconds: float) -> H | None:
        """Return the attempt to begin now; None if there is none, or another one runs."""
        wanted = self._wanted if self._is_next else None
        if self._running is not None or wanted is None:
            return None
        wanted.began_at_seconds = at_seconds
        self._longest_wait_seconds = _FIRST_WAIT_SECONDS
        self._running = wanted
        if self.leaving:  # checked last, so that a later signal finds the attempt that it must stop
            self._running = None
            return None
        return wanted

    def ended(self, end: End) -> Report | None:
        """Take in how the running attempt has ended.

        Returns:
            What to report, until `report_taken` or a `report_failed` that returns None. None if the
            worker leaves, and is free then: its goodbye gives back the attempt, and a report before
            that would only bring it another task.
        """
        if not isinstance(end, Stopped):
            return end
        if self.leaving:
            self._free()
            return None
        return Failure(FailureKind.CANCELLED, f"{self.name} handed it back")

    def report_taken(self) -> None:
        """Note that the manager has acknowledged the report: the worker is free."""
        self._free()

    def report_failed(self, chance: float, *, may_be_heard_later: bool) -> float | None:
        """Note that the report was not acknowledged.

        Args:
            chance: a random number in 0..1, because workers that lost the same manager at one
                moment would otherwise come back to it together.
            may_be_heard_later: whether the report may be accepted later, or by another manager.

        Returns:
            The seconds until the next try; None if there is to be none, and the worker is free.
        """
        if self.leaving or not may_be_heard_later:
            self._free()
            return None
        # Twice as long each time, because a manager that comes back has all its workers to answer.
        longest = self._longest_wait_seconds
        self._longest_wait_seconds = min(2 * longest, _LONGEST_WAIT_SECONDS)
        return chance * longest

    @property
    def _is_next(self) -> bool:
        """Whether the attempt accepted last may begin; not if it came after the call to drain."""
        return self._wanted is not None and (not self._draining or self._wanted is self._last)

    def _free(self) -> None:
        running, self._running = self._running, None
        # Another attempt may have been accepted meanwhile: it begins next.
        if self._wanted is running:
            self._wanted = None
        if running is not None and self._to_hand_over == running.attempt:
            self._to_hand_over = None

    # The heartbeat

    def until_next_beat(self, at_seconds: float) -> float:
        """Return the seconds until the next heartbeat; it changes when an attempt begins."""
        running = self._running
        length = running.expected_seconds(at_seconds) if running is not None else None
        wait = until_next_beat(self.heartbeat_seconds, length, self._interval_seconds)
        # A manager that restarts can call no worker before it has heard from it.
        return wait if self._is_heard else min(wait, _LOOK_AGAIN_SECONDS)

    def beat(self) -> Beat[H]:
        """Return what a heartbeat says now."""
        held = self.held
        return Beat(held, tuple(one.progress() for one in held))

    def beat_answered(
        self,
        beat: Beat[H],
        *,
        known: bool,
        unwanted: Sequence[AttemptId],
        interval_seconds: float = 0.0,
    ) -> list[Action[H]]:
        """Take in the answer to a heartbeat: is the worker known, and what should it not run?

        The next heartbeat follows after `interval_seconds` or more.
        Only a manager that knows the worker and wants the attempt has taken note of its snapshot.
        """
        self._is_heard = True
        self._interval_seconds = interval_seconds
        # A manager that does not know the worker has not taken in the rest of its heartbeat.
        # And by the progress that was sent, because the worker may have saved again meanwhile.
        for held, progress in zip(beat.held, beat.running, strict=True) if known else ():
            if progress.attempt not in unwanted:
                held.known_snapshot = progress.snapshot
        actions = [action for attempt in unwanted for action in self.cancel(attempt)]
        return actions if known else [*actions, Register()]

    def beat_failed(self, *, unreachable: bool) -> list[Action[H]]:
        """Note that a heartbeat was not answered.

        A manager that is only slow still leads, so the worker looks for another one only if this
        one cannot be reached.
        """
        self._is_heard = False
        return [TryAnotherManager()] if unreachable else []


def next_address(given: P, of_leader: Sequence[P], last: P) -> P | None:
    """Return the address to try after no manager answered at `last`; None if there is no other.

    The address that the user has given and those of the leading manager take turns. The first may
    be a name that moves to another machine; the others may not be reachable from here.
    """
    addresses = list(dict.fromkeys([given, *of_leader]))
    position = addresses.index(last) if last in addresses else -1
    following = addresses[(position + 1) % len(addresses)]
    return following if following != last else None
