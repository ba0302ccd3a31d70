"""Checks a worker's duties to its managers, by its visible actions alone."""

from __future__ import annotations

from dataclasses import dataclass

from downpour.base.values import AttemptId
from downpour_lab.checks.promises import Comparisons, Promise
from downpour_lab.simulated.environment import Observer, WorkerAction

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
