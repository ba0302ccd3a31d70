"""The scheduler: a deterministic state machine with one door, `handle(event) -> list[Command]`.

It decides who trains what, what counts, and when a round is over. It knows no clock, file, socket
or tensor: time comes with the events, effects leave as commands (`commands.py` says in which order
a driver owes them). The same events always give the same commands, so the manager and a simulator
drive the same core, and a recorded run can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from downpour.errors import SpecError
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.experiment import Experiment, files_of
from downpour.scheduler.round import Round, Task
from downpour.scheduler.workers import Worker, Workers
from downpour.stragglers import POLICIES
from downpour.values import AttemptId, FailureKind, Progress, PublishedFile, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """What the scheduler is told about its surroundings.

    A worker counts as lost after `lost_after_seconds` without a heartbeat; an assignment that its
    worker does not mention for as long has not arrived.
    """

    lost_after_seconds: float = 10.0


class Scheduler:
    """Keyed by experiment; one is active at a time, the others wait in order of submission."""

    def __init__(self, options: SchedulerOptions | None = None) -> None:
        self.options = options or SchedulerOptions()
        self.workers = Workers()
        self.experiments: dict[str, Experiment] = {}
        self.active: Experiment | None = None
        self.events_handled = 0
        self.now_seconds = 0.0
        self._commands: list[do.Command] = []

    def handle(self, event: on.Event) -> list[do.Command]:
        """Take in one event; returns what must be done because of it, in order."""
        self.events_handled += 1
        self.now_seconds = max(self.now_seconds, event.at_seconds)
        self._commands = []
        self._dispatch(event)
        self._assign()
        return self._commands

    def unwanted(self, worker: str, running: Sequence[Progress]) -> list[AttemptId]:
        """Say which of the attempts that a worker reports it should not be running."""
        known = self.workers.get(worker)
        wanted = known.running if known else None
        return [progress.attempt for progress in running if progress.attempt != wanted]

    def _dispatch(self, event: on.Event) -> None:  # noqa: C901, PLR0912 - one arm an event
        match event:
            case on.ExperimentSubmitted():
                self._submitted(event)
            case on.ExperimentCancelled():
                self._cancelled(event)
            case on.Prepared():
                self._prepared(event)
            case on.EffectFailed():
                self._effect_failed(event)
            case on.WorkerJoined():
                self._joined(event.worker, event.running)
            case on.WorkerLeft():
                self._gone(event.worker, FailureKind.CANCELLED, event.reason)
            case on.WorkerLost():
                self._gone(event.worker, FailureKind.LOST, event.reason)
            case on.HeartbeatReceived():
                self._heartbeat(event)
            case on.UpdatePublished():
                self._published(event)
            case on.AttemptFailed():
                self._attempt_failed(event)
            case on.Aggregated():
                self._aggregated(event)
            case on.UpdatesRefused():
                self._refused(event)
            case on.Evaluated():
                self._evaluated(event)
            case on.ModelPublished():
                self._model_published(event)
            case on.Tick():
                self._tick()
            case _:
                assert_never(event)

    # Experiments

    def _submitted(self, event: on.ExperimentSubmitted) -> None:
        if event.experiment in self.experiments:
            return
        if event.spec.shards is None:
            raise SpecError("shards", None, "a resolved spec names a number")
        self.experiments[event.experiment] = Experiment(event.experiment, event.spec)
        self._activate_next()

    def _activate_next(self) -> None:
        if self.active is not None:
            return
        waiting = (e for e in self.experiments.values() if e.life.state == "waiting")
        self.active = next(waiting, None)
        if self.active is not None:
            self.active.life.step("activate")
            self._prepare(self.active)

    def _prepare(self, experiment: Experiment) -> None:
        self._do(
            do.Prepare(
                cause=self.events_handled,
                experiment=experiment.name,
                spec=experiment.spec,
                model=experiment.models[-1] if experiment.models else None,
            )
        )

    def _prepared(self, event: on.Prepared) -> None:
        experiment = self._active(event.experiment)
        if experiment is None or (experiment.life.state != "preparing" and experiment.ready):
            return
        made, asked = len(event.shard_samples), experiment.spec.shards
        if made != asked:
            self._fail(experiment, f"the dataset was cut into {made} shards instead of {asked}")
        elif experiment.ready:
            self._start(experiment, event)
        elif event.shard_samples != experiment.shard_samples:
            self._fail(experiment, "the dataset is not the one that this experiment began with")
        else:
            self._go_on(experiment)

    def _start(self, experiment: Experiment, event: on.Prepared) -> None:
        experiment.life.step("start")
        experiment.shard_samples = event.shard_samples
        experiment.models.append(event.model)
        experiment.start_round()

    def _go_on(self, experiment: Experiment) -> None:
        """Ask once more for what was outstanding when the manager before this one ended."""
        experiment.ready = True
        for number, model in experiment.evaluating.items():
            self._evaluate(experiment, number, model)
        if experiment.round is not None:
            self._aggregate_if_complete(experiment.round)
        elif experiment.may_publish:
            self._publish(experiment)

    def _effect_failed(self, event: on.EffectFailed) -> None:
        experiment = self._active(event.experiment)
        if experiment is not None:
            self._fail(experiment, event.reason, asked_wrongly=event.asked_wrongly)

    def _cancelled(self, event: on.ExperimentCancelled) -> None:
        experiment = self.experiments.get(event.experiment)
        if experiment is not None and experiment.life.may("cancel"):
            experiment.life.step("cancel")
            self._conclude(experiment, "cancelled", event.reason)

    def _fail(self, experiment: Experiment, reason: str, *, asked_wrongly: bool = False) -> None:
        experiment.life.step("fail")
        experiment.asked_wrongly = asked_wrongly
        self._conclude(experiment, "failed", reason)

    def _publish_if_done(self, experiment: Experiment) -> None:
        """Ask for the result if what has just come in was the last thing outstanding."""
        if experiment.may_publish:
            self._publish(experiment)

    def _publish(self, experiment: Experiment) -> None:
        experiment.publishing = True
        self._do(
            do.Publish(
                cause=self.events_handled, experiment=experiment.name, model=experiment.model
            )
        )

    def _conclude(self, experiment: Experiment, ending: do.Ending, reason: str) -> None:
        experiment.reason = reason
        if self.active is experiment:
            self.active = None
            for worker in self.workers:
                self._cancel(worker, reason)
        self._discard(experiment.name, experiment.close())
        self._do(
            do.Conclude(
                cause=self.events_handled,
                experiment=experiment.name,
                ending=ending,
                reason=reason,
                asked_wrongly=experiment.asked_wrongly,
                model=experiment.result,
            )
        )
        self._activate_next()

    # Workers

    def _joined(self, name: str, running: AttemptId | None) -> None:
        """Take a worker in; one that still runs what it was given goes on with it.

        Its former self, if there is one, else gives up what it was running.
        """
        known = self.workers.hear(name, self.now_seconds)
        if known is not None and running is not None and known.running == running:
            known.mentioned_at_seconds = self.now_seconds
            return
        former = self.workers.remove(name)
        if former is not None and former.running is not None:
            self._give_up(name, former.running, FailureKind.LOST, f"{name} registered anew")
        self.workers.join(name, self.now_seconds)

    def _gone(self, name: str, failure: FailureKind, reason: str) -> None:
        worker = self.workers.remove(name)
        if worker is None:
            return
        self._do(do.Dismiss(cause=self.events_handled, worker=name, reason=reason))
        if worker.running is not None:
            self._give_up(name, worker.running, failure, reason)

    def _heartbeat(self, event: on.HeartbeatReceived) -> None:
        worker = self.workers.hear(event.worker, self.now_seconds)
        if worker is None:
            return
        worker.system = event.system
        for progress in event.running:
            if progress.attempt == worker.running:
                worker.progress = progress
                worker.mentioned_at_seconds = self.now_seconds
                return
        self._doubt(worker)

    def _doubt(self, worker: Worker) -> None:
        """Take back an attempt that its worker has not mentioned for long."""
        attempt = worker.running
        silent = self.now_seconds - worker.mentioned_at_seconds
        if attempt is None or silent < self.options.lost_after_seconds:
            return
        what = "has not begun it after" if worker.progress is None else "has not mentioned it for"
        self.workers.release(worker.name, attempt)
        reason = f"{worker.name} {what} {silent:.0f} s"
        self._give_up(worker.name, attempt, FailureKind.LOST, reason)

    def _tick(self) -> None:
        limit = self.options.lost_after_seconds
        for worker in list(self.workers):
            silent = self.now_seconds - worker.seen_at_seconds
            if silent > limit:
                self._gone(worker.name, FailureKind.LOST, f"no heartbeat for {silent:.0f} s")

    def _cancel(self, worker: Worker, reason: str) -> None:
        """Ask a worker to stop what it is doing, if anything."""
        attempt = worker.running
        if attempt is not None and self.workers.release(worker.name, attempt):
            self._do(
                do.Cancel(
                    cause=self.events_handled, worker=worker.name, attempt=attempt, reason=reason
                )
            )

    # Tasks

    def _assign(self) -> None:
        experiment = self.active
        current = experiment.round if experiment else None
        if experiment is None or current is None or not experiment.ready:
            return
        if not (current.any_pending and self.workers.any_idle):
            return
        view = current.view(self.now_seconds, self.workers.idle, self.workers.names)
        for choice in POLICIES[experiment.spec.policy](view):
            attempt = current.assign(choice.shard, choice.worker, self.now_seconds)
            self.workers.assign(choice.worker, attempt, self.now_seconds)
            self._do(
                do.Assign(
                    cause=self.events_handled,
                    worker=choice.worker,
                    attempt=attempt,
                    model=experiment.model,
                    optimizer_state=experiment.optimizer_states.get(choice.shard),
                    reason=choice.reason,
                )
            )

    def _published(self, event: on.UpdatePublished) -> None:
        attempt, update = event.attempt, event.update
        reporter = self.workers.hear(event.worker, self.now_seconds)
        self.workers.release(event.worker, attempt)
        found = self._find(attempt)
        if found is None or not found.task.welcomes(attempt):
            if found is not None and attempt != found.task.attempt:
                found.task.turned_down.add(attempt)  # its files go, so it may not count later
            self._discard_needless(attempt, update)
            return
        holder = self.workers.get(found.task.worker) if found.task.worker is not None else None
        if holder is not None:
            self._cancel(holder, "another attempt at the shard was first")
        found.round.publish(attempt, event.worker, update, self.now_seconds)
        if reporter is not None:
            reporter.tasks_done += 1
        began = found.task.assigned_at_seconds[attempt.attempt]
        self._do(
            do.Accept(
                cause=self.events_handled,
                worker=event.worker,
                attempt=attempt,
                update=update,
                completion_seconds=self.now_seconds - began,
            )
        )
        self._aggregate_if_complete(found.round)

    def _attempt_failed(self, event: on.AttemptFailed) -> None:
        self.workers.hear(event.worker, self.now_seconds)
        held = self.workers.release(event.worker, event.attempt)
        found = self._find(event.attempt)
        if found is None or not found.task.life.may("publish"):
            return
        if event.failure is FailureKind.SPEC:
            self._fail(found.experiment, event.reason, asked_wrongly=True)
        elif held:
            self._give_up(event.worker, event.attempt, event.failure, event.reason)

    def _give_up(self, worker: str, attempt: AttemptId, failure: FailureKind, reason: str) -> None:
        """Make the task of an attempt pending again, now that its worker holds it no longer.

        Somebody who leaves or is told to stop has not failed: that costs the task no retry.
        """
        found = self._find(attempt)
        if found is None:
            return
        self._do(
            do.GiveUp(
                cause=self.events_handled,
                worker=worker,
                attempt=attempt,
                failure=failure,
                reason=reason,
            )
        )
        found.round.give_up(attempt.shard, counts=failure is not FailureKind.CANCELLED)
        self._fail_if_hopeless(found, reason)

    def _fail_if_hopeless(self, found: _Found, reason: str) -> None:
        failures = found.task.failures
        if failures > found.experiment.spec.retries:
            workers = ", ".join(dict.fromkeys(found.task.offer.failed_on))
            times = f"{failures} times" if failures > 1 else "once"
            story = f"shard {found.task.shard} of round {found.round.number + 1} failed {times}"
            self._fail(found.experiment, f"{story} (on {workers}), last: {reason}")

    # Rounds

    def _aggregate_if_complete(self, current: Round) -> None:
        if not current.complete or self.active is None or not self.active.ready:
            return
        current.aggregating = True
        began = current.started_at_seconds or 0.0
        self._do(
            do.Aggregate(
                cause=self.events_handled,
                experiment=current.experiment,
                round=current.number,
                updates=current.updates(),
                train_seconds=current.last_update_at_seconds - began,
            )
        )

    def _aggregated(self, event: on.Aggregated) -> None:
        experiment = self._active(event.experiment)
        current = experiment.aggregating(event.round) if experiment else None
        if experiment is None or current is None:
            return
        spent = experiment.close_round(current, event.model)
        if experiment.may_start_round:
            experiment.start_round()
            self._assign()  # before all else: nobody should wait for files to be removed
        if event.round in experiment.evaluating:
            self._evaluate(experiment, event.round, event.model)
        self._discard(experiment.name, spent)
        self._publish_if_done(experiment)

    def _evaluate(self, experiment: Experiment, number: int, model: PublishedFile) -> None:
        self._do(
            do.Evaluate(
                cause=self.events_handled, experiment=experiment.name, round=number, model=model
            )
        )

    def _refused(self, event: on.UpdatesRefused) -> None:
        experiment = self._active(event.experiment)
        current = experiment.aggregating(event.round) if experiment else None
        if experiment is None or current is None:
            return
        current.aggregating = False
        for shard, reason in event.reasons:
            if experiment.life.state == "running":
                self._refuse(_Found(experiment, current, current.tasks[shard]), reason)

    def _refuse(self, found: _Found, reason: str) -> None:
        task = found.task
        worker, attempt, update = task.worker, task.attempt, task.update
        if worker is None or attempt is None or update is None:
            return
        found.round.refuse(task.shard)
        self._do(
            do.GiveUp(
                cause=self.events_handled,
                worker=worker,
                attempt=attempt,
                failure=FailureKind.STORE,
                reason=reason,
            )
        )
        self._discard(found.experiment.name, files_of(update))
        self._fail_if_hopeless(found, reason)

    def _evaluated(self, event: on.Evaluated) -> None:
        experiment = self._active(event.experiment)
        if experiment is None or event.round not in experiment.evaluating:
            return
        spent = experiment.take_evaluation(event.round, event.evaluation)
        self._discard(experiment.name, spent)
        if experiment.round is None and experiment.may_start_round:
            experiment.start_round()
        self._publish_if_done(experiment)

    def _model_published(self, event: on.ModelPublished) -> None:
        experiment = self._active(event.experiment)
        if experiment is not None and experiment.publishing:
            experiment.result = event.model
            experiment.life.step("finish")
            self._conclude(experiment, "finished", "every round is done")

    # Small helpers

    def _active(self, name: str) -> Experiment | None:
        return self.active if self.active is not None and self.active.name == name else None

    def _find(self, attempt: AttemptId) -> _Found | None:
        """Return where an attempt belongs, if it was made in the current round."""
        experiment = self._active(attempt.experiment)
        current = experiment.round if experiment else None
        task = current.find(attempt) if current else None
        if experiment is None or current is None or task is None:
            return None
        return _Found(experiment, current, task)

    def _discard_needless(self, attempt: AttemptId, update: Update) -> None:
        """Remove an update that comes too late, but never what a repeated report names again."""
        experiment = self.experiments.get(attempt.experiment)
        if experiment is not None and experiment.knows(attempt):
            files = (f for f in files_of(update) if not experiment.needs(attempt.shard, f))
            self._discard(experiment.name, tuple(files))

    def _discard(self, experiment: str, files: tuple[PublishedFile, ...]) -> None:
        if files:
            self._do(do.Discard(cause=self.events_handled, experiment=experiment, files=files))

    def _do(self, command: do.Command) -> None:
        self._commands.append(command)


class _Found(NamedTuple):
    """Where an attempt belongs."""

    experiment: Experiment
    round: Round
    task: Task
