"""Who is there to train, what each is busy with, and when each was last heard of.

It keeps names and times, and moves workers by their table. It knows nothing of rounds: whether
what a worker is busy with is wanted is the scheduler's care.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, KeysView
from dataclasses import dataclass

from downpour.scheduler.lifecycle import WORKER, Lifecycle
from downpour.scheduler.timeouts import heartbeat_timeout
from downpour.values import AttemptId, Forecast, Progress, Snapshot, SystemState, WorkerState

# An assignment passes a queue of calls and a connection before the worker can mention it: its first
# heartbeats after it may still say nothing of it, however regular they are.
_TO_BEGIN_SECONDS = 10.0
_ROUNDS_REMEMBERED = 16
# Few, because a speed that follows from old reports hides that a machine has just become slow.
_REPORTS_REMEMBERED = 5
_REPORTS_FOR_SPEED = 2


@dataclass(frozen=True, slots=True)
class _Report:
    """When a worker was heard of, and its last step: when it ended by its clock, and the share."""

    at_seconds: float
    stepped_seconds: float
    share: float


class Worker:
    """One registered worker.

    `mentioned_at_seconds` is when it last said that it is running its attempt, or when it was asked
    to; `advanced_at_seconds` when its attempt last came further, and `longest_pause_seconds` how
    long that has taken at most. `heartbeat_timeout` is how long it may not be heard of. `pace`
    forecasts the seconds a sample of a shard that it would begin now, `remaining` those until its
    update from its last report on, and `predicted` all those from its assignment to its update;
    `told` is what of this is on record, where `quarters_recorded` of the attempt are. `slowness`
    are its paces in the last rounds, over each round's median. Where it is `lingering`, it may
    finish an attempt that nothing waits for, whose snapshots are `needless`. While it is `excluded`
    it gets nothing, because it cannot train the active experiment.
    """

    def __init__(self, name: str, at_seconds: float, state: WorkerState = WorkerState.IDLE) -> None:
        self.name = name
        self.life = Lifecycle(f"worker {name}", WORKER, state)
        self.seen_at_seconds = at_seconds
        self.beat_at_seconds = at_seconds
        self.running: AttemptId | None = None
        self.assigned_at_seconds = at_seconds
        self.mentioned_at_seconds = at_seconds
        self.advanced_at_seconds = at_seconds
        self.longest_pause_seconds = 0.0
        self.heartbeat_timeout = heartbeat_timeout()
        self.progress: Progress | None = None
        self.system: SystemState | None = None
        self.tasks_done = 0
        self.pace: Forecast | None = None
        self.remaining: Forecast | None = None
        self.forecast: Forecast | None = None
        self.recorded_forecast: Forecast | None = None
        self.quarters_recorded = 0
        self.slowness: deque[float] = deque(maxlen=_ROUNDS_REMEMBERED)
        self.lingering: AttemptId | None = None
        self.needless: Snapshot | None = None
        self.excluded = False
        self._samples = 0
        self._reports: deque[_Report] = deque(maxlen=_REPORTS_REMEMBERED)
        self._last_speed: float | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether it is known from the journal alone, and cannot be called."""
        return self.life.state is WorkerState.AWAITED

    @property
    def mention_limit_seconds(self) -> float:
        """How long it may say nothing of what it was asked to do, though it is heard of."""
        return max(_TO_BEGIN_SECONDS, self.heartbeat_timeout.seconds)

    def speed(self, now_seconds: float) -> float | None:
        """Samples a second over the last few steps it reported, or as it last was.

        It falls while the next step is overdue, which an idle worker's is not: its speed stays.
        None before two reports.
        """
        if len(self._reports) < _REPORTS_FOR_SPEED:
            return self._last_speed
        first, last = self._reports[0], self._reports[-1]
        usual_gap = (last.at_seconds - first.at_seconds) / (len(self._reports) - 1)
        silent = now_seconds - last.at_seconds if self.running is not None else 0.0
        overdue = max(0.0, silent - usual_gap)
        seconds = last.stepped_seconds - first.stepped_seconds + overdue
        return self._samples * (last.share - first.share) / seconds

    def measure(self, samples: int) -> None:
        """Measure an idle worker's speed anew, at a shard of this many samples."""
        self._last_speed = self.speed(self.mentioned_at_seconds)
        self._samples = samples
        self._reports.clear()

    def _learn_speed(self, progress: Progress, at_seconds: float) -> None:
        """Keep a report that tells of steps; while it loads, it does not know where it goes on."""
        if not progress.steps_total:
            return
        report = _Report(at_seconds, progress.elapsed_seconds, progress.share)
        last = self._reports[-1] if self._reports else None
        if last is None or report.stepped_seconds > last.stepped_seconds:
            self._reports.append(report)

    def beat(self, at_seconds: float) -> None:
        """Take note of a heartbeat, and learn how regular they are.

        A gap that is too long, and was not judged, says that the manager was not there to hear.
        """
        gap_seconds = at_seconds - self.beat_at_seconds
        if gap_seconds <= self.heartbeat_timeout.seconds:
            self.heartbeat_timeout.learn(gap_seconds)
        self.beat_at_seconds = self.seen_at_seconds = at_seconds

    def mention(self, progress: Progress, at_seconds: float) -> None:
        """Take note of how far its attempt has come."""
        self.mentioned_at_seconds = at_seconds
        self._learn_speed(progress, at_seconds)
        if self.progress is None or progress.steps_done > self.progress.steps_done:
            self.advance(at_seconds)
        self.progress = progress

    @property
    def reported_after_seconds(self) -> float:
        """How long after it was given its attempt it has last said how far it has come."""
        return self.mentioned_at_seconds - self.assigned_at_seconds

    def take_forecast(self, remaining: Forecast) -> None:
        """Take note of when its update is to be expected."""
        self.remaining = remaining
        self.forecast = remaining.later(self.reported_after_seconds)

    def advance(self, at_seconds: float) -> None:
        """Take note that its attempt has come further."""
        pause_seconds = at_seconds - self.advanced_at_seconds
        self.longest_pause_seconds = max(self.longest_pause_seconds, pause_seconds)
        self.advanced_at_seconds = at_seconds


class Workers:
    """The living workers; those idle are kept in the order in which they became so."""

    def __init__(self) -> None:
        self._all: dict[str, Worker] = {}
        self._idle: dict[str, None] = {}
        self._empty_handed: list[str] = []

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, name: str) -> Worker | None:
        """Return the worker of that name, or None where it is not (or no longer) here."""
        return self._all.get(name)

    @property
    def names(self) -> KeysView[str]:
        """Names of all who are here; a view that changes with them."""
        return self._all.keys()

    @property
    def idle(self) -> KeysView[str]:
        """Names of the idle, the one that has waited longest first; a view that changes."""
        return self._idle.keys()

    @property
    def any_idle(self) -> bool:
        """Whether a worker is idle."""
        return bool(self._idle)

    def join(self, name: str, at_seconds: float) -> None:
        """Add a worker, idle."""
        self._all[name] = Worker(name, at_seconds)
        self._idle[name] = None

    def expect(self, name: str, attempt: AttemptId, at_seconds: float) -> None:
        """Add a worker that an earlier manager has given an attempt; it has yet to register."""
        self._all[name] = Worker(name, at_seconds, WorkerState.AWAITED)
        self._all[name].running = attempt

    def resume(self, name: str, at_seconds: float, *, empty_handed: bool) -> None:
        """Let an awaited worker go on with what it holds; is it to be asked for that again?"""
        worker = self._all[name]
        worker.life.step("register")
        worker.seen_at_seconds = worker.beat_at_seconds = at_seconds
        worker.mentioned_at_seconds = worker.advanced_at_seconds = at_seconds
        if empty_handed:
            self._empty_handed.append(name)

    def take_empty_handed(self) -> list[Worker]:
        """Return those who came back without what they hold; each of them once."""
        names, self._empty_handed = self._empty_handed, []
        return [self._all[name] for name in names if name in self._all]

    def heard(self, name: str, at_seconds: float) -> Worker | None:
        """Note a sign of life; returns the worker, or None where it is not here."""
        worker = self._all.get(name)
        if worker is not None:
            worker.seen_at_seconds = at_seconds
        return worker

    def assign(
        self,
        name: str,
        attempt: AttemptId,
        at_seconds: float,
        samples: int = 0,
        forecast: Forecast | None = None,
    ) -> None:
        """Make an idle worker busy with an attempt at a shard of this many samples.

        It is predicted to take so long, where that is known.
        """
        worker = self._all[name]
        worker.life.step("assign")
        worker.measure(samples)
        worker.running = attempt
        worker.assigned_at_seconds = at_seconds
        worker.mentioned_at_seconds = at_seconds
        worker.advanced_at_seconds = at_seconds
        worker.longest_pause_seconds = 0.0
        worker.progress = worker.remaining = None
        worker.forecast = forecast
        worker.recorded_forecast = None
        worker.quarters_recorded = 0
        del self._idle[name]

    def release(self, name: str, attempt: AttemptId) -> bool:
        """Make a worker idle if it is busy with this attempt; says whether it was.

        One that is awaited is not: nothing else is known of it.
        """
        worker = self._all.get(name)
        if worker is None or worker.running != attempt:
            return False
        if worker.is_awaited:
            self.remove(name)
            return True
        worker.life.step("release")
        worker.running = None
        worker.progress = worker.remaining = worker.forecast = None
        self._idle[name] = None
        return True

    def let_go(self, name: str, attempt: AttemptId) -> bool:
        """Take note that a worker is done with an attempt; says whether it was busy with it."""
        self.unstick(name)
        return self.release(name, attempt)

    def stick(self, name: str) -> None:
        """Take from a worker what it is at; it gets nothing else before it is at nothing."""
        worker = self._all[name]
        if worker.is_awaited:
            self.remove(name)
            return
        worker.life.step("stick")
        worker.running = None
        worker.progress = worker.remaining = worker.forecast = None
        self._idle.pop(name, None)

    def let_linger(self, name: str, attempt: AttemptId) -> None:
        """Let a worker finish what is not waited for any more; it gets nothing else before."""
        worker = self._all[name]
        self.stick(name)
        worker.lingering = attempt

    def exclude(self, name: str) -> None:
        """Give a worker that is idle nothing, until all who are excluded are let in again."""
        if name in self._idle:
            self.stick(name)
            self._all[name].excluded = True

    def readmit(self) -> None:
        """Let those that were excluded have work again."""
        for worker in self._all.values():
            if worker.excluded:
                worker.excluded = False
                self.unstick(worker.name)

    def unstick(self, name: str) -> None:
        """Let a worker that was stuck have work again."""
        worker = self._all.get(name)
        if worker is not None and worker.life.state is WorkerState.STUCK and not worker.excluded:
            worker.life.step("release")
            worker.lingering = None
            self._idle[name] = None

    def remove(self, name: str) -> Worker | None:
        """Take a worker out; returns it as it was, or None where it is not here."""
        worker = self._all.pop(name, None)
        if worker is not None:
            worker.life.step("go")
            self._idle.pop(name, None)
        return worker
