"""Collects the resource use of workers' processes from heartbeats until their attempts end.

An entry per heartbeat would make up most of the journal, so we write one per attempt, with a
bounded number of samples. If the manager dies, the samples of running attempts are lost, which is
fine because no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from downpour.base.values import AttemptId, ProcessState
from downpour.core.scheduler import Observed
from downpour.core.scheduler import events as on
from downpour.files.records.attempt_lines import ResourcesUsedLine, Sample
from downpour.files.records.view import observed

SAMPLES_MAX = 240
"""The limit per attempt. It is even, because at the limit we drop every second sample."""


@dataclass(slots=True)
class _Trace:
    """The samples of an attempt; we keep one in `every`."""

    attempt: AttemptId
    samples: list[Sample] = field(default_factory=list)
    every: int = 1
    heard: int = 0

    def add(self, sample: Sample) -> None:
        if self.heard % self.every == 0:
            self.samples.append(sample)
        self.heard += 1
        if len(self.samples) == SAMPLES_MAX:
            del self.samples[1::2]
            self.every *= 2

    def fact(self, worker: str) -> ResourcesUsedLine:
        return ResourcesUsedLine(
            round=self.attempt.round,
            shard=self.attempt.shard,
            attempt=self.attempt.attempt,
            worker=worker,
            samples=tuple(self.samples),
        )


class Usage:
    """The samples of all workers; a worker runs one attempt at a time."""

    def __init__(self) -> None:
        self._traces: dict[str, _Trace] = {}

    def hear(self, beat: on.HeartbeatReceived) -> Iterator[Observed]:
        """Add a heartbeat's sample; if the worker runs another attempt, the former has ended."""
        # The first attempt trains; the worker has accepted the second, which waits for the first to
        # stop.
        attempt = beat.running[0].attempt if beat.running else None
        trace = self._traces.get(beat.worker)
        if trace is not None and trace.attempt != attempt:
            yield from self.end(beat.worker, trace.attempt)
        if attempt is None or beat.process is None:
            return
        trace = self._traces.setdefault(beat.worker, _Trace(attempt))
        trace.add(_sample(beat, beat.process))

    def end(self, worker: str, attempt: AttemptId) -> Iterator[Observed]:
        """Yield an attempt's resource use, if there are samples of it."""
        trace = self._traces.get(worker)
        if trace is not None and trace.attempt == attempt:
            del self._traces[worker]
            yield observed(attempt.experiment, trace.fact(worker))

    def end_all(self, experiment: str) -> Iterator[Observed]:
        """Yield the resource use of an experiment's running attempts, because it ends."""
        for worker, trace in list(self._traces.items()):
            if trace.attempt.experiment == experiment:
                yield from self.end(worker, trace.attempt)


def _sample(beat: on.HeartbeatReceived, process: ProcessState) -> Sample:
    """Round to a figure's precision, because further digits would make up most of the record."""
    return Sample(
        at_seconds=round(beat.at_seconds, 2),
        cpu_share=round(process.cpu_share, 3),
        memory_bytes=process.memory_bytes,
        threads=process.threads,
        io_wait=round(beat.system.io_wait, 3),
    )
