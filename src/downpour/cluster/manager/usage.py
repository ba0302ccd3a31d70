"""Collects the resource use of workers' processes from heartbeats until their attempts end.

An entry for each heartbeat would be most of the journal, so there is one for each attempt, with a
bounded number of samples. The samples of running attempts are lost with the manager, because
nothing is decided from them.
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
"""For each attempt. An even number, because when it is reached every second sample is dropped."""


@dataclass(slots=True)
class _Trace:
    """The samples of an attempt; of those heard, one in `every` is kept."""

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
        """Add a heartbeat's sample; a worker that runs another attempt has ended the former."""
        # The first one trains; a second one was accepted and waits until that has stopped.
        attempt = beat.running[0].attempt if beat.running else None
        trace = self._traces.get(beat.worker)
        if trace is not None and trace.attempt != attempt:
            yield from self.end(beat.worker, trace.attempt)
        if attempt is None or beat.process is None:
            return
        trace = self._traces.setdefault(beat.worker, _Trace(attempt))
        trace.add(_sample(beat, beat.process))

    def end(self, worker: str, attempt: AttemptId) -> Iterator[Observed]:
        """Yield what an attempt has used, if there are samples of it."""
        trace = self._traces.get(worker)
        if trace is not None and trace.attempt == attempt:
            del self._traces[worker]
            yield observed(attempt.experiment, trace.fact(worker))

    def end_all(self, experiment: str) -> Iterator[Observed]:
        """Yield what the running attempts of an experiment have used, because it ends."""
        for worker, trace in list(self._traces.items()):
            if trace.attempt.experiment == experiment:
                yield from self.end(worker, trace.attempt)


def _sample(beat: on.HeartbeatReceived, process: ProcessState) -> Sample:
    """Round to what a figure shows, because digits would be most of the record."""
    return Sample(
        at_seconds=round(beat.at_seconds, 2),
        cpu_share=round(process.cpu_share, 3),
        memory_bytes=process.memory_bytes,
        threads=process.threads,
        io_wait=round(beat.system.io_wait, 3),
    )
