"""Adds the manager's own observations to the journals: addresses, sizes, seconds, resources.

This runs in the driver's thread, before the commands run. `files/records/view.py` projects the
record that people read from the journals.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from downpour.cluster.manager.counters import Counters
from downpour.cluster.manager.roster import Roster, membership_log
from downpour.cluster.manager.usage import Usage
from downpour.cluster.manager.workspace import Workspace
from downpour.core.scheduler import Observed, Output, Scheduler, facts
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.files.records.record_lines import (
    DisturbedLine,
    OtherPackagesLine,
    PreparedLine,
    RecordLine,
    WorkerJoinedLine,
)
from downpour.files.records.view import aggregating, line_of, observed

log = logging.getLogger(__name__)

Happened = on.Event | facts.Fact | Observed


class Observations:
    """Describes the consequences of an event in the given workspaces, and counts them."""

    def __init__(self, spaces: Mapping[str, Workspace], roster: Roster) -> None:
        self.counters = Counters()
        self._spaces = spaces
        self._roster = roster
        self._usage = Usage()
        self._told: dict[str, tuple[str, tuple[str, ...]]] = {}

    def story(self, core: Scheduler, event: on.Event, output: Output) -> Iterator[Happened]:
        """Yield an event and the facts of its output, with the observations on each, in order."""
        self.counters.take(event)
        if isinstance(event, on.Prepared):
            yield from self._prepared(event)
        yield event
        yield from self._observed(core, event)
        for fact in output.facts:
            self.counters.take(fact)
            if isinstance(fact, facts.Concluded):
                # Yield these before the fact, because the manager journals nothing after it.
                yield from self._usage.end_all(fact.experiment)
            yield fact
            yield from self._noticed(fact)
        for command in output.commands:
            if isinstance(command, do.Aggregate):
                self.counters.begin(event.at_seconds, command)
                yield aggregating(command)

    def _observed(self, core: Scheduler, event: on.Event) -> Iterator[Observed]:
        match event:
            case on.ExperimentSubmitted():
                for worker in self._roster.names():
                    yield observed(event.experiment, self._introduction(worker))
            case on.WorkerJoined():
                for experiment in core.state.experiments:
                    yield observed(experiment, self._introduction(event.worker))
            case on.HeartbeatReceived():
                # An unknown worker must register first.
                if self._roster.get(event.worker) is not None:
                    yield from self._usage.hear(event)
                    yield from self._compared(event)
            case on.Disturbed():
                line = DisturbedLine(who=event.who, what=event.what)
                yield observed(event.experiment, line)
            case _:
                pass

    def _compared(self, event: on.HeartbeatReceived) -> Iterator[Observed]:
        """Report for each worker, once per experiment, which of its packages differ."""
        packages = self._roster.differences(event.worker)
        for progress in event.running if packages else ():
            experiment = progress.attempt.experiment
            if self._told.get(event.worker) != (experiment, packages):
                self._told[event.worker] = experiment, packages
                line = OtherPackagesLine(worker=event.worker, packages=packages)
                yield observed(experiment, line)

    def _noticed(self, fact: facts.Fact) -> Iterator[Observed]:
        match fact:
            case facts.Accepted() | facts.GivenUp():
                yield from self._usage.end(fact.worker, fact.attempt)
            case facts.Dismissed():
                how = "is lost" if fact.lost else "left"
                membership_log.info("%s %s: %s", fact.worker, how, fact.reason)
            case facts.Contradicted():
                log.warning("%s", line_of(fact))
            case _:
                pass

    def _introduction(self, worker: str) -> RecordLine:
        entry = self._roster.get(worker)
        return WorkerJoinedLine(
            worker=worker,
            address=str(entry.address) if entry else "",
            numeric_class=str(entry.registration.numeric_class) if entry else "",
            processor_class=str((entry and entry.registration.processor_class) or ""),
        )

    def _prepared(self, event: on.Prepared) -> Iterator[Observed]:
        made = self._spaces[event.experiment].prepared
        if made is None or made.begun.drawn is None:
            return  # continued: the first manager has journaled this
        known, trial = made.dataset.facts, made.begun.trial
        line = PreparedLine(
            train_samples=known.train_samples,
            test_samples=known.test_samples,
            classes=known.classes,
            shard_samples=event.shard_samples,
            prepare_seconds=made.prepare_seconds,
            split_seconds=made.split_seconds,
            bytes=made.begun.model.size_bytes,
            parameters=made.begun.drawn.trained_numbers,
            dataset=made.dataset_key,
            understood=made.dataset.understood,
            remarks=made.remarks,
            warnings=made.warnings,
            numeric_class=str(made.begun.drawn.numeric_class),
            step_seconds=made.begun.step.seconds if made.begun.step else None,
            step_bytes=made.begun.step.memory_bytes if made.begun.step else None,
            frozen_bytes=made.begun.frozen.size_bytes if made.begun.frozen else 0,
            checksum=made.begun.model.checksum,
            shard_classes=made.shard_classes,
            trial=trial.looks[-1] if trial else "",
            tried_with=trial.numeric_class if trial else "",
            rehearsed=made.rehearsed,
        )
        yield observed(event.experiment, line)
