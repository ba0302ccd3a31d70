"""Times some steps of each arrangement in which a worker could train on this machine.

`auto.measured` starts it as `python -m downpour.learning.intra_worker.timing WORK`. It prints a
line of JSON for each candidate as soon as its measurement ends. Each candidate takes turns with a
single process, slice by slice, so that other work on the machine slows both alike; the ratio is the
median over the slices.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from downpour.base.errors import DownpourError, SpecError
from downpour.core.spec import Spec
from downpour.host.process import end_with_parent
from downpour.learning import accelerators, auto, blame
from downpour.learning.intra_worker.team import Team
from downpour.learning.tasks.agreement import open_data, prepare_data
from downpour.learning.tasks.loaded import load
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.trial import check_trains

_READY_SECONDS = 120.0
_SLICE_SECONDS = 0.1
"""A slice has as many steps as a single process takes in so long, and at least one."""
_SLICES = 5


class Subject:
    """The examples that all candidates train: the first ones, as many as a shard has."""

    def __init__(self, spec: Spec, datasets: Path, data_dir: Path | None) -> None:
        self.spec = spec
        self.datasets = datasets
        self.key = prepare_data(spec, datasets, data_dir)
        self.data = open_data(spec, datasets, self.key)
        count = self.data.facts.train_samples
        self._indices = np.arange(max(1, count // (spec.shards or 1)))

    def check(self, spec: Spec) -> None:
        """Refuse an arrangement in which the network cannot be trained, as submission would."""
        check_trains(load(_placed(spec), self.data), [self._indices])

    def timed(self, spec: Spec, ending: ExitStack) -> TimedTraining:
        """Start a training, and its helpers."""
        loaded = load(_placed(spec), self.data)
        network = loaded.network()
        team = None
        if spec.inside.processes > 1:
            team = Team(loaded, network, self.datasets, self.key)
            ending.callback(team.close)
            team.wait_until_ready(_READY_SECONDS)
        task = LocalTask(indices=self._indices, round=0, shard=0)
        return TimedTraining(
            lambda: ShardTraining(loaded, network, task, helpers=team), spec.threads, team
        )


def _placed(spec: Spec) -> Spec:
    return spec.replace(device=accelerators.devices_here().chosen(spec.device))


class TimedTraining:
    """A training whose steps are timed; it begins its shard again as often as need be."""

    def __init__(self, begin: Callable[[], ShardTraining], threads: int, team: Team | None) -> None:
        self._begin, self._threads, self.team = begin, threads, team
        self._training = begin()
        self.seconds(2)  # the first step allocates memory

    def seconds(self, steps: int) -> float:
        """Train some steps; return how long each took."""
        torch.set_num_threads(self._threads)
        began = time.perf_counter()
        for _ in range(steps):
            if self._training.steps_done == self._training.steps_total:
                self._training = self._begin()
            self._training.advance(1)
        seconds = (time.perf_counter() - began) / steps
        if self.team is not None and not self.team.is_whole:
            raise SpecError("inside.how", "auto", "a helper has ended")
        return seconds


def measured(
    subject: Subject, alone: TimedTraining, candidate: auto.Candidate, alone_seconds: float
) -> auto.Measured:
    """Let a candidate and a single process take turns."""
    spec = auto.closed(subject.spec, candidate)
    subject.check(spec)
    steps = max(1, round(_SLICE_SECONDS / alone_seconds))
    with ExitStack() as ending:
        timed = subject.timed(spec, ending)
        pairs = [(alone.seconds(steps), timed.seconds(steps)) for _ in range(_SLICES)]
    return auto.Measured(
        candidate=candidate,
        step_seconds=statistics.median(own for _, own in pairs),
        times_as_fast=statistics.median(single / own for single, own in pairs),
    )


def all_measured(subject: Subject, candidates: Sequence[auto.Candidate]) -> Iterator[auto.Measured]:
    """Measure a single process, and then each other candidate beside it."""
    subject.check(subject.spec)
    alone = subject.timed(subject.spec, ExitStack())
    seconds = statistics.median(alone.seconds(1) for _ in range(_SLICES))
    yield auto.Measured(candidate=candidates[0], step_seconds=seconds, times_as_fast=1.0)
    for candidate in candidates[1:]:
        try:
            yield measured(subject, alone, candidate, seconds)
        except SpecError as error:
            yield auto.Measured(candidate=candidate, refused=str(error))
        except blame.users_errors() as error:
            yield auto.Measured(candidate=candidate, refused=blame.describe_error(error))


def _answers(work: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each candidate, or one with the refusal of the whole, for the caller."""
    data_dir = Path(work["data_dir"]) if work["data_dir"] is not None else None
    candidates = [auto.Candidate(**fields) for fields in work["candidates"]]
    try:
        subject = Subject(Spec.from_toml(work["spec"]), Path(work["datasets"]), data_dir)
        yield from (one.to_line() for one in all_measured(subject, candidates))
    except DownpourError as error:
        refused = SpecError("inside.how", "auto", f"cannot be measured: {error}")
        yield json.dumps(vars(error if isinstance(error, SpecError) else refused), default=str)


def main() -> None:
    """Measure what the command line says."""
    end_with_parent(signal.SIGKILL)  # a command that is killed leaves no measuring behind
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a user's code prints is no answer
        for line in _answers(json.loads(sys.argv[1])):
            print(line, file=answers, flush=True)


if __name__ == "__main__":
    main()
