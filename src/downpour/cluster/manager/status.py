"""Turns the core's state into the messages that clients see; runs in the driver's thread."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import median

from downpour.base.devices import AUTO
from downpour.base.states import ExperimentState
from downpour.base.values import Forecast, NumericClass
from downpour.cluster.manager.roster import Roster
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState
from downpour.core.scheduler.round import ShardTask
from downpour.core.scheduler.round_view import contributions
from downpour.core.scheduler.workers import Worker
from downpour.core.stragglers.base import Saving
from downpour.network.rpc.messages import (
    ExperimentSummary,
    Status,
    TaskStatus,
    WorkerStatus,
    metrics_of,
)

_NONE: Mapping[str, Saving] = {}
TASKS_SHOWN = 10_000
"""This keeps the reply to a client well under a message's 16 MiB (`network/rpc/frames.py`)."""


def status(
    core: Scheduler,
    roster: Roster,
    experiment: str,
    change: int,
    numeric_class: NumericClass | None = None,
    contributions: Mapping[str, Saving] = _NONE,
) -> Status:
    """Return the workers, and an experiment (by default the active one) with its round's tasks.

    `contributions` are the workers' known contributions to the active experiment.
    """
    shown = core.state.experiments.get(experiment) if experiment else core.state.active
    tasks = shown.tasks_at_hand()[:TASKS_SHOWN] if shown else []
    update_bytes = shown.update_bytes if shown else 0
    usual = _usual_pace(core, tasks)
    device = shown.spec.device if shown else AUTO
    return Status(
        change=change,
        workers=tuple(
            _worker(worker, roster, device, contributions.get(worker.name))
            for worker in core.state.workers
        ),
        experiment=summary(shown) if shown else None,
        tasks=tuple(_task(core, task, usual, update_bytes) for task in tasks),
        wanted_workers=core.state.wanted_workers,
        decisions=tuple(
            f"{one.at_seconds - shown.submitted_at_seconds:.1f} s, {one.text}"
            for one in core.state.decisions
            if shown and one.experiment == shown.name
        ),
        numeric_class=numeric_class,
        hostname=socket.gethostname(),
        pid=os.getpid(),
    )


def summary(experiment: Experiment) -> ExperimentSummary:
    """Return an experiment's entry in a list of experiments."""
    last = experiment.last_evaluation
    state = experiment.life.state
    why = experiment.reason if state is ExperimentState.FAILED else ""
    if state is ExperimentState.RUNNING:
        why = experiment.told_waits
    meetings, done = experiment.spec.meetings, experiment.rounds_done
    return ExperimentSummary(
        experiment=experiment.name,
        name=experiment.spec.name,
        state=state,
        rounds_done=done,
        rounds_total=meetings.rounds,
        epochs_done=meetings.epoch_of(done),
        epochs_total=meetings.epochs_in_all,
        reason=why or None,
        asked_wrongly=experiment.asked_wrongly,
        metrics=metrics_of(last.metrics) if last else (),
        loss=last.loss if last and math.isfinite(last.loss) else None,
        part=experiment.part if experiment.tested is None else "test",
    )


def _worker(worker: Worker, roster: Roster, asked: str, saving: Saving | None) -> WorkerStatus:
    entry = roster.get(worker.name)
    return WorkerStatus(
        worker=worker.name,
        address=str(entry.address) if entry else "",
        state=worker.life.state,
        running=worker.running,
        system=worker.system,
        tasks_done=worker.tasks_done,
        slowness=median(worker.slowness) if worker.slowness else None,
        numeric_class=entry.registration.class_for(asked) if entry else None,
        hostname=entry.registration.hostname if entry else "",
        pid=entry.registration.pid if entry else 0,
        labels=entry.registration.labels if entry else (),
        device=entry.registration.trains_on if entry else "",
        saves=saving.share if saving else None,
        stands_by=saving.stands_by if saving else False,
        differs=roster.differences(worker.name),
    )


def _task(core: Scheduler, task: ShardTask, usual_pace: float, update_bytes: int) -> TaskStatus:
    workers = (core.state.workers.get(name) for name in task.held_by)
    reports = [worker.progress for worker in workers if worker and worker.progress]
    progress = max(reports, key=lambda progress: progress.share, default=None)
    done = task.update.steps if task.update else 0
    holder = next((w for w, a in task.held_by.items() if progress and a == progress.attempt), None)
    name = holder or task.worker or next(iter(task.held_by), None)
    worker = core.state.workers.get(name) if name in task.held_by else None
    pace = _predicted_pace(task, worker) if worker else None
    return TaskStatus(
        shard=task.shard,
        state=task.life.state,
        worker=name,
        steps_done=progress.steps_done if progress else done,
        steps_total=progress.steps_total if progress else done,
        elapsed_seconds=core.state.now_seconds - worker.assigned_at_seconds if worker else 0.0,
        predicted=_sendable(worker.forecast) if worker else None,
        slowness=pace / usual_pace if pace and usual_pace else None,
        moved_bytes=progress.moved_bytes if progress else 0,
        update_bytes=update_bytes,
    )


def _usual_pace(core: Scheduler, tasks: Sequence[ShardTask]) -> float:
    """Return the median of the round's paces, measured or forecast, in seconds per sample."""
    # Count only attempts that trained a whole shard. An attempt that continued a snapshot trained
    # only a part, so its seconds per sample would be too few.
    paces = [
        task.completion_seconds / task.offer.samples
        for task in tasks
        if task.attempt and task.offer.samples and not task.began_at[task.attempt.attempt]
    ]
    holders = ((task, core.state.workers.get(name)) for task in tasks for name in task.held_by)
    predicted = (_predicted_pace(task, worker) for task, worker in holders if worker)
    paces += [pace for pace in predicted if pace]
    return median(paces) if paces else 0.0


def _predicted_pace(task: ShardTask, worker: Worker) -> float | None:
    """Return the forecast seconds per sample for a worker's part of a task."""
    forecast, attempt = _sendable(worker.forecast), task.held_by.get(worker.name)
    if forecast is None or attempt is None:
        return None
    own = task.offer.samples * (1 - task.began_at[attempt.attempt])
    return forecast.q50 / own if own > 0 else None


def _sendable(forecast: Forecast | None) -> Forecast | None:
    """Return the forecast, or None if it is not finite: messages hold only finite numbers."""
    return forecast if forecast is not None and math.isfinite(forecast.q98) else None


TOLD_MAX = 40
"""A screenful, as many as `downpour status` shows."""
_AGAIN_SECONDS = 2.0


class KnownContributions:
    """The last known contribution of each worker; used in the driver's thread.

    If there is no new contribution, as between two rounds or in the first steps of a task, the last
    one stays. We drop it when another experiment becomes active or the number of workers changes.
    """

    def __init__(self) -> None:
        self._of: tuple[str, int] = ("", 0)
        self._known: Mapping[str, Saving] = {}
        self._again_at_seconds = 0.0

    def of(self, state: SchedulerState) -> Mapping[str, Saving]:
        """Return the first workers' contributions to the active experiment, by name."""
        now, of = state.now_seconds, (state.active.name if state.active else "", len(state.workers))
        if of != self._of:
            self._of, self._known, self._again_at_seconds = of, {}, now
        if now >= self._again_at_seconds:
            self._again_at_seconds = now + _AGAIN_SECONDS
            first = list(islice(state.workers.names, TOLD_MAX))
            self._known = {**self._known, **contributions(state, first)}
        return self._known
