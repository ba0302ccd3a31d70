"""Worker nodes with one defect each, for simulated workers and for real ones to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from downpour.node.attempt import HeldAttempt
from downpour.node.worker import Action, Beat, End, Report, SaveAndStop, Stop, WorkerNode
from downpour.values import AttemptId


class DropsReports(WorkerNode[Any]):
    """Tries once to report, and takes the next task whether it was heard or not."""

    def report_failed(self, chance: float, *, may_be_heard_later: bool) -> float | None:
        """Give up."""
        del may_be_heard_later
        return super().report_failed(chance, may_be_heard_later=False)


class NeverFree(WorkerNode[Any]):
    """Holds an attempt for ever whose report was taken."""

    def report_taken(self) -> None:
        """Go on holding it."""
        running = self.running
        super().report_taken()
        self._wanted = running


class BelievesItWasHeard(WorkerNode[Any]):
    """Takes a snapshot for known that was mentioned in a heartbeat, whatever came of that."""

    def beat(self) -> Beat[Any]:
        """Believe so."""
        beat = super().beat()
        for held in beat.held:
            held.known_snapshot = held.snapshot
        return beat


class StaysWithItsManager(WorkerNode[Any]):
    """Waits for the manager that it has registered with, also where that one is gone."""

    def beat_failed(self, *, unreachable: bool) -> list[Action[Any]]:
        """Look nowhere else."""
        del unreachable
        return super().beat_failed(unreachable=False)


class MentionsWhatItBegan(WorkerNode[Any]):
    """Does not mention an attempt that it has accepted and not begun."""

    @property
    def held(self) -> tuple[Any, ...]:
        """Return what is running."""
        return (self.running,) if self.running is not None else ()


class MentionsNothing(WorkerNode[Any]):
    """Says that it lives, and not what it is at."""

    def beat(self) -> Beat[Any]:
        """Leave out the attempts."""
        return Beat((), ())


class NeverStops(WorkerNode[Any]):
    """Trains what it has begun to its end, though it was told to stop."""

    def train(self, held: Any, term: int) -> list[Action[Any]]:
        """Take a task, and let the one before it run."""
        return [one for one in super().train(held, term) if not isinstance(one, Stop)]

    def cancel(self, attempt: AttemptId) -> list[Action[Any]]:
        """Let it run."""
        super().cancel(attempt)
        return []


class BeginsAnew(WorkerNode[Any]):
    """Takes a call that is repeated for another task."""

    def train(self, held: Any, term: int) -> list[Action[Any]]:
        """Forget what it was asked for."""
        self._wanted = None
        return super().train(held, term)


class ServesTheReplaced(WorkerNode[Any]):
    """Takes tasks from a manager although a later one has taken over."""

    def train(self, held: Any, term: int) -> list[Action[Any]]:
        """Take any."""
        return super().train(held, max(term, self.term))


class HandsOverWhatItTrains(WorkerNode[Any]):
    """Forgets that it was asked to hand over an attempt that it has not begun."""

    def hand_over(self, attempt: AttemptId) -> list[Action[Any]]:
        """Look at what is running alone."""
        running = self.running
        if running is not None and running.attempt == attempt:
            return [SaveAndStop(running)]
        return []


class ForgetsWhatItIsAskedAgain(WorkerNode[Any]):
    """Takes an attempt that it is asked for again for the one that it is just giving up."""

    def _free(self) -> None:
        running, wanted = self.running, self._wanted
        super()._free()
        if running is not None and wanted is not None and wanted.attempt == running.attempt:
            self._wanted = None


class GoesOnUnwanted(WorkerNode[Any]):
    """Does not hear what it should not be running."""

    def beat_answered(
        self, beat: Beat[Any], *, known: bool, unwanted: Sequence[AttemptId]
    ) -> list[Action[Any]]:
        """Hear that all is wanted."""
        del unwanted
        return super().beat_answered(beat, known=known, unwanted=())


class NeverRegistersAnew(WorkerNode[Any]):
    """Takes itself for known to a manager that has never met it."""

    def beat_answered(
        self, beat: Beat[Any], *, known: bool, unwanted: Sequence[AttemptId]
    ) -> list[Action[Any]]:
        """Believe so."""
        del known
        return super().beat_answered(beat, known=True, unwanted=unwanted)


class ReportsWhatItHandsBack(WorkerNode[HeldAttempt]):
    """Reports what it gives up, and says goodbye after that: it is given something else between."""

    def ended(self, end: End) -> Report | None:
        """Report it like anything else."""
        leaving, self.leaving = self.leaving, False
        report = super().ended(end)
        self.leaving = leaving
        return report


DEFECTS: tuple[type[WorkerNode[Any]], ...] = (
    DropsReports,
    NeverFree,
    BelievesItWasHeard,
    StaysWithItsManager,
    MentionsWhatItBegan,
    MentionsNothing,
    NeverStops,
    BeginsAnew,
    ServesTheReplaced,
    HandsOverWhatItTrains,
    ForgetsWhatItIsAskedAgain,
    GoesOnUnwanted,
    NeverRegistersAnew,
    ReportsWhatItHandsBack,
)
