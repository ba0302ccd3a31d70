"""A worker's decisions: the attempt to train, the reports to send, and the manager to send them to.

The manager alone decides what a worker does, so a new task supersedes the one before it. Heartbeats
mention an attempt from its acceptance until the manager acknowledges its report, even while it
waits for the previous attempt to stop. After the acknowledgement, the worker is free. A
`WorkerNode` holds no clock, thread or socket: `cluster/worker/agent.py` tells it what happens and
carries out the actions that it returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from downpour.base.errors import Refused
from downpour.base.states import Failure, FailureKind
from downpour.base.values import AttemptId, Progress, Snapshot, Update
from downpour.core.node.attempt import HeldAttempt, until_next_beat

_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 1.0
"""The longest wait between two tries to report: a manager that takes over waits for the report."""
_LOOK_AGAIN_SECONDS = 0.25
"""The wait after an unanswered heartbeat, so that a restarted manager finds its workers soon."""

H = TypeVar("H", bound=HeldAttempt)
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Stop(Generic[H]):
    """Ask an attempt to end: `stop`, `save_and_stop` or `save_or_stop` of `HeldAttempt`."""

    held: H
    ask: Callable[[HeldAttempt], None]


@dataclass(frozen=True, slots=True)
class Register:
    """Register with the manager, which does not know this worker."""


@dataclass(frozen=True, slots=True)
class TryAnotherManager:
    """From now on, call another manager, if one may exist."""


Action = Stop[H] | Register | TryAnotherManager


@dataclass(frozen=True, slots=True)
class Stopped:
    """An attempt has ended because the worker stopped it."""


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

    # The attempts that the worker holds

    @property
    def running(self) -> H | None:
        """The attempt that has begun, until the manager acknowledges its report."""
        return self._running

    @property
    def held(self) -> tuple[H, ...]:
        """The running attempt and the one accepted last, which may be the same."""
        # The accepted one counts, too, because its worker may still import torch. Without it, a
        # manager assumed that the worker had never received the attempt. On busy machines, every
        # first task was lost.
        running, wanted = self._running, self._wanted
        # The accepted one comes last: the worker registers with it, because the manager wants it.
        both = running, wanted if wanted is not running else None
        return tuple(held for held in both if held is not None)

    @property
    def attempt(self) -> AttemptId | None:
        """The attempt that the manager requested last, or else the one that still trains."""
        return self.held[-1].attempt if self.held else None

    @property
    def is_done(self) -> bool:
        """Whether the worker may leave: no attempt runs, and none will begin."""
        return self._running is None and (self.leaving or (self._draining and not self._is_next))

    # The manager's requests

    def met(self, term: int, patience: float, heartbeat_seconds: float) -> None:
        """Record what the manager says about itself."""
        # The term never falls, because a manager may answer after its successor has.
        self.term = max(self.term, term)
        self.patience = patience
        self.heartbeat_seconds = heartbeat_seconds

    def train(self, held: H, term: int) -> list[Action[H]]:
        """Accept an attempt, and stop a running one for it.

        If the manager repeats a call because the answer was lost, nothing changes.
        """
        if term < self.term:
            reason = f"is {term}, and {self.name} works for a manager of term {self.term}"
            raise Refused("term", reason)
        wanted = self._wanted
        if wanted and (wanted.attempt, wanted.part) == (held.attempt, held.part):
            return []
        self._wanted = held
        actions: list[Action[H]] = []
        # The manager may request an attempt again while the worker is stopping it. The new object
        # for it does not know of the hand-over.
        if self._to_hand_over == held.attempt:
            actions.append(Stop(held, HeldAttempt.save_and_stop))
        if self._running is not None:
            actions.append(Stop(self._running, HeldAttempt.stop))
        return actions

    def cancel(self, attempt: AttemptId) -> list[Action[H]]:
        """Stop an attempt at its next step, or forget it if it has not begun."""
        actions = self._asked(attempt, HeldAttempt.stop)
        if self._wanted is not None and self._wanted.attempt == attempt:
            self._wanted = None
        return actions

    def hand_over(self, attempt: AttemptId) -> list[Action[H]]:
        """Save and stop an attempt at its next step, even if it is loading or not accepted yet."""
        self._to_hand_over = attempt
        return self._asked(attempt, HeldAttempt.save_and_stop)

    def _asked(self, attempt: AttemptId, ask: Callable[[HeldAttempt], None]) -> list[Action[H]]:
        return [Stop(held, ask) for held in self.held if held.attempt == attempt]

    def drain(self) -> None:
        """Finish the attempts accepted so far, then leave."""
        self._draining = True
        # If the worker also took later tasks, the draining might never end.
        self._last = self._wanted

    def leave(self) -> list[Action[H]]:
        """Save and stop the running attempt, begin no other, and leave."""
        self.leaving = True
        running = self._running
        return [Stop(running, HeldAttempt.save_or_stop)] if running is not None else []

    # From the beginning of an attempt to the end of its report

    def take(self, at_seconds: float) -> H | None:
        """Return the attempt to begin now; None without one, or while another one runs."""
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
        """Process the end of the running attempt.

        Returns:
            The report to send until `report_taken`, or until `report_failed` returns None. None if
            the worker leaves, which also frees it. Its goodbye gives back the attempt, and an
            earlier report would only bring it another task.
        """
        if not isinstance(end, Stopped):
            return end
        if self.leaving:
            self._free()
            return None
        return Failure(FailureKind.CANCELLED, f"{self.name} handed it back")

    def report_taken(self) -> None:
        """Free the worker, because the manager has acknowledged the report."""
        self._free()

    def report_failed(self, chance: float, *, may_be_heard_later: bool) -> float | None:
        """Decide when to repeat a report that the manager did not acknowledge.

        Args:
            chance: a random number in 0..1. Without it, workers that lost the same manager at one
                moment would return to it together.
            may_be_heard_later: whether this manager may accept the report later, or another may.

        Returns:
            The seconds until the next try; None if the worker gives up and is free.
        """
        if self.leaving or not may_be_heard_later:
            self._free()
            return None
        # The wait doubles each time, because a manager that returns must answer all its workers.
        longest = self._longest_wait_seconds
        self._longest_wait_seconds = min(2 * longest, _LONGEST_WAIT_SECONDS)
        return chance * longest

    @property
    def _is_next(self) -> bool:
        """Whether the attempt accepted last may begin; it may not if it came after `drain`."""
        return self._wanted is not None and (not self._draining or self._wanted is self._last)

    def _free(self) -> None:
        running, self._running = self._running, None
        # If the worker has accepted another attempt meanwhile, that one begins next.
        if self._wanted is running:
            self._wanted = None
        if running is not None and self._to_hand_over == running.attempt:
            self._to_hand_over = None

    # The heartbeat

    def until_next_beat(self, at_seconds: float) -> float:
        """Return the seconds until the next heartbeat; they change when an attempt begins."""
        running = self._running
        length = running.expected_seconds(at_seconds) if running is not None else None
        wait = until_next_beat(self.heartbeat_seconds, length, self._interval_seconds)
        # A manager that restarts can call no worker before it has heard from it.
        return wait if self._is_heard else min(wait, _LOOK_AGAIN_SECONDS)

    def beat(self) -> Beat[H]:
        """Return the content of a heartbeat sent now."""
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
        """Process the answer to a heartbeat: is the worker known, and what should it not run?

        The next heartbeat follows after `interval_seconds` or more. The manager has recorded an
        attempt's snapshot only if it knows the worker and wants the attempt.
        """
        self._is_heard = True
        self._interval_seconds = interval_seconds
        # If the manager does not know the worker, it has ignored the rest of the heartbeat. We use
        # the progress that the worker sent, because it may have saved again meanwhile.
        for held, progress in zip(beat.held, beat.running, strict=True) if known else ():
            if progress.attempt not in unwanted:
                held.known_snapshot = progress.snapshot
        actions = [action for attempt in unwanted for action in self.cancel(attempt)]
        return actions if known else [*actions, Register()]

    def beat_failed(self, *, elsewhere: bool) -> list[Action[H]]:
        """Record that the manager did not answer a heartbeat.

        A manager that is only slow still leads. So the worker looks for another one only if the
        manager must be `elsewhere`: it does not answer at this address.
        """
        self._is_heard = False
        return [TryAnotherManager()] if elsewhere else []


def next_address(given: P, of_leader: Sequence[P], last: P) -> P | None:
    """Return the address to try after no manager answered at `last`; None if no other is known.

    The user's address and the addresses of the leading manager take turns. The user's address may
    be a name that moves to another machine. The worker may not be able to reach the others.
    """
    addresses = list(dict.fromkeys([given, *of_leader]))
    position = addresses.index(last) if last in addresses else -1
    following = addresses[(position + 1) % len(addresses)]
    return following if following != last else None
