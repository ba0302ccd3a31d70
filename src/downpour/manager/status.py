"""The core's state as the messages that clients see; called in the driver's thread."""

from __future__ import annotations

from downpour.manager.roster import Roster
from downpour.rpc.messages import (
    ExperimentState,
    ExperimentSummary,
    Status,
    TaskStatus,
    WorkerStatus,
)
from downpour.scheduler import Scheduler
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.round import Task
from downpour.scheduler.workers import Worker

TASKS_SHOWN = 10_000


def status(core: Scheduler, roster: Roster, experiment: str, change: int) -> Status:
    """Show the workers, and the experiment asked for (or the active one) with its round's tasks."""
    shown = core.experiments.get(experiment) if experiment else core.active
    tasks = shown.round.tasks[:TASKS_SHOWN] if shown and shown.round else []
    return Status(
        change=change,
        workers=tuple(_worker(worker, roster) for worker in core.workers),
        experiment=summary(shown) if shown else None,
        tasks=tuple(_task(core, task) for task in tasks),
    )


def summary(experiment: Experiment) -> ExperimentSummary:
    """Show an experiment in one line."""
    last = experiment.last_evaluation
    failed = experiment.life.state == "failed"
    return ExperimentSummary(
        experiment=experiment.name,
        name=experiment.spec.name,
        state=ExperimentState(experiment.life.state),
        rounds_done=experiment.rounds_done,
        rounds_total=experiment.spec.epochs,
        accuracy=last.accuracy if last else None,
        reason=experiment.reason if failed else None,
        asked_wrongly=experiment.asked_wrongly,
    )


def _worker(worker: Worker, roster: Roster) -> WorkerStatus:
    entry = roster.get(worker.name)
    return WorkerStatus(
        worker=worker.name,
        address=str(entry.address) if entry else "",
        state=worker.life.state,
        running=worker.running,
        system=worker.system,
        tasks_done=worker.tasks_done,
    )


def _task(core: Scheduler, task: Task) -> TaskStatus:
    worker = core.workers.get(task.worker) if task.worker else None
    progress = worker.progress if worker and worker.running == task.attempt else None
    done = task.update.steps if task.update else 0
    return TaskStatus(
        shard=task.shard,
        state=task.life.state,
        worker=task.worker,
        steps_done=progress.steps_done if progress else done,
        steps_total=progress.steps_total if progress else done,
        elapsed_seconds=progress.elapsed_seconds if progress else 0.0,
    )
