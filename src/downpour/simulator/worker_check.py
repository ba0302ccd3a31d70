"""What a worker owes its managers, checked by its visible actions alone."""

from __future__ import annotations

from dataclasses import dataclass

from downpour.simulator.checks import expect
from downpour.simulator.environment import Observer, WorkerAction
from downpour.values import AttemptId

_STEP_SECONDS = 0.1
"""The time that a worker has to stop an attempt, unless its training ends before."""


@dataclass(slots=True, eq=False)
class _Asked:
    """An attempt that a worker was asked for; asked for again, it is another object."""

    attempt: AttemptId
    told_to_stop_at: float | None = None


@dataclass(slots=True)
class _Seen:
    """What is known of a worker: the attempt it was asked for last, and the one it has begun."""

    term: int = 0
    latest: _Asked | None = None
    begun: _Asked | None = None
    leaves: bool = False

    def mentioned(self) -> set[AttemptId]:
        """Return the attempts that its heartbeats must mention."""
        return {one.attempt for one in (self.latest, self.begun) if one is not None}


class WorkerCheck(Observer):
    """A worker begins the attempt it was asked for last, alone, and holds it until its report."""

    def __init__(self) -> None:
        self._seen: dict[object, _Seen] = {}

    def working(self, happened: WorkerAction) -> None:
        """Compare an action of a worker with what it was asked."""
        seen = self._seen.setdefault(happened.worker, _Seen())
        match happened.what:
            case "met":
                seen.term = max(seen.term, happened.term)
            case "asked":
                self._asked(seen, happened)
            case "cancelled":
                self._cancelled(seen, happened)
            case "begins":
                self._begins(seen, happened.attempts[0])
            case "stopped" | "trained":
                self._ended(seen, happened)
            case "free":
                seen.latest = None if seen.latest is seen.begun else seen.latest
                seen.begun = None
            case "leaves":
                seen.leaves = True
            case "beats":
                missing = seen.mentioned() - set(happened.attempts)
                attempts = ", ".join(map(str, sorted(missing)))
                expect(not missing, f"{attempts}: held, and not mentioned")

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
        expect(seen.begun is None, f"{attempt} is begun before the one before it was reported")
        wanted = seen.latest is not None and seen.latest.attempt == attempt
        expect(wanted, f"{attempt} is begun, and was not asked for last")
        seen.begun = seen.latest

    def _ended(self, seen: _Seen, happened: WorkerAction) -> None:
        told_at = seen.begun.told_to_stop_at if seen.begun is not None else None
        if happened.what == "stopped":
            asked_for = told_at is not None or seen.leaves
            expect(asked_for, f"{happened.attempts[0]} is stopped without being asked to")
        else:
            late = told_at is not None and happened.at_seconds > told_at + _STEP_SECONDS
            expect(not late, f"{happened.attempts[0]} is trained on, though it is to stop")
