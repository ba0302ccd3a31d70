"""Turns events and facts into the lines of the records.

Runs in the driver's thread, before the commands are carried out. A fact of the core makes one line
(`fact_lines.py`) in the record of its experiment; workers that join and leave are noted in all
records that are still open. What the manager alone knows (addresses, sizes, seconds) makes lines of
events. `persistence.py` writes the lines to the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from downpour.base.states import ExperimentState
from downpour.base.version import VERSION
from downpour.cluster.manager.counters import Counters
from downpour.cluster.manager.fact_lines import line_of
from downpour.cluster.manager.roster import Roster, membership_log
from downpour.cluster.manager.usage import Usage
from downpour.cluster.manager.workspace import Workspace
from downpour.core.scheduler import Output, facts
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler.facts import Fact
from downpour.files.records.record_lines import (
    AggregatedLine,
    CancelledLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    PreparedLine,
    RecordLine,
    SubmittedLine,
    WorkerJoinedLine,
)

log = logging.getLogger(__name__)


class Recorder:
    """Appends lines to the records of the given workspaces, and counts them."""

    def __init__(self, spaces: Mapping[str, Workspace], roster: Roster) -> None:
        self.counters = Counters()
        self._spaces = spaces
        self._roster = roster
        self._touched: set[str] = set()
        self._submitted_at: dict[str, float] = {}
        self._aggregating: dict[str, tuple[float, do.Aggregate]] = {}
        self._usage = Usage(self._write)

    def note(self, event: on.Event, output: Output) -> set[str]:
        """Record one event and the core's output; returns the experiments whose records grew."""
        self._touched = set()
        now = event.at_seconds
        self._note_event(event, now)
        for fact in output.facts:
            self._note_fact(fact, now)
        for command in output.commands:
            if isinstance(command, do.Aggregate):
                self._aggregating[command.experiment] = (now, command)
        return self._touched

    def go_on(self, submitted_at: Mapping[str, float]) -> None:
        """Continue the records of an earlier manager's experiments, submitted at these times."""
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
                evaluation = event.evaluation
                line = EvaluatedLine(
                    round=event.round,
                    part=event.part,
                    loss=evaluation.loss,
                    metrics=dict(evaluation.metrics),
                    class_accuracy=evaluation.class_accuracy,
                    seconds=evaluation.seconds,
                )
                self._write(event.experiment, now, line)
            case _:
                pass

    def _note_fact(self, fact: Fact, now: float) -> None:
        match fact:
            case facts.Concluded():
                self._concluded(fact, now)
            case facts.Dismissed():
                how = "is lost" if fact.lost else "left"
                membership_log.info("%s %s: %s", fact.worker, how, fact.reason)
                for experiment in list(self._submitted_at):
                    self._write(experiment, now, line_of(fact))
            case _:
                line = line_of(fact)
                self._write(fact.experiment, now, line)
                if isinstance(fact, facts.Contradicted):
                    log.warning("%s", line)
        if isinstance(fact, facts.Accepted | facts.GivenUp):
            self._usage.end(fact.worker, fact.attempt, now)

    def _submitted(self, event: on.ExperimentSubmitted, now: float) -> None:
        self._submitted_at[event.experiment] = now
        line = SubmittedLine(
            experiment=event.experiment,
            name=event.spec.name,
            spec=event.spec.model_dump(),
            version=VERSION,
            shards=event.spec.shards,
        )
        self._write(event.experiment, now, line)
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
        """Note what a worker's process uses; an unknown worker must register first."""
        if self._roster.get(event.worker) is not None:
            self._usage.hear(event)

    def _prepared(self, event: on.Prepared, now: float) -> None:
        made = self._spaces[event.experiment].prepared
        if made is None or made.drawn is None:
            return  # continued: the first manager's record has this line already
        known = made.dataset.facts
        line = PreparedLine(
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
            remarks=made.remarks,
            warnings=made.warnings,
            numeric_class=str(made.drawn.numeric_class),
            step_seconds=made.step.seconds if made.step else None,
            step_bytes=made.step.memory_bytes if made.step else None,
            frozen_bytes=made.frozen.size_bytes if made.frozen else 0,
            checksum=made.model.checksum,
        )
        self._write(event.experiment, now, line)

    def _aggregated(self, event: on.Aggregated, now: float) -> None:
        began, asked = self._aggregating.pop(event.experiment, (now, None))
        if asked is None:
            return
        samples = sum(update.samples for update in asked.updates)
        weighted = sum(update.samples * update.loss for update in asked.updates)
        line = AggregatedLine(
            round=event.round,
            version=event.round + 1,
            file=event.model.name,
            bytes=event.model.size_bytes,
            seconds=now - began,
            train_seconds=asked.train_seconds,
            loss=weighted / samples if samples else 0.0,
            parts=asked.parts,
            staleness=tuple(push.staleness for push in asked.pushes) if asked.parts else (),
            checksum=event.model.checksum,
        )
        self._write(event.experiment, now, line)

    def _concluded(self, ended: facts.Concluded, now: float) -> None:
        began = self._submitted_at.get(ended.experiment, now)
        # Before the last line, because nothing is written to a record after it.
        self._usage.end_all(ended.experiment, now)
        line: RecordLine
        if ended.ending is ExperimentState.FINISHED and ended.model is not None:
            line = FinishedLine(
                file=ended.model.name,
                total_seconds=now - began,
                reason=ended.reason,
                checksum=ended.model.checksum,
            )
        elif ended.ending is ExperimentState.CANCELLED:
            line = CancelledLine(reason=ended.reason)
        else:
            line = FailedLine(reason=ended.reason, asked_wrongly=ended.asked_wrongly)
        self._write(ended.experiment, now, line)
        self._submitted_at.pop(ended.experiment, None)
        self._aggregating.pop(ended.experiment, None)

    def _write(self, experiment: str, now: float, line: RecordLine) -> None:
        """Append a line to an experiment's record, unless the experiment has ended."""
        space = self._spaces.get(experiment)
        if space is not None and experiment in self._submitted_at:
            space.record.append(now, line)
            self.counters.take(line)
            self._touched.add(experiment)
