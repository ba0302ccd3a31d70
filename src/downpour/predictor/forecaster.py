"""Makes forecasts for the scheduler from workers' reports, with a predictor.

The driver of the scheduler passes each event and its output to a `Forecaster`, and asks for
forecasts now and then. The driver hands the answer to the scheduler as one more event. A
`Forecaster` reads no clock and never raises: if the predictor fails, policies do without forecasts.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from downpour.base.names import CPU, Device, trained_on
from downpour.base.values import AttemptId, Forecast, Progress, SystemState
from downpour.core.scheduler import Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.predictor.features import Features, Predictor, Request

_log = logging.getLogger(__name__)

_BETWEEN_SECONDS = (
    1.0  # busy workers report up to ten times a second: too often to predict each time
)
_BETWEEN_SECONDS_A_WORKER = 0.001  # two forecasts, 50 µs together: a tenth of a core at most
_PERCENT = 100
_APART_PERCENT = 10
_OBSERVED_SHARE_MIN = 0.1
"""The share of a stopped attempt that must be done before we learn from its pace."""


@dataclass(slots=True)
class _Task:
    """A worker's current task: the samples that it has to train, and its reports.

    If it `is_first` in the experiment, we leave out the time until all is loaded, which comes once.
    `reports` hold when each percent was done, and `reported_seconds` when the last of them came;
    both count from the assignment. `sent` holds when it began to publish, and when its bytes last
    grew, with the bytes at each.
    """

    attempt: AttemptId
    samples: float
    began_at_share: float
    assigned_at: float
    state: Features
    kind: Features
    is_first: bool = False
    reports: list[tuple[int, float, Features]] = field(default_factory=list)
    reported_seconds: float = 0.0
    sent: list[tuple[float, int]] = field(default_factory=list)

    def report(self, progress: Progress, at_seconds: float, state: Features) -> None:
        """Take in the progress of the task, as a share of its worker's part."""
        if self.is_first and not progress.steps_total:
            self.assigned_at = at_seconds
            return
        elapsed = at_seconds - self.assigned_at
        grew = not self.sent or progress.moved_bytes > self.sent[-1][1]
        if progress.phase == "publishing" and grew:
            self.sent = [*self.sent[:1], (elapsed, progress.moved_bytes)]
        done = (progress.share - self.began_at_share) / (1.0 - self.began_at_share)
        # At most 99: features have no name for 100 %, when no rest is left to predict. We add a
        # small number because the product of 100 and 0.29, say, is a little below 29.
        percent = min(_PERCENT - 1, int(_PERCENT * done + 1e-9))
        if percent > (self.reports[-1][0] if self.reports else 0):
            # A heartbeat comes later than the step, which matters in a short task.
            stepped = elapsed if self.is_first else min(elapsed, progress.elapsed_seconds)
            self.reports.append((percent, stepped, state))
            self.reported_seconds = elapsed

    def left(self, whole: Forecast, bytes_in_all: int, usual_pace: float) -> Forecast:
        """Return the forecast of the seconds from the last new percent to the update.

        `whole` forecasts those since the assignment. An update has `bytes_in_all`, and the worker
        last published `usual_pace` of them a second; both are 0 if unknown.
        """
        if self.sent:
            (began_at, before), (grew_at, sent) = self.sent[0], self.sent[-1]
            pace = (sent - before) / (grew_at - began_at) if grew_at > began_at else usual_pace
            if pace > 0 and bytes_in_all > sent and whole.q50 > 0:
                # The bytes say when it ends, and the forecast how sure that is.
                ahead = whole.times((bytes_in_all - sent) / pace / whole.q50)
                return ahead.later(grew_at - self.reported_seconds)
        return whole.after(self.reported_seconds)

    def features(self) -> Features:
        """Return the task's features: with its last report, and one well before that."""
        features: dict[str, float] = {"n_samples": self.samples, **self.state, **self.kind}
        # The pace between two reports that are close together would be noisy.
        before = [r for r in self.reports if r[0] <= self.reports[-1][0] - _APART_PERCENT]
        for percent, seconds, state in (*before[-1:], *self.reports[-1:]):
            features[f"p{percent}_elapsed_s"] = seconds
            features |= {f"p{percent}_{name}": value for name, value in state.items()}
        return features


@dataclass(slots=True)
class _Machine:
    """The state of a worker's machine, and the worker's task; `device` is empty if unknown."""

    state: Features = field(default_factory=dict)
    device: str = ""
    task: _Task | None = None
    bytes_per_second: float = 0.0


class Forecaster:
    """Follows the scheduler's events and makes forecasts; one thread owns it and its predictor.

    With `always`, it also forecasts for the status display, even if the policy needs no forecasts.
    """

    def __init__(self, predictor: Predictor, *, always: bool = False) -> None:
        self._predictor: Predictor | None = predictor
        self._always = always
        self._machines: dict[str, _Machine] = {}
        self._precision, self._asked = "", CPU
        self._usual_samples = 0.0
        self._update_bytes: dict[str, int] = {}
        self._wanted = False
        self._news = self._has_evidence = False
        self._forecast_at: float | None = None

    def follow(self, core: Scheduler, event: on.Event, output: Output) -> None:
        """Take in an event, and the scheduler's output for it."""
        if isinstance(event, on.WorkerJoined):
            self._machines.setdefault(event.worker, _Machine()).device = event.device
        if isinstance(event, on.HeartbeatReceived):
            self.heard(event.worker, event.running, event.system, event.at_seconds)
        # Orders come before facts, because a worker that gets a stop order may get another task.
        for command in output.commands:
            if isinstance(command, out.Cancel):
                self.ended(command.worker, command.attempt)
        for fact in output.facts:
            match fact:
                case out.Assigned():
                    self._assign(core, fact)
                case out.Accepted() | out.Withheld():
                    self._update_bytes = _bytes_of(core)
                    working_seconds = fact.completion_seconds - fact.startup_seconds
                    self.accepted(fact.worker, fact.attempt, working_seconds)
                case out.GivenUp():
                    self.ended(fact.worker, fact.attempt)
                case out.Dismissed():
                    self._machines.pop(fact.worker, None)

    def _assign(self, core: Scheduler, assigned: out.Assigned) -> None:
        experiment = core.state.experiments[assigned.attempt.experiment]
        policies = (core.state.policies[each.spec.policy] for each in core.state.open)
        self._wanted = self._always or any(policy.watches for policy in policies)
        context = core.state.find(assigned.attempt)
        if context is None:
            return
        task = context.task
        began_at = task.began_at[assigned.attempt.attempt]
        size = task.offer.samples
        self._update_bytes = _bytes_of(core)
        self._precision, self._asked = experiment.spec.precision, experiment.spec.device
        self._usual_samples = sum(experiment.shard_samples) / len(experiment.shard_samples)
        self.assigned(assigned.worker, assigned.attempt, size, began_at, core.state.now_seconds)
        worker, machine = core.state.workers.get(assigned.worker), self._machines[assigned.worker]
        if machine.task is not None and worker is not None:
            machine.task.is_first = worker.is_first_attempt

    def heard(
        self, worker: str, running: Sequence[Progress], system: SystemState, at_seconds: float
    ) -> None:
        """Take in a heartbeat: the state of a machine, and the progress of its attempt."""
        machine = self._machines.setdefault(worker, _Machine())
        machine.state = {
            "cpu_util": system.cpu_others,
            "loadavg1": system.load_average,
            "mem_used": system.memory_used,
            "iowait": system.io_wait,
        }
        self._news = True
        for progress in running:
            if machine.task is not None and machine.task.attempt == progress.attempt:
                machine.task.report(progress, at_seconds, machine.state)
                self._has_evidence |= bool(machine.task.reports)

    def assigned(
        self, worker: str, attempt: AttemptId, samples: int, began_at: float, at_seconds: float
    ) -> None:
        """Take in the assignment of a shard with `samples` samples, starting at a share of it."""
        machine = self._machines.setdefault(worker, _Machine())
        # The predictor sees the rest of a resumed shard as a separate task.
        left = samples * (1.0 - began_at)
        kind = self._kind_of(machine)
        machine.task = _Task(attempt, left, began_at, at_seconds, machine.state, kind)
        self._news = True

    def accepted(self, worker: str, attempt: AttemptId, seconds: float) -> None:
        """Learn how long an attempt took, from its assignment or start-up to its update."""
        task = self._take(worker, attempt)
        if task is not None and seconds > 0:
            began_at, before = task.sent[0] if task.sent else (seconds, 0)
            if began_at < seconds:
                size = self._update_bytes.get(attempt.experiment, 0)
                pace = max(0, size - before) / (seconds - began_at)
                self._machines[worker].bytes_per_second = pace
            self._observe(worker, task.features(), seconds)

    def ended(self, worker: str, attempt: AttemptId) -> None:
        """Learn from the finished part of an attempt that ended without an update."""
        task = self._take(worker, attempt)
        if task is None or not task.reports:
            return
        percent, seconds, _ = task.reports[-1]
        share = percent / _PERCENT
        if share >= _OBSERVED_SHARE_MIN:
            done = {"n_samples": task.samples * share, **task.state, **task.kind}
            self._observe(worker, done, seconds)

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        """Forecast paces and running attempts; None if nothing is new or no forecast is needed.

        Drivers call this before the scheduler's time advances, and before a round begins.
        Predicting costs about 50 µs per worker, so the forecaster predicts once a second, or less
        often with more than a thousand workers. A shorter round begins without a forecast. With two
        workers, a forecast before each round took 2 ms of its 20 ms, and no decision pays off so
        quickly.
        """
        last = self._forecast_at
        between = max(_BETWEEN_SECONDS, _BETWEEN_SECONDS_A_WORKER * len(self._machines))
        too_soon = last is not None and at_seconds - last < between
        if self._predictor is None or not self._wanted or not self._news or too_soon:
            return None
        # Until a worker has reported or finished, a forecast would be the usual time of the traces.
        if not self._has_evidence:
            return None
        self._news, self._forecast_at = False, at_seconds
        busy = {name: (m, m.task) for name, m in self._machines.items() if m.task is not None}
        # Two kinds of requests. For every worker, busy or not: the time for a shard of the usual
        # size, by which policies compare workers. For every running attempt: its end.
        afresh: list[Request] = [
            (name, {"n_samples": self._usual_samples, **machine.state, **self._kind_of(machine)})
            for name, machine in self._machines.items()
        ]
        running: list[Request] = [(name, task.features()) for name, (_, task) in busy.items()]
        forecasts = self._predict([*afresh, *running])
        if forecasts is None:
            return None
        paces, ends = forecasts[: len(afresh)], forecasts[len(afresh) :]
        return on.Forecasts(
            at_seconds=at_seconds,
            paces=tuple(
                (name, pace.after(0.0).times(1.0 / self._usual_samples))
                for name, pace in zip(self._machines, paces, strict=True)
            ),
            remaining=tuple(
                (task.attempt, self._left(machine, task, end))
                for (machine, task), end in zip(busy.values(), ends, strict=True)
            ),
        )

    def _left(self, machine: _Machine, task: _Task, whole: Forecast) -> Forecast:
        size = self._update_bytes.get(task.attempt.experiment, 0)
        return task.left(whole, size, machine.bytes_per_second)

    def _kind_of(self, machine: _Machine) -> Features:
        """Return the features of the last task's precision, and of a worker's device."""
        known = {f"precision_{self._precision}": 1.0} if self._precision else {}
        device = trained_on(self._asked, machine.device) if machine.device else None
        return known | ({f"device_{Device.of(device).kind}": 1.0} if device else {})

    def _take(self, worker: str, attempt: AttemptId) -> _Task | None:
        machine = self._machines.get(worker)
        if machine is None or machine.task is None or machine.task.attempt != attempt:
            return None
        task, machine.task = machine.task, None
        self._news = True
        return task

    def _observe(self, worker: str, features: Features, seconds: float) -> None:
        self._has_evidence = True
        if self._predictor is not None:
            try:
                self._predictor.observe(worker, features, seconds)
            except Exception as error:  # noqa: BLE001 - training goes on without forecasts
                self._set_aside(error)

    def _predict(self, requests: list[Request]) -> list[Forecast] | None:
        if self._predictor is not None:
            try:
                return self._predictor.predict_many(requests)
            except Exception as error:  # noqa: BLE001
                self._set_aside(error)
        return None

    def _set_aside(self, error: Exception) -> None:
        # We don't use it again, because it may have raised in the middle of learning.
        self._predictor = None
        _log.warning("forecasts stop, because the predictor failed (%s)", error)


def _bytes_of(core: Scheduler) -> dict[str, int]:
    """Return the bytes of the last update of each open experiment."""
    return {each.name: each.update_bytes for each in core.state.open}
