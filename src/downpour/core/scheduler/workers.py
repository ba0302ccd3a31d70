"""The registered workers: each one's attempt, last heartbeat, progress and speed.

This module keeps names and times, and moves workers by their table. It knows nothing about rounds:
`dispatch` and `updates` know whether a worker's attempt still counts.
"""

from collections import deque
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from downpour.base.names import CPU
from downpour.base.states import WORKER, Lifecycle, WorkerState, heartbeat_timeout
from downpour.base.values import AttemptId, Forecast, Progress, Snapshot, SystemState
from downpour.core.stragglers.base import ROUNDS_REMEMBERED, Speed

# We use few reports, because old ones hide that a machine has just become slow.
_REPORTS_REMEMBERED = 5
_REPORTS_FOR_SPEED = 2
_INTERVALS_FOR_VARIANCE = 2


@dataclass(frozen=True, slots=True)
class _Report:
    """One report: when it came, when the last step ended by the worker's clock, and the share."""

    at_seconds: float
    stepped_seconds: float
    share: float


class Speedometer:
    """Measures one worker, attempt by attempt."""

    def __init__(self) -> None:
        self._samples = 0
        self._steps = 0
        self._reports: deque[_Report] = deque(maxlen=_REPORTS_REMEMBERED)
        self._still_seconds = 0.0
        self._former: tuple[Speed, float] | None = None

    def begin(self, samples: int) -> None:
        """Restart the measurement for a shard of this many samples."""
        self._former = self._latest()
        self._samples = samples
        self._still_seconds = 0.0
        self._reports.clear()

    def report(self, progress: Progress, at_seconds: float) -> None:
        """Take in a report if it has a new step."""
        # While the worker loads, it does not know yet how many steps the snapshot holds.
        if not progress.steps_total:
            return
        self._steps = progress.steps_total
        report = _Report(at_seconds, progress.elapsed_seconds, progress.share)
        last = self._reports[-1] if self._reports else None
        if last is None or report.stepped_seconds > last.stepped_seconds:
            self._reports.append(report)
            last = report
        self._still_seconds = at_seconds - last.at_seconds

    def speed(self, now_seconds: float, *, busy: bool) -> Speed | None:
        """Return the speed over the last few reports; None before any attempt has sent two.

        The speed of a `busy` worker falls while its next report is overdue. The speed of an idle
        worker stays, because no step is due, but its age grows. If an attempt ended before its
        first step, we know only how fast the worker is `at_most`.
        """
        if busy and len(self._reports) >= _REPORTS_FOR_SPEED:
            return self._measured(self._overdue_seconds(now_seconds))
        latest = self._latest()
        if latest is None:
            return None
        speed, at_seconds = latest
        return replace(speed, age_seconds=max(0.0, now_seconds - at_seconds))

    def _latest(self) -> tuple[Speed, float] | None:
        """Return the last measured speed, and the time of its measurement."""
        if len(self._reports) >= _REPORTS_FOR_SPEED:
            return self._measured(0.0), self._reports[-1].at_seconds
        bound = self._bound()
        if bound is None or self._is_below(bound):
            return self._former
        return bound, self._reports[-1].at_seconds + self._still_seconds

    def _is_below(self, bound: Speed) -> bool:
        """Whether an earlier measured speed is no faster than a bound, and so says more."""
        if self._former is None or self._former[0].at_most:
            return False
        return self._former[0].samples_per_second <= bound.samples_per_second

    def _bound(self) -> Speed | None:
        """Return the speed if a step took the whole time without one; None without such a time.

        The scheduler stops an attempt when a copy of it finishes first. If we knew nothing of a
        worker that never reaches its first step, it would get a shard in each round.
        """
        if not self._reports or self._still_seconds <= 0:
            return None
        share = 1 / self._steps
        return Speed(
            samples_per_second=self._samples * share / self._still_seconds,
            share=share,
            step_seconds=self._still_seconds,
            at_most=True,
        )

    def _overdue_seconds(self, now_seconds: float) -> float:
        # Only overdue reports go by the manager's clock. The worker's clock times the steps,
        # because a delayed message must not change the speed.
        first, last = self._reports[0], self._reports[-1]
        usual_gap = (last.at_seconds - first.at_seconds) / (len(self._reports) - 1)
        return max(0.0, now_seconds - last.at_seconds - usual_gap)

    def _measured(self, overdue_seconds: float) -> Speed:
        first, last = self._reports[0], self._reports[-1]
        share = last.share - first.share
        seconds = last.stepped_seconds - first.stepped_seconds + overdue_seconds
        per_second = self._samples * share / seconds
        return Speed(
            samples_per_second=per_second,
            share=share,
            variance=self._variance(),
            step_seconds=seconds / (share * self._steps) if share > 0 else 0.0,
        )

    def _variance(self) -> float | None:
        """Estimate `Speed.variance` from the intervals between reports; None for fewer than two.

        We treat an interval as a sum of independent steps, so its variance grows with the share
        that the worker trained in it.
        """
        intervals = [
            (later.share - earlier.share, later.stepped_seconds - earlier.stepped_seconds)
            for earlier, later in pairwise(self._reports)
            if later.share > earlier.share
        ]
        if len(intervals) < _INTERVALS_FOR_VARIANCE:
            return None
        whole = sum(seconds for _, seconds in intervals) / sum(share for share, _ in intervals)
        squares = sum((seconds - share * whole) ** 2 / share for share, seconds in intervals)
        return squares / (len(intervals) - 1) / whole**2


# An assignment passes a queue of calls and a connection before the worker can mention it. So the
# next few heartbeats may lack it, however regular they are.
_TO_BEGIN_SECONDS = 10.0
_INTERVALS = 4
"""How many intervals may pass without a heartbeat; `heartbeat_timeout` allows as many gaps."""


class Worker:
    """One registered worker.

    `mentioned_at_seconds` is when the worker last mentioned its attempt, or when it got the
    assignment. `advanced_at_seconds` is when its attempt last made a step, and
    `longest_pause_seconds` the longest time between two steps. `pace` forecasts its seconds per
    sample if it began a shard now. `remaining` forecasts the seconds from its last step to its
    update, and `forecast` all seconds from its assignment to its update. `recorded_forecast` is the
    last forecast on record; the record has one for each of `quarters_recorded` quarters of the
    attempt. `slowness` holds its paces in the last rounds, each over the round's median. The worker
    may finish a `lingering` attempt although it no longer counts; `needless` is that attempt's last
    snapshot. The manager asked the worker to leave `interval_seconds` between two heartbeats.
    `labels` are the ones that its user gave it.
    `started_in` is the experiment that its process has loaded, as far as we know. Its first attempt
    in an experiment takes `startup_seconds` longer because of the loading. It computes in its
    `numeric_class`, and on the processor in `processor_class`, if that is another. Its next
    `audits_due` tasks are audited. Users know if it is `told_alone`: no other has its class. Its
    `process` first joined at `joined_at_seconds`.
    """

    def __init__(self, name: str, at_seconds: float, state: WorkerState = WorkerState.IDLE) -> None:
        self.name = name
        self.life = Lifecycle(f"worker {name}", WORKER, state)
        self.joined_at_seconds = self.seen_at_seconds = at_seconds
        self.beat_at_seconds = at_seconds
        self.running: AttemptId | None = None
        self.assigned_at_seconds = at_seconds
        self.mentioned_at_seconds = at_seconds
        self.advanced_at_seconds = self.moved_at_seconds = at_seconds
        self.longest_pause_seconds = 0.0
        self.interval_seconds = 0.0
        self.heartbeat_timeout = heartbeat_timeout()
        self.progress: Progress | None = None
        self.system: SystemState | None = None
        self.tasks_done = 0
        self.pace: Forecast | None = None
        self.remaining: Forecast | None = None
        self.forecast: Forecast | None = None
        self.recorded_forecast: Forecast | None = None
        self.quarters_recorded = 0
        self.slowness: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)
        self.lingering: AttemptId | None = None
        self.needless: Snapshot | None = None
        self.started_in = ""
        self.is_first_attempt = False
        self.startup_seconds = 0.0
        self.speedometer = Speedometer()
        self.labels: tuple[str, ...] = ()
        self.numeric_class = self.processor_class = ""
        self.audits_due = 1
        self.told_alone = False
        self.process = ""

    def class_for(self, device: str) -> str:
        """Return the numeric class in which it trains tasks for a device; empty if unknown."""
        return (self.processor_class if device == CPU else "") or self.numeric_class

    @property
    def is_awaited(self) -> bool:
        """Whether we know it only from the journal, and so cannot call it."""
        return self.life.state is WorkerState.AWAITED

    @property
    def mention_limit_seconds(self) -> float:
        """How long its heartbeats may not mention the attempt that it was assigned."""
        return max(_TO_BEGIN_SECONDS, self.silence_limit_seconds)

    @property
    def silence_limit_seconds(self) -> float:
        """How long it may send no heartbeat."""
        # The timeout follows past gaps, and the manager may have asked the worker for longer ones
        # since.
        return max(self.heartbeat_timeout.seconds, _INTERVALS * self.interval_seconds)

    def speed(self, now_seconds: float) -> Speed | None:
        """Return how fast it is or last was; see `Speedometer.speed`."""
        return self.speedometer.speed(now_seconds, busy=self.running is not None)

    def beat(self, at_seconds: float) -> None:
        """Note a heartbeat, and learn how regular heartbeats are."""
        gap_seconds = at_seconds - self.beat_at_seconds
        # If a gap was longer and the worker still does not count as lost, the manager itself stood
        # still. Such a gap says nothing about the worker.
        if gap_seconds <= self.silence_limit_seconds:
            self.heartbeat_timeout.learn(gap_seconds)
        self.beat_at_seconds = self.seen_at_seconds = at_seconds

    @property
    def is_starting(self) -> bool:
        """Whether it still imports or makes the network, as far as we know."""
        return self.running is not None and self.running.experiment != self.started_in

    def mention(self, progress: Progress, at_seconds: float) -> None:
        """Note how far its attempt has come."""
        if progress.phase != "loading":
            self.started_in = progress.attempt.experiment
        elif self.is_starting:
            self.startup_seconds = at_seconds - self.assigned_at_seconds
        self.mentioned_at_seconds = at_seconds
        self.speedometer.report(progress, at_seconds)
        last = self.progress
        if last is None or progress.steps_done > last.steps_done:
            self.advance(at_seconds)
        elif progress.moved_bytes > last.moved_bytes:
            self.moved_at_seconds = at_seconds
        self.progress = progress

    def handed_over(self, share: float, at_seconds: float) -> None:
        """Note how far its attempt had come when it handed over.

        A slow worker may hand over at its first step. If we did not measure its speed by that step,
        the worker would count as being as fast as the others, and would get the next late shard.
        """
        last = self.progress
        steps = round(share * last.steps_total) if last is not None else 0
        known = self.speed(at_seconds)
        if last is None or steps <= last.steps_done or (known is not None and not known.at_most):
            return
        elapsed = last.elapsed_seconds + at_seconds - self.advanced_at_seconds
        end = replace(last, steps_done=steps, elapsed_seconds=elapsed)
        self.speedometer.report(end, at_seconds)

    @property
    def active_at_seconds(self) -> float:
        """When its attempt last made a step, or read or wrote a part of a file, as far as known."""
        return max(self.advanced_at_seconds, self.moved_at_seconds)

    def take_forecast(self, remaining: Forecast) -> None:
        """Note a forecast of the seconds from its last step to its update.

        Later reports don't count, so the end stays while it loads, saves or publishes.
        """
        self.remaining = remaining
        self.forecast = remaining.later(self.stepped_seconds)

    @property
    def stepped_seconds(self) -> float:
        """Seconds from its assignment to its last step, or to the end of its startup before one."""
        return max(self.advanced_at_seconds - self.assigned_at_seconds, self.startup_seconds)

    def advance(self, at_seconds: float) -> None:
        """Note that its attempt has made a step."""
        pause_seconds = at_seconds - self.advanced_at_seconds
        self.longest_pause_seconds = max(self.longest_pause_seconds, pause_seconds)
        self.advanced_at_seconds = at_seconds


_NONE: Mapping[str, str] = {}


class Workers:
    """The registered workers; idle ones are in the order in which they became idle."""

    def __init__(self) -> None:
        self._all: dict[str, Worker] = {}
        self._idle: dict[str, None] = {}
        self._empty_handed: list[str] = []
        self._away: set[str] = set()
        self._unfit: dict[str, dict[str, str]] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, name: str) -> Worker | None:
        """Return the worker of that name, or None if it is not registered."""
        return self._all.get(name)

    @property
    def names(self) -> KeysView[str]:
        """The names of all workers; a view that changes with them."""
        return self._all.keys()

    @property
    def idle(self) -> KeysView[str]:
        """The names of the idle workers, longest idle first; a view that changes with them."""
        return self._idle.keys()

    def idle_for(self, experiment: str) -> KeysView[str]:
        """Return the names of the idle workers that are not unfit, longest idle first."""
        if not (unfit := self.unfit_for(experiment)):
            return self.idle
        return dict.fromkeys(name for name in self._idle if name not in unfit).keys()

    def able_for(self, experiment: str) -> KeysView[str]:
        """Return the names of all workers but the stuck and the unfit ones.

        A stuck worker may hang for good, and an unfit one cannot train the experiment, so the
        scheduler waits for neither.
        """
        away = self._away | self.unfit_for(experiment).keys()
        if not away:
            return self.names
        return dict.fromkeys(name for name in self._all if name not in away).keys()

    def unfit_for(self, experiment: str) -> Mapping[str, str]:
        """Return the workers that cannot train an experiment, with the reasons."""
        return self._unfit.get(experiment, _NONE)

    def join(self, name: str, at_seconds: float) -> Worker:
        """Add a worker, idle."""
        worker = self._all[name] = Worker(name, at_seconds)
        self._idle[name] = None
        return worker

    def expect(self, name: str, attempt: AttemptId, at_seconds: float) -> None:
        """Add, as awaited, a worker to which an earlier manager assigned an attempt."""
        self._all[name] = Worker(name, at_seconds, WorkerState.AWAITED)
        self._all[name].running = attempt

    def resume(self, name: str, at_seconds: float, *, empty_handed: bool) -> None:
        """Let an awaited worker continue; we ask an `empty_handed` one for its attempt again."""
        worker = self._all[name]
        worker.life.step("register")
        # All its timeouts restart, because the times in the journal belong to the earlier manager.
        worker.seen_at_seconds = worker.beat_at_seconds = at_seconds
        worker.mentioned_at_seconds = worker.advanced_at_seconds = at_seconds
        if empty_handed:
            self._empty_handed.append(name)

    def take_empty_handed(self, experiment: str) -> list[Worker]:
        """Return the workers that came back without their attempts, each only once."""
        # Some may have left again since they came back, or lost the attempt.
        workers = [w for w in map(self._all.get, self._empty_handed) if w is not None]
        workers = [w for w in workers if w.running and w.running.experiment == experiment]
        for worker in workers:
            self._empty_handed.remove(worker.name)
        return workers

    def heard(self, name: str, at_seconds: float) -> Worker | None:
        """Note a sign of life; return the worker, or None if it is not registered."""
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

        `forecast` predicts the seconds until its update; None if we know nothing.
        """
        worker = self._all[name]
        worker.life.step("assign")
        worker.speedometer.begin(samples)
        worker.running = attempt
        worker.is_first_attempt = worker.is_starting
        worker.startup_seconds = 0.0
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
        """Make a worker idle if it is busy with this attempt; return whether it was.

        An awaited worker is removed instead, because we knew only its attempt.
        """
        worker = self._all.get(name)
        # A report may come twice, or for an attempt that we took from the worker before.
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
        """Note that a worker has ended an attempt; return whether it was busy with it."""
        # A stuck worker that reports the end of any attempt is idle.
        self.unstick(name)
        return self.release(name, attempt)

    def stick(self, name: str) -> None:
        """Take a worker's attempt; the worker gets no other until it reports none."""
        worker = self._all[name]
        if worker.is_awaited:
            self.remove(name)
            return
        worker.life.step("stick")
        self._away.add(name)
        worker.running = None
        worker.progress = worker.remaining = worker.forecast = None
        # A worker that joins while it runs another manager's attempt is idle until now.
        self._idle.pop(name, None)

    def let_linger(self, name: str, attempt: AttemptId) -> None:
        """Let a worker finish an attempt that no longer counts; it gets no other before."""
        worker = self._all[name]
        self.stick(name)
        worker.lingering = attempt

    def exclude(self, name: str, experiment: str, reason: str) -> None:
        """Give an idle worker no tasks of an experiment until `readmit`."""
        if name in self._idle:
            self._unfit.setdefault(experiment, {})[name] = reason

    def readmit(self, experiment: str) -> None:
        """Let the excluded workers of an experiment have its tasks again."""
        self._unfit.pop(experiment, None)

    def unstick(self, name: str) -> None:
        """Make a stuck worker idle."""
        worker = self._all.get(name)
        if worker is not None and worker.life.state is WorkerState.STUCK:
            worker.life.step("release")
            worker.lingering = None
            self._away.discard(name)
            self._idle[name] = None

    def remove(self, name: str) -> Worker | None:
        """Remove a worker; return it, or None if it is not registered."""
        worker = self._all.pop(name, None)
        self._away.discard(name)
        if worker is not None:
            worker.life.step("go")
            self._idle.pop(name, None)
            for unfit in self._unfit.values():
                unfit.pop(name, None)
        return worker
