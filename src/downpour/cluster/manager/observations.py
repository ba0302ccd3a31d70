"""A manager's observations beside the core: for the journals, for metrics and for `--on-event`.

`Observations` adds addresses, sizes, seconds and resources to the journals. It runs in the driver's
thread, before the commands run. `record/view.py` projects the record that people read from them.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from downpour.base import errors, states, values
from downpour.cluster.manager.status import Roster, WaitingWatch, membership_log
from downpour.cluster.manager.workspace import Workspace
from downpour.core.scheduler import Observed, Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.host.process import Background
from downpour.network.metrics import Timing
from downpour.network.rpc.messages import Status
from downpour.record import record_lines
from downpour.record.view import aggregating, line_of, observed

log = logging.getLogger(__name__)

SAMPLES_MAX = 240
"""The limit per attempt. It is even, because at the limit we drop every second sample."""


@dataclass(slots=True)
class _Trace:
    """The samples of an attempt; we keep one in `every`."""

    attempt: values.AttemptId
    samples: list[record_lines.Sample] = field(default_factory=list)
    every: int = 1
    heard: int = 0

    def add(self, sample: record_lines.Sample) -> None:
        if self.heard % self.every == 0:
            self.samples.append(sample)
        self.heard += 1
        if len(self.samples) == SAMPLES_MAX:
            del self.samples[1::2]
            self.every *= 2


class Usage:
    """The samples of all workers; a worker runs one attempt at a time.

    An entry per heartbeat would make up most of the journal, so we write one per attempt, with a
    bounded number of samples. A dead manager's are lost, but no decision depends on them.
    """

    def __init__(self) -> None:
        self._traces: dict[str, _Trace] = {}

    def hear(self, beat: on.HeartbeatReceived) -> Iterator[Observed]:
        """Add a heartbeat's sample; if the worker runs another attempt, the former has ended."""
        # The first attempt trains; a second one waits for the first to stop.
        attempt = beat.running[0].attempt if beat.running else None
        trace = self._traces.get(beat.worker)
        if trace is not None and trace.attempt != attempt:
            yield from self.end(beat.worker, trace.attempt)
        if attempt is None or beat.process is None:
            return
        trace = self._traces.setdefault(beat.worker, _Trace(attempt))
        # Round to a figure's precision, because further digits would make up most of the record.
        sample = record_lines.Sample(
            at_seconds=round(beat.at_seconds, 2),
            cpu_share=round(beat.process.cpu_share, 3),
            memory_bytes=beat.process.memory_bytes,
            threads=beat.process.threads,
            io_wait=round(beat.system.io_wait, 3),
        )
        trace.add(sample)

    def end(self, worker: str, attempt: values.AttemptId) -> Iterator[Observed]:
        """Yield an attempt's resource use, if there are samples of it."""
        trace = self._traces.get(worker)
        if trace is not None and trace.attempt == attempt:
            del self._traces[worker]
            line = record_lines.ResourcesUsedLine(
                round=attempt.round,
                shard=attempt.shard,
                attempt=attempt.attempt,
                worker=worker,
                samples=tuple(trace.samples),
            )
            yield observed(attempt.experiment, line)

    def end_all(self, experiment: str) -> Iterator[Observed]:
        """Yield the resource use of an experiment's running attempts, because it ends."""
        for worker, trace in list(self._traces.items()):
            if trace.attempt.experiment == experiment:
                yield from self.end(worker, trace.attempt)


PHASE_SECONDS = 5.0


@dataclass(slots=True)
class _Phase:
    """A worker's work since a moment; we write of it again when it has moved `due_bytes`."""

    attempt: values.AttemptId
    phase: str
    since_seconds: float
    due_bytes: int = 0
    is_told: bool = False


class Phases:
    """The work of workers besides training, for the live page, which reads only records.

    We write an entry once such work has taken some seconds, and when the training goes on. In
    between, we write one for each quarter of an update's bytes, and for twice the bytes of others.
    """

    def __init__(self) -> None:
        self._of: dict[str, _Phase] = {}

    def hear(
        self, worker: str, running: values.Progress, at: float, update_bytes: int
    ) -> Iterator[Observed]:
        """Take in a worker's progress; the last update had `update_bytes`, or 0 before one."""
        attempt, moved = running.attempt, running.moved_bytes
        phase = "saving" if running.phase == "training" and moved else running.phase
        now = self._of.get(worker)
        if now is None or (now.attempt, now.phase) != (attempt, phase):
            is_due = now is not None and now.is_told and now.attempt == attempt
            now = self._of[worker] = _Phase(attempt, phase, at)
        else:
            is_due = phase != "training" and at - now.since_seconds >= PHASE_SECONDS
        if not is_due or moved < now.due_bytes:
            return
        whole = update_bytes if phase == "publishing" else 0
        now.is_told, now.due_bytes = phase != "training", moved + (whole // 4 or moved or 1)
        line = record_lines.PhaseLine(
            round=attempt.round,
            shard=attempt.shard,
            attempt=attempt.attempt,
            worker=worker,
            phase=phase,
            moved_bytes=moved,
            whole_bytes=whole,
        )
        yield observed(attempt.experiment, line)


LOOK_SECONDS = 5.0
"""The time between two looks at the status, because each look occupies the driver's thread."""

OnEvent = Callable[[states.ExperimentEvent], object]
_Look = tuple[Callable[[], Status], float]


class ManagerAnnouncer:
    """Calls a function when an experiment ends, and when one waits for too long.

    The driver's thread notes decisions, and passes them on once they are durable. The function runs
    in a separate thread. If the manager dies in between, it does not run for these decisions.
    """

    def __init__(self, on_event: OnEvent, clock: Callable[[], float] = time.monotonic) -> None:
        self._thread = Background[states.ExperimentEvent]("on_event", on_event)
        self._clock = clock
        self._noted: list[states.ExperimentEvent] = []
        self._waiting = WaitingWatch()
        self._looked_at_seconds = clock()
        # In a separate thread, because the driver answers late while its directory is away.
        self._looks = Background[_Look]("the look at what waits", self._look)

    def note(self, core: Scheduler, output: Output) -> None:
        """Note which experiments have ended."""
        for fact in output.facts:
            if isinstance(fact, out.Concluded):
                self._noted.append(
                    states.ExperimentEvent(
                        kind=cast("states.EventKind", fact.ending.value),
                        experiment=fact.experiment,
                        name=core.state.experiments[fact.experiment].spec.name,
                        state=fact.ending,
                        reason=fact.reason,
                    )
                )

    def announce(self) -> None:
        """Call the function with the noted events, which are durable now."""
        noted, self._noted = self._noted, []
        for event in noted:
            self._thread.take(event)

    def look(self, status: Callable[[], Status]) -> None:
        """Now and then, call the function if an experiment, or the manager, waits for too long."""
        now = self._clock()
        if now - self._looked_at_seconds >= LOOK_SECONDS:
            self._looked_at_seconds = now
            self._looks.take((status, now))

    def close(self) -> None:
        """Wait a moment for calls that are still running."""
        self._looks.close()
        self._thread.close()

    def _look(self, look: _Look) -> None:
        status, at_seconds = look
        with suppress(errors.DownpourError):  # the manager ends, or its directory stays away
            event = self._waiting.take(status(), at_seconds)
            if event is not None:
                self._thread.take(event)


COUNTED = "counted"
ENDS = (COUNTED, *map(str, states.FailureKind))
"""How attempts end: their update counts, or they fail for one of these reasons."""


@dataclass(slots=True)
class Counters:
    """Attempts `assigned`, and `ended` by how they ended; shards that were `dropped`.

    `snapshots` counts the published states of tasks, and `contradicted` the updates that differ
    from the one that counts. `training` times rounds from the first assignment to the last update.

    The driver's thread owns the one set for all experiments; others read it through `Driver.ask`.
    """

    assigned: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    snapshots: int = 0
    dropped: int = 0
    contradicted: int = 0
    training: Timing = field(default_factory=Timing)
    aggregation: Timing = field(default_factory=Timing)
    evaluation: Timing = field(default_factory=Timing)
    _aggregating: dict[str, tuple[float, out.Aggregate]] = field(default_factory=dict)

    def begin(self, at_seconds: float, command: out.Aggregate) -> None:
        """Note that an aggregation begins; it counts once it has ended."""
        self._aggregating[command.experiment] = at_seconds, command

    def take(self, happened: on.Event | out.Fact) -> None:
        """Count an event or a fact."""
        match happened:
            case out.Assigned():
                self.assigned += 1
            case out.Accepted():
                self.ended[COUNTED] += 1
            case out.GivenUp():
                self.ended[happened.failure] += 1
            case out.Saved():
                self.snapshots += 1
            case out.Dropped():
                self.dropped += len(happened.shards)
            case out.Contradicted():
                self.contradicted += 1
            case on.Aggregated() if happened.experiment in self._aggregating:
                began, command = self._aggregating.pop(happened.experiment)
                self.training.add(command.train_seconds)
                self.aggregation.add(happened.at_seconds - began)
            case on.Evaluated():
                self.evaluation.add(happened.evaluation.seconds)
            case out.Concluded():
                self._aggregating.pop(happened.experiment, None)


Happened = on.Event | out.Fact | Observed


class Observations:
    """Describes the consequences of an event in the given workspaces, and counts them."""

    def __init__(self, spaces: Mapping[str, Workspace], roster: Roster) -> None:
        self.counters = Counters()
        self._spaces = spaces
        self._roster = roster
        self._usage = Usage()
        self._phases = Phases()
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
            if isinstance(fact, out.Concluded):
                # Yield these before the fact, because the manager journals nothing after it.
                yield from self._usage.end_all(fact.experiment)
            yield fact
            yield from self._noticed(fact)
        for command in output.commands:
            if isinstance(command, out.Aggregate):
                self.counters.begin(event.at_seconds, command)
                yield aggregating(command)
            elif isinstance(command, out.Prepare):
                yield observed(command.experiment, record_lines.BegunLine())

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
                    for one in event.running[:1]:
                        of = core.state.experiments.get(one.attempt.experiment)
                        sizes = of.update_bytes if of is not None else 0
                        yield from self._phases.hear(event.worker, one, event.at_seconds, sizes)
            case on.Disturbed():
                line = record_lines.DisturbedLine(who=event.who, what=event.what)
                yield observed(event.experiment, line)
            case on.BlocksRead():
                read = record_lines.BlocksReadLine(worker=event.worker, digests=dict(event.digests))
                yield observed(event.experiment, read)

    def _compared(self, event: on.HeartbeatReceived) -> Iterator[Observed]:
        """Report for each worker, once per experiment, which of its packages differ."""
        packages = self._roster.differences(event.worker)
        for progress in event.running if packages else ():
            experiment = progress.attempt.experiment
            if self._told.get(event.worker) != (experiment, packages):
                self._told[event.worker] = experiment, packages
                line = record_lines.OtherPackagesLine(worker=event.worker, packages=packages)
                yield observed(experiment, line)

    def _noticed(self, fact: out.Fact) -> Iterator[Observed]:
        match fact:
            case out.Accepted() | out.Withheld() | out.GivenUp():
                yield from self._usage.end(fact.worker, fact.attempt)
            case out.Dismissed():
                how = "is lost" if fact.lost else "left"
                membership_log.info("%s %s: %s", fact.worker, how, fact.reason)
            case out.Quarantined():
                log.warning("%s failed an audit: %s", fact.worker, fact.reason)
            case out.Rescheduled():
                another = " another" if fact.change == "begun beside" else ""
                log.info("%s: %s%s", fact.experiment, fact.change, another)
            case out.Concluded():
                log.info("%s %s: %s", fact.experiment, fact.ending, fact.reason)
            case out.Contradicted():
                log.warning("%s", line_of(fact))

    def _introduction(self, worker: str) -> record_lines.RecordLine:
        entry = self._roster.get(worker)
        return record_lines.WorkerJoinedLine(
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
        line = record_lines.PreparedLine(
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
