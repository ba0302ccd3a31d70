"""The scheduler: a deterministic state machine with one door, `handle(event) -> list[Command]`.

It decides who trains what, what counts, and when a round is over. It knows no clock, file, socket
or tensor: time comes with the events, effects leave as commands (`commands.py` says in which order
a driver owes them). The same events always give the same commands, so the manager and a simulator
drive the same core, and a recorded run can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from downpour.errors import SpecError
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.round import Round
from downpour.scheduler.workers import Worker, Workers
from downpour.stragglers import POLICIES, RoundView
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
                self._joined(event.worker)
            case on.WorkerLeft():
                self._gone(event.worker, event.reason, counts=False)
            case on.WorkerLost():
                self._gone(event.worker, event.reason, counts=True)
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
            self._do(
                do.Prepare(
                    cause=self.events_handled, experiment=self.active.name, spec=self.active.spec
                )
            )

    def _prepared(self, event: on.Prepared) -> None:
        experiment = self._active(event.experiment)
        if experiment is None or experiment.life.state != "preparing":
            return
        experiment.life.step("start")
        experiment.shard_samples = event.shard_samples
        experiment.models.append(event.model)
        experiment.start_round()

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

    def _conclude(self, experiment: Experiment, ending: do.Ending, reason: str) -> None:
        experiment.reason = reason
        for worker in list(self.workers):
            attempt = worker.running
            if attempt is not None and attempt.experiment == experiment.name:
                self.workers.release(worker.name, attempt)
                self._do(
                    do.Cancel(
                        cause=self.events_handled,
                        worker=worker.name,
                        attempt=attempt,
                        reason=reason,
                    )
                )
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
        experiment.round = None
        if self.active is experiment:
            self.active = None
        self._activate_next()

    # Workers

    def _joined(self, name: str) -> None:
        former = self.workers.remove(name)
        if former is not None and former.running is not None:
            reason = f"{name} registered anew"
            self._give_up(name, former.running, FailureKind.LOST, reason, counts=True)
        self.workers.join(name, self.now_seconds)

    def _gone(self, name: str, reason: str, *, counts: bool) -> None:
        worker = self.workers.remove(name)
        if worker is None:
            return
        self._do(do.Dismiss(cause=self.events_handled, worker=name, reason=reason))
        if worker.running is not None:
            self._give_up(name, worker.running, FailureKind.LOST, reason, counts=counts)

    def _heartbeat(self, event: on.HeartbeatReceived) -> None:
        worker = self.workers.get(event.worker)
        if worker is None:
            return
        worker.seen_at_seconds = self.now_seconds
        worker.system = event.system
        for progress in event.running:
            if progress.attempt == worker.running:
                worker.progress = progress
                return
        self._doubt_assignment(worker)

    def _doubt_assignment(self, worker: Worker) -> None:
        """Take back an attempt that its worker has not mentioned for long."""
        since = self.now_seconds - worker.assigned_at_seconds
        attempt = worker.running
        if attempt is None or since < self.options.lost_after_seconds:
            return
        self.workers.release(worker.name, attempt)
        reason = f"{worker.name} has not begun it after {since:.0f} s"
        self._give_up(worker.name, attempt, FailureKind.LOST, reason, counts=True)

    def _tick(self) -> None:
        limit = self.options.lost_after_seconds
        for worker in list(self.workers):
            silent = self.now_seconds - worker.seen_at_seconds
            if silent > limit:
                self._gone(worker.name, f"no heartbeat for {silent:.0f} s", counts=True)

    # Tasks

    def _assign(self) -> None:
        experiment = self.active
        current = experiment.round if experiment else None
        if experiment is None or current is None or not self.workers.any_idle:
            return
        idle = self.workers.idle
        view = RoundView(
            round=current.number,
            at_seconds=self.now_seconds,
            pending=current.pending(len(idle)),
            idle=idle,
        )
        if not view.pending:
            return
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
        worker = self.workers.get(event.worker)
        began = worker.assigned_at_seconds if worker else self.now_seconds
        if self.workers.release(event.worker, attempt) and worker is not None:
            worker.tasks_done += 1
        current = self._round_of(attempt)
        task = current.tasks[attempt.shard] if current else None
        if current is None or task is None or task.life.state not in {"pending", "running"}:
            if task is None or task.update is None or task.update.file != update.file:
                self._discard(attempt.experiment, _files(update))
            return
        if task.attempt not in {None, attempt}:
            self._cancel_running(task.worker, task.attempt, "another attempt was first")
        current.publish(attempt, event.worker, update, self.now_seconds)
        self._do(
            do.Accept(
                cause=self.events_handled,
                worker=event.worker,
                attempt=attempt,
                update=update,
                completion_seconds=self.now_seconds - began,
            )
        )
        self._aggregate_if_complete(attempt.experiment, current)

    def _attempt_failed(self, event: on.AttemptFailed) -> None:
        self.workers.release(event.worker, event.attempt)
        experiment = self._active(event.attempt.experiment)
        if experiment is not None and event.failure is FailureKind.SPEC:
            self._fail(experiment, event.reason, asked_wrongly=True)
            return
        counts = event.failure is not FailureKind.CANCELLED
        self._give_up(event.worker, event.attempt, event.failure, event.reason, counts=counts)

    def _give_up(
        self, worker: str, attempt: AttemptId, failure: FailureKind, reason: str, *, counts: bool
    ) -> None:
        current = self._round_of(attempt)
        task = current.tasks[attempt.shard] if current else None
        if current is None or task is None:
            return
        if task.attempt != attempt or task.life.state != "running":
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
        current.give_up(attempt.shard, counts=counts)
        self._fail_if_hopeless(attempt.experiment, current, attempt.shard, reason)

    def _fail_if_hopeless(self, name: str, current: Round, shard: int, reason: str) -> None:
        experiment = self.experiments[name]
        task = current.tasks[shard]
        if task.failures > experiment.spec.retries:
            workers = ", ".join(dict.fromkeys(task.failed_on)) or "no worker"
            times = f"{task.failures} times" if task.failures > 1 else "once"
            story = f"shard {shard} of round {current.number + 1} failed {times} (on {workers})"
            self._fail(experiment, f"{story}, last: {reason}")

    def _cancel_running(self, worker: str | None, attempt: AttemptId | None, reason: str) -> None:
        if worker is not None and attempt is not None and self.workers.release(worker, attempt):
            self._do(
                do.Cancel(cause=self.events_handled, worker=worker, attempt=attempt, reason=reason)
            )

    # Rounds

    def _aggregate_if_complete(self, name: str, current: Round) -> None:
        if not current.complete or current.aggregating:
            return
        current.aggregating = True
        began = current.started_at_seconds or 0.0
        self._do(
            do.Aggregate(
                cause=self.events_handled,
                experiment=name,
                round=current.number,
                updates=current.updates(),
                train_seconds=current.last_update_at_seconds - began,
            )
        )

    def _aggregated(self, event: on.Aggregated) -> None:
        experiment = self._aggregating(event.experiment, event.round)
        if experiment is None or experiment.round is None:
            return
        updates = experiment.round.apply()
        spent = [update.file for update in updates] + list(experiment.optimizer_states.values())
        experiment.optimizer_states = {
            shard: update.optimizer_state
            for shard, update in enumerate(updates)
            if update.optimizer_state is not None
        }
        experiment.round = None
        experiment.rounds_done = event.round + 1
        experiment.models.append(event.model)
        if experiment.wants_evaluation(event.round):
            experiment.evaluating[event.round] = event.model
        self._go_on(experiment)
        if event.round in experiment.evaluating:
            self._evaluate(experiment, event.round)
        self._discard(experiment.name, (*spent, *experiment.spent_models()))

    def _evaluate(self, experiment: Experiment, round_number: int) -> None:
        self._do(
            do.Evaluate(
                cause=self.events_handled,
                experiment=experiment.name,
                round=round_number,
                model=experiment.evaluating[round_number],
            )
        )

    def _refused(self, event: on.UpdatesRefused) -> None:
        experiment = self._aggregating(event.experiment, event.round)
        current = experiment.round if experiment else None
        if experiment is None or current is None:
            return
        current.aggregating = False
        for shard, reason in event.reasons:
            self._refuse(experiment.name, current, shard, reason)
            if experiment.life.state != "running":
                return

    def _refuse(self, name: str, current: Round, shard: int, reason: str) -> None:
        task = current.tasks[shard]
        worker, attempt, update = task.worker, task.attempt, task.update
        if worker is None or attempt is None or update is None:
            return
        current.refuse(shard)
        self._do(
            do.GiveUp(
                cause=self.events_handled,
                worker=worker,
                attempt=attempt,
                failure=FailureKind.STORE,
                reason=reason,
            )
        )
        self._discard(name, _files(update))
        self._fail_if_hopeless(name, current, shard, reason)

    def _evaluated(self, event: on.Evaluated) -> None:
        experiment = self._active(event.experiment)
        if experiment is None or experiment.evaluating.pop(event.round, None) is None:
            return
        experiment.last_evaluation = event.evaluation
        self._discard(experiment.name, experiment.spent_models())
        self._go_on(experiment)

    def _go_on(self, experiment: Experiment) -> None:
        """Start the next round if it may start, or finish when nothing is outstanding."""
        if experiment.round is None and experiment.may_start_round:
            experiment.start_round()
            self._assign()
        elif experiment.training_is_done and not experiment.evaluating:
            self._publish(experiment)

    def _publish(self, experiment: Experiment) -> None:
        if not experiment.publishing:
            experiment.publishing = True
            self._do(
                do.Publish(
                    cause=self.events_handled, experiment=experiment.name, model=experiment.model
                )
            )

    def _model_published(self, event: on.ModelPublished) -> None:
        experiment = self._active(event.experiment)
        if experiment is not None and experiment.publishing:
            experiment.result = event.model
            experiment.life.step("finish")
            self._conclude(experiment, "finished", "every round is done")

    # Small helpers

    def _active(self, name: str) -> Experiment | None:
        return self.active if self.active is not None and self.active.name == name else None

    def _round_of(self, attempt: AttemptId) -> Round | None:
        """Return the current round if the attempt belongs to it."""
        experiment = self._active(attempt.experiment)
        current = experiment.round if experiment else None
        if current is None or current.number != attempt.round:
            return None
        return current if 0 <= attempt.shard < len(current.tasks) else None

    def _aggregating(self, name: str, round_number: int) -> Experiment | None:
        experiment = self._active(name)
        current = experiment.round if experiment else None
        if current is None or current.number != round_number or not current.aggregating:
            return None
        return experiment

    def _discard(self, experiment: str, files: Sequence[PublishedFile]) -> None:
        if files:
            self._do(
                do.Discard(cause=self.events_handled, experiment=experiment, files=tuple(files))
            )

    def _do(self, command: do.Command) -> None:
        self._commands.append(command)


def _files(update: Update) -> tuple[PublishedFile, ...]:
    state = update.optimizer_state
    return (update.file,) if state is None else (update.file, state)
