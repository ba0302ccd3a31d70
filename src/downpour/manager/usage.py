"""Gathers what workers' processes use, a sample a heartbeat, until their attempts end.

A fact a heartbeat would be most of the record, so there is one an attempt, of a bounded number of
samples. What was gathered of an attempt that runs is lost with the manager: it serves people only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from downpour.records.record_lines import (
    RecordLine,
    ResourcesUsedLine,
    Sample,
)
from downpour.scheduler import events as on
from downpour.values import AttemptId, ProcessState

SAMPLES_MAX = 240
"""Of one attempt; even, because every second one goes where there would be more."""

Write = Callable[[str, float, RecordLine], None]


@dataclass(slots=True)
class _Trace:
    """The samples of an attempt, of which every so many-th is kept."""

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
    """Of all workers; a worker is at one attempt at a time.

    Args:
        write: puts a fact on an experiment's record, at a time.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._traces: dict[str, _Trace] = {}

    def hear(self, beat: on.HeartbeatReceived) -> None:
        """Take a sample in; who is at something else by now has ended what came before."""
        attempt = beat.running[0].attempt if beat.running else None
        trace = self._traces.get(beat.worker)
        if trace is not None and trace.attempt != attempt:
            self.end(beat.worker, trace.attempt, beat.at_seconds)
        if attempt is None or beat.process is None:
            return
        trace = self._traces.setdefault(beat.worker, _Trace(attempt))
        trace.add(_sample(beat, beat.process))

    def end(self, worker: str, attempt: AttemptId, now: float) -> None:
        """Put on record what an attempt has used, if anything was heard of it."""
        trace = self._traces.get(worker)
        if trace is not None and trace.attempt == attempt:
            del self._traces[worker]
            self._write(attempt.experiment, now, trace.fact(worker))

    def end_all(self, experiment: str, now: float) -> None:
        """Put on record whatever runs yet of an experiment that ends."""
        for worker, trace in list(self._traces.items()):
            if trace.attempt.experiment == experiment:
                self.end(worker, trace.attempt, now)


def _sample(beat: on.HeartbeatReceived, process: ProcessState) -> Sample:
    """Round it to what can be seen in a figure; digits would be most of the record."""
    return Sample(
        at_seconds=round(beat.at_seconds, 2),
        cpu_share=round(process.cpu_share, 3),
        memory_bytes=process.memory_bytes,
        threads=process.threads,
        io_wait=round(beat.system.io_wait, 3),
    )
