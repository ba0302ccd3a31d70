"""Puts on record what happened to an experiment: events and commands become facts.

Runs in the driver's thread, before the commands are carried out. A fact goes to the record of the
experiment it is about; comings and goings of workers go to all records that are still open. Nothing
is written here: that is the keeper's doing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from downpour.manager.roster import Roster
from downpour.manager.tally import Tally
from downpour.manager.usage import Usage
from downpour.manager.workspace import Workspace
from downpour.runtime.record_lines import (
    AggregatedLine,
    AssignedLine,
    AttemptFailedLine,
    CancelledLine,
    ContradictedLine,
    DroppedLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    ForeseenLine,
    HandOverAskedLine,
    PreparedLine,
    RecordLine,
    ResizedLine,
    SavedLine,
    SubmittedLine,
    UpdatedLine,
    WorkerJoinedLine,
    WorkerLeftLine,
    WorkerRequestedLine,
)
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.values import AttemptId, ExperimentState
from downpour.version import VERSION

log = logging.getLogger(__name__)


class Recorder:
    """Appends to the records of the given workspaces, and keeps a tally."""

    def __init__(self, spaces: Mapping[str, Workspace], roster: Roster) -> None:
        self.tally = Tally()
        self._spaces = spaces
        self._roster = roster
        self._touched: set[str] = set()
        self._submitted_at: dict[str, float] = {}
        self._aggregating: dict[str, tuple[float, do.Aggregate]] = {}
        self._usage = Usage(self._write)

    def note(self, event: on.Event, commands: list[do.Command]) -> set[str]:
        """Put on record one event and what the core made of it; returns whose records grew."""
        self._touched = set()
        now = event.at_seconds
        self._note_event(event, now)
        for command in commands:
            self._note_command(command, now)
        return self._touched

    def go_on(self, submitted_at: Mapping[str, float]) -> None:
        """Continue the records of experiments that an earlier manager took in, and when."""
        self._submitted_at.update(submitted_at)

    def _note_event(self, event: on.Event, now: float) -> None:
        match event:
            case on.ExperimentSubmitted():
                self._submitted(event, now)
            case on.WorkerJoined():
                self._joined(event, now)
            case on.HeartbeatReceived():
                self._heard(event)
            case on.Prepared():
                self._prepared(event, now)
            case on.Aggregated():
                self._aggregated(event, now)
            case on.Evaluated():
                found = event.evaluation
                fact = EvaluatedLine(
                    round=event.round,
                    accuracy=found.accuracy,
                    loss=found.loss,
                    class_accuracy=found.class_accuracy,
                    seconds=found.seconds,
                )
                self._write(event.experiment, now, fact)
            case _:
                pass

    def _note_command(self, command: do.Command, now: float) -> None:  # noqa: C901 - arms
        match command:
            case do.Assign():
                attempt = _of(command.attempt)
                begun = command.snapshot.steps_done if command.snapshot else 0
                forecast = command.forecast
                fact = AssignedLine(
                    **attempt,
                    worker=command.worker,
                    reason=command.reason,
                    from_step=begun,
                    q10_seconds=forecast.q10 if forecast else None,
                    q50_seconds=forecast.q50 if forecast else None,
                    q90_seconds=forecast.q90 if forecast else None,
                )
                self._write(command.attempt.experiment, now, fact)
            case do.Foresee():
                self._foreseen(command, now)
            case do.Accept():
                self._accepted(command, now)
            case do.GiveUp():
                failed = AttemptFailedLine(
                    **_of(command.attempt),
                    worker=command.worker,
                    failure=command.failure,
                    reason=command.reason,
                )
                self._write(command.attempt.experiment, now, failed)
                self._usage.end(command.worker, command.attempt, now)
            case do.Save():
                saved = SavedLine(
                    **_of(command.attempt),
                    worker=command.worker,
                    step=command.snapshot.steps_done,
                    bytes=command.snapshot.file.size_bytes,
                )
                self._write(command.attempt.experiment, now, saved)
            case do.Contradict():
                self._contradicted(command, now)
            case do.HandOver() | do.Drop() | do.Resize() | do.RequestWorker():
                self._directed(command, now)
            case do.Aggregate():
                self._aggregating[command.experiment] = (now, command)
            case do.Dismiss():
                for experiment in list(self._submitted_at):
                    left = WorkerLeftLine(
                        worker=command.worker, reason=command.reason, lost=command.lost
                    )
                    self._write(experiment, now, left)
            case do.Conclude():
                self._concluded(command, now)
            case _:
                pass

    def _submitted(self, event: on.ExperimentSubmitted, now: float) -> None:
        self._submitted_at[event.experiment] = now
        fact = SubmittedLine(
            experiment=event.experiment,
            name=event.spec.name,
            spec=event.spec.model_dump(),
            version=VERSION,
            shards=event.spec.shards,
        )
        self._write(event.experiment, now, fact)
        for worker in self._roster.names():
            self._write(event.experiment, now, self._introduction(worker))

    def _joined(self, event: on.WorkerJoined, now: float) -> None:
        for experiment in list(self._submitted_at):
            self._write(experiment, now, self._introduction(event.worker))

    def _introduction(self, worker: str) -> RecordLine:
        entry = self._roster.get(worker)
        return WorkerJoinedLine(
            worker=worker,
            address=str(entry.address) if entry else "",
            numeric_class=str(entry.registration.numeric_class) if entry else "",
        )

    def _heard(self, event: on.HeartbeatReceived) -> None:
        """Take in what a worker's process uses; strangers are told to register first."""
        if self._roster.get(event.worker) is not None:
            self._usage.hear(event)

    def _prepared(self, event: on.Prepared, now: float) -> None:
        made = self._spaces[event.experiment].prepared
        if made is None or made.drawn is None:
            return  # an experiment that goes on has this on record from its first manager
        known = made.dataset.facts
        fact = PreparedLine(
            train_samples=known.train_samples,
            test_samples=known.test_samples,
            classes=known.classes,
            shard_samples=event.shard_samples,
            prepare_seconds=made.prepare_seconds,
            split_seconds=made.split_seconds,
            bytes=made.model.size_bytes,
            parameters=made.drawn.trained_numbers,
            dataset=made.dataset_key,
            understood=made.dataset.understood,
            remarks=made.dataset.remarks,
            numeric_class=str(made.drawn.numeric_class),
        )
        self._write(event.experiment, now, fact)

    def _foreseen(self, command: do.Foresee, now: float) -> None:
        predicted = command.remaining.later(command.elapsed_seconds)
        fact = ForeseenLine(
            **_of(command.attempt),
            worker=command.worker,
            done=command.done,
            elapsed_seconds=command.elapsed_seconds,
            q10_seconds=predicted.q10,
            q50_seconds=predicted.q50,
            q90_seconds=predicted.q90,
        )
        self._write(command.attempt.experiment, now, fact)

    def _accepted(self, command: do.Accept, now: float) -> None:
        update = command.update
        fact = UpdatedLine(
            **_of(command.attempt),
            worker=command.worker,
            samples=update.samples,
            steps=update.steps,
            loss=update.loss,
            load_seconds=update.load_seconds,
            train_seconds=update.train_seconds,
            publish_seconds=update.publish_seconds,
            completion_seconds=command.completion_seconds,
            bytes=update.file.size_bytes,
        )
        self._write(command.attempt.experiment, now, fact)
        self._usage.end(command.worker, command.attempt, now)

    def _directed(
        self, command: do.HandOver | do.Drop | do.Resize | do.RequestWorker, now: float
    ) -> None:
        """Put on record what a policy has asked for, besides assignments."""
        fact: RecordLine
        match command:
            case do.HandOver():
                fact = HandOverAskedLine(
                    **_of(command.attempt),
                    worker=command.worker,
                    meant_for=command.meant_for,
                    reason=command.reason,
                )
                experiment = command.attempt.experiment
            case do.Drop():
                experiment, shards = command.experiment, command.shards
                fact = DroppedLine(round=command.round, shards=shards, reason=command.reason)
            case do.Resize():
                experiment, samples = command.experiment, command.samples
                fact = ResizedLine(round=command.round, samples=samples, reason=command.reason)
            case do.RequestWorker():
                experiment = command.experiment
                fact = WorkerRequestedLine(reason=command.reason)
        self._write(experiment, now, fact)

    def _contradicted(self, command: do.Contradict, now: float) -> None:
        differs = ContradictedLine(
            **_of(command.attempt),
            worker=command.worker,
            accepted_from=command.accepted_from,
            checksum=command.update.file.checksum,
            accepted_checksum=command.accepted.file.checksum,
        )
        log.warning("%s", differs)
        self._write(command.attempt.experiment, now, differs)

    def _aggregated(self, event: on.Aggregated, now: float) -> None:
        began, asked = self._aggregating.pop(event.experiment, (now, None))
        if asked is None:
            return
        samples = sum(update.samples for update in asked.updates)
        weighted = sum(update.samples * update.loss for update in asked.updates)
        fact = AggregatedLine(
            round=event.round,
            version=event.round + 1,
            file=event.model.name,
            bytes=event.model.size_bytes,
            seconds=now - began,
            train_seconds=asked.train_seconds,
            loss=weighted / samples if samples else 0.0,
        )
        self._write(event.experiment, now, fact)

    def _concluded(self, command: do.Conclude, now: float) -> None:
        began = self._submitted_at.get(command.experiment, now)
        self._usage.end_all(command.experiment, now)
        fact: RecordLine
        if command.ending is ExperimentState.FINISHED and command.model is not None:
            fact = FinishedLine(file=command.model.name, total_seconds=now - began)
        elif command.ending is ExperimentState.CANCELLED:
            fact = CancelledLine(reason=command.reason)
        else:
            fact = FailedLine(reason=command.reason, asked_wrongly=command.asked_wrongly)
        self._write(command.experiment, now, fact)
        self._submitted_at.pop(command.experiment, None)
        self._aggregating.pop(command.experiment, None)

    def _write(self, experiment: str, now: float, fact: RecordLine) -> None:
        """Append to a record that is open; an ended experiment's says no more."""
        space = self._spaces.get(experiment)
        if space is not None and experiment in self._submitted_at:
            space.record.append(now, fact)
            self.tally.take(fact)
            self._touched.add(experiment)


def _of(attempt: AttemptId) -> dict[str, int]:
    return {"round": attempt.round, "shard": attempt.shard, "attempt": attempt.attempt}
