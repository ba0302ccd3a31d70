"""Who is there: workers join, beat, fall silent, stand still and go."""

from __future__ import annotations

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.books import Books
from downpour.scheduler.contributions import Contributions
from downpour.scheduler.workers import Worker
from downpour.values import AttemptId, FailureKind

_QUARTERS = 4


class Attendance:
    """What a worker that goes, or does not get on, was at is given up for others to try."""

    def __init__(self, books: Books, contributions: Contributions) -> None:
        self._books = books
        self._contributions = contributions

    def joined(self, name: str, running: AttemptId | None) -> None:
        """Take a worker in; one that still runs what it was given goes on with it.

        Its former self, if there is one, else gives up what it was running. Who runs something else
        gets no work before that has ended.
        """
        known = self._books.workers.hear(name, self._books.now_seconds)
        if known is not None and self._goes_on(known, running):
            return
        former = self._books.workers.remove(name)
        if former is not None and former.running is not None:
            self._contributions.give_up(
                name, former.running, FailureKind.LOST, f"{name} registered anew"
            )
        self._books.workers.join(name, self._books.now_seconds)
        if former is None:
            self._books.tell(f"{name} joined")
        if self._books.joined_since < self._books.wanted_workers:
            self._books.joined_since += 1
        if running is not None:
            self._books.workers.stick(name)

    def _goes_on(self, known: Worker, running: AttemptId | None) -> bool:
        """Let a worker that registers go on with what it holds; says whether it does.

        One that an earlier manager's death has parted from its attempt is asked for it again. It
        may have died as well, or never have heard of it, and still be at its last report.
        """
        now, has_it = self._books.now_seconds, known.running == running
        if known.is_awaited:
            self._books.workers.welcome(known.name, now, empty_handed=not has_it)
            return True
        if running is None or not has_it:
            return False
        known.mentioned_at_seconds = now
        return True

    def gone(self, name: str, failure: FailureKind, reason: str, *, lost: bool) -> None:
        """Let a worker go; what it was at is given up."""
        worker = self._books.workers.remove(name)
        if worker is None:
            return
        self._books.do(do.Dismiss(cause=self._books.cause, worker=name, reason=reason, lost=lost))
        self._books.tell(f"{name} {'is lost' if lost else 'left'}: {reason}")
        if worker.running is not None:
            self._contributions.give_up(name, worker.running, failure, reason)

    def heartbeat(self, event: on.HeartbeatReceived) -> None:
        """Take note that a worker lives, and of how far it has come."""
        worker = self._books.workers.get(event.worker)
        if worker is None or (worker.is_awaited and not _mentions(event, worker.running)):
            return  # it is told to register, and says then what it is at
        worker.beat(self._books.now_seconds)
        worker.system = event.system
        if not event.running:
            self._books.workers.unstick(worker.name)
        for progress in event.running:
            if progress.attempt == worker.running:
                self._contributions.save(worker, progress)
                worker.mention(progress, self._books.now_seconds)
                return
            if progress.attempt == worker.lingering:
                self._contributions.remove_needless(worker, progress)
        self._doubt(worker, elsewhere=bool(event.running))

    def _doubt(self, worker: Worker, *, elsewhere: bool) -> None:
        """Take back an attempt that its worker has not mentioned for long."""
        attempt = worker.running
        silent = self._books.now_seconds - worker.mentioned_at_seconds
        if attempt is None or silent < self._within(worker.mention_limit_seconds):
            return
        what = "has not begun it after" if worker.progress is None else "has not mentioned it for"
        self._take_back(worker, attempt, f"{what} {silent:.0f} s", free=not elsewhere)

    def foreseen(self, event: on.Forecasts) -> None:
        """Take note of what is predicted."""
        for name, pace in event.paces:
            worker = self._books.workers.get(name)
            if worker is not None:
                worker.pace = pace
        running = {worker.running: worker for worker in self._books.workers if worker.running}
        for attempt, remaining in event.remaining:
            if attempt in running:
                running[attempt].foresee(remaining)
                self._foresee(running[attempt], attempt)

    def _foresee(self, worker: Worker, attempt: AttemptId) -> None:
        """Have put on record what is predicted after each quarter of an attempt's own work."""
        found = self._books.find(attempt)
        if found is None or worker.progress is None:
            return
        began = found.task.began_at[attempt.attempt]
        own = (worker.progress.share - began) / (1 - began) if began < 1 else 0.0
        quarters = min(int(_QUARTERS * own), _QUARTERS - 1)
        if worker.quarters_foreseen < quarters:
            worker.quarters_foreseen = quarters
            self._books.foresee(worker)

    def tick(self) -> None:
        """Look who has been silent for too long, and what stands still."""
        for worker in list(self._books.workers):
            silent = self._books.now_seconds - worker.seen_at_seconds
            if silent > self._within(worker.silence.seconds):
                kind = FailureKind.CANCELLED if worker.is_awaited else FailureKind.LOST
                self.gone(worker.name, kind, f"no heartbeat for {silent:.0f} s", lost=True)
            elif worker.running is not None:
                self._look_whether_it_stands(worker, worker.running)

    def _look_whether_it_stands(self, worker: Worker, attempt: AttemptId) -> None:
        """Take back an attempt that makes no step, although its worker is heard of."""
        experiment = self._books.active_as(attempt.experiment)
        pause = self._books.now_seconds - worker.advanced_at_seconds
        if experiment is not None and pause > self._within(experiment.pause.seconds):
            self._books.cancel_call(worker, attempt, "it makes no step")
            self._take_back(worker, attempt, f"has made no step for {pause:.0f} s", free=False)

    def _take_back(self, worker: Worker, attempt: AttemptId, what: str, *, free: bool) -> None:
        """Let others try what a worker does not get done; is it free, or stuck in something?"""
        if free:
            self._books.workers.release(worker.name, attempt)
        else:
            self._books.workers.stick(worker.name)
        self._contributions.give_up(worker.name, attempt, FailureKind.LOST, f"{worker.name} {what}")

    def _within(self, seconds: float) -> float:
        return seconds * self._books.options.patience


def _mentions(event: on.HeartbeatReceived, attempt: AttemptId | None) -> bool:
    return any(progress.attempt == attempt for progress in event.running)
