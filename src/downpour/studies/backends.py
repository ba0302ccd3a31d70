"""Where the runs of a study are trained: on this machine, or by a manager elsewhere.

A backend returns a run's record as the manager wrote it, also that of a run that failed. A run ends
early by being cancelled, as any client may cancel an experiment.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from downpour import api, datasets
from downpour.errors import ExperimentFailed, SpecError
from downpour.launchers import LocalCluster
from downpour.rpc.messages import Status
from downpour.runtime.record import parse_lines
from downpour.runtime.record_lines import EvaluatedLine
from downpour.spec import Spec
from downpour.studies.plan import OnEpoch
from downpour.studies.study import Run, Study
from downpour.studies.submission import submitted

Train = Callable[[Run, api.OnStatus, OnEpoch | None], bytes]
"""Trains a run to its end, or until it should end, and returns its record.

Raises DownpourError where it cannot be trained, now or ever.
"""


class Backend(Protocol):
    """Trains the runs of a study."""

    def check(self, study: Study) -> None:
        """Refuse a study that cannot be run here, before anything starts.

        Raises:
            SpecError: names the field and what is accepted.
        """

    def start(self, study: Study) -> AbstractContextManager[Train]:
        """Get ready to train, until the block ends."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Trains on this machine; manager and workers end with the run, or with the study."""

    shared: Path
    data_dir: Path | None = None

    def check(self, study: Study) -> None:
        """Refuse datasets that are not there, and too few workers for a policy."""
        data_dir = self.data_dir or os.environ.get("DOWNPOUR_DATA")
        runs = list(study.samples())
        for spec in _once_each_dataset(run.spec for run in runs):
            datasets.check_source(spec, Path(data_dir) if data_dir else None)
        for run in runs:
            _workers(run)

    @contextmanager
    def start(self, study: Study) -> Iterator[Train]:
        """Start as many workers as the runs can use, or none before each run has its own."""
        if study.shares_workers:
            runs = list(study.samples())
            with self._cluster(runs[0].spec, max(map(_workers, runs))) as train:
                yield train
        else:
            yield self._train_alone

    def _train_alone(self, run: Run, on_status: api.OnStatus, on_epoch: OnEpoch | None) -> bytes:
        with self._cluster(run.spec, _workers(run)) as train:
            return train(run, on_status, on_epoch)

    @contextmanager
    def _cluster(self, spec: Spec, workers: int) -> Iterator[Train]:
        embedded = api.embed(spec, workers, shared=self.shared, data_dir=self.data_dir)
        with embedded as (cluster, client):
            yield _Session(client, cluster=cluster).train


@dataclass(frozen=True, slots=True)
class Remote:
    """Has a manager train, with the workers that it has.

    What is being trained is written down in `note`, so that the next process finds it again.
    """

    client: api.Client
    note: Path | None = None

    def check(self, study: Study) -> None:
        """Refuse several numbers of workers: the manager's would train all of them alike."""
        numbers = {run.workers for run in study.samples()}
        if len(numbers) > 1:
            given = sorted(number for number in numbers if number is not None)
            accepted = "must be one number with --manager, whose workers are as they are"
            raise SpecError("workers", given, accepted)

    @contextmanager
    def start(self, study: Study) -> Iterator[Train]:
        """Begin nothing: the manager runs already."""
        del study
        yield _Session(self.client, note=self.note).train


@dataclass(frozen=True, slots=True)
class _Session:
    """A client of the manager that trains, and its processes where they are ours."""

    client: api.Client
    note: Path | None = None
    cluster: LocalCluster | None = None

    def train(self, run: Run, on_status: api.OnStatus, on_epoch: OnEpoch | None) -> bytes:
        """Submit a run and wait for it; where it should end, or the wait does, it is cancelled."""
        lines: list[str] = []
        listener = on_epoch

        def watch(status: Status) -> None:
            nonlocal listener
            if self.cluster is not None:
                self.cluster.provide(status.wanted_workers)
            on_status(status)
            if listener is None:
                return
            new = self.client.record(experiment, len(lines))
            lines.extend(new)
            if any(listener(epoch, accuracy) for epoch, accuracy in accuracies_in(new)):
                listener = None
                self.client.cancel(experiment)

        check = None if self.cluster is None else self.cluster.check
        with submitted(self.client, run, self.note) as experiment:
            with suppress(ExperimentFailed):  # the record tells
                self.client.wait(experiment, on_status=watch, check=check)
            lines += self.client.record(experiment, len(lines))
        return "".join(f"{line}\n" for line in lines).encode()


def accuracies_in(lines: Iterable[str]) -> Iterator[tuple[int, float]]:
    """Yield the epochs, from 1, of which lines of a record have the accuracy, and the accuracy."""
    for _, fact in parse_lines(lines):
        if isinstance(fact, EvaluatedLine) and math.isfinite(fact.accuracy):
            yield fact.round + 1, fact.accuracy


def _workers(run: Run) -> int:
    return api.workers_for(run.spec, run.workers)


def _once_each_dataset(specs: Iterable[Spec]) -> Iterable[Spec]:
    """Pick a spec for each source of examples."""
    fields = ("dataset", "data_path", "dataset_options", "image_size", "loss")
    return {str([getattr(spec, field) for field in fields]): spec for spec in specs}.values()
