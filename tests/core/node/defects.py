"""Worker nodes with one defect each, which simulated workers must show."""

from typing import Any

from downpour.base.values import AttemptId
from downpour.core.node.worker import Action, Beat, Stop, WorkerNode


class DropsReports(WorkerNode[Any]):
    """Reports once, and takes the next task whether the report was acknowledged or not."""

    def report_failed(self, chance: float, *, may_be_heard_later: bool) -> float | None:
        del may_be_heard_later
        return super().report_failed(chance, may_be_heard_later=False)


class NeverFree(WorkerNode[Any]):
    """Never lets go of an attempt whose report was acknowledged."""

    def report_taken(self) -> None:
        running = self.running
        super().report_taken()
        self._wanted = running


class StaysWithItsManager(WorkerNode[Any]):
    """Waits for the manager that it has registered with, even if that one is gone."""

    def beat_failed(self, *, elsewhere: bool) -> list[Action[Any]]:
        del elsewhere
        return super().beat_failed(elsewhere=False)


class MentionsWhatItBegan(WorkerNode[Any]):
    """Does not mention an attempt that it has accepted and not begun."""

    @property
    def held(self) -> tuple[Any, ...]:
        return (self.running,) if self.running is not None else ()


class MentionsNothing(WorkerNode[Any]):
    """Sends heartbeats that mention no attempt."""

    def beat(self) -> Beat[Any]:
        return Beat((), ())


class NeverStops(WorkerNode[Any]):
    """Trains an attempt to its end although it was told to stop it."""

    def train(self, held: Any, term: int) -> list[Action[Any]]:
        asked = super().train(held, term)
        return [one for one in asked if not (isinstance(one, Stop) and one.held is self._running)]

    def cancel(self, attempt: AttemptId) -> list[Action[Any]]:
        super().cancel(attempt)
        return []


class BeginsAnew(WorkerNode[Any]):
    """Takes a repeated call for another task."""

    def train(self, held: Any, term: int) -> list[Action[Any]]:
        self._wanted = None
        return super().train(held, term)


class GoesOnUnwanted(WorkerNode[Any]):
    """Ignores which attempts it should not be running."""

    def beat_answered(self, beat: Beat[Any], **told: Any) -> list[Action[Any]]:
        return super().beat_answered(beat, **{**told, "unwanted": ()})


class NeverRegistersAnew(WorkerNode[Any]):
    """Does not register with a manager that does not know it."""

    def beat_answered(self, beat: Beat[Any], **told: Any) -> list[Action[Any]]:
        return super().beat_answered(beat, **{**told, "known": True})
