"""Where the trials of a search are trained: here, with processes of their own, or by a manager.

A trial ends early by being cancelled, as anybody may cancel an experiment. Manager and workers of
this machine serve the whole search, because a trial is often shorter than their start.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from downpour import api, datasets
from downpour.errors import ExperimentFailed
from downpour.rpc.messages import Status
from downpour.runtime.facts import Evaluated
from downpour.runtime.record import parse_lines
from downpour.studies.grid import Cell
from downpour.studies.grid_backends import once_each_dataset
from downpour.studies.search import Search
from downpour.studies.submission import submitted

OnEpoch = Callable[[int, float], bool]
"""Hears the accuracy after an epoch, from 1; says whether the trial should end with it."""

Train = Callable[[Cell, api.OnStatus, OnEpoch], bytes]
"""Trains a trial to its end, or until it should, and returns its record as the manager wrote it.

Also the record of one that failed. Raises DownpourError where nobody can train it.
"""


class Trainer(Protocol):
    """Whoever can train the trials of a search."""

    def check(self, search: Search) -> None:
        """Refuse a search that cannot be, before anything starts.

        Raises:
            SpecError: names the field and what is accepted.
        """

    def start(self, search: Search) -> AbstractContextManager[Train]:
        """Get ready to train, until the block ends."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Trains on this machine, with a manager and workers that end with the search."""

    shared: Path
    data_dir: Path | None = None

    def check(self, search: Search) -> None:
        """Refuse datasets that are not there, and too few workers for a policy."""
        data_dir = self.data_dir or os.environ.get("DOWNPOUR_DATA")
        for spec in once_each_dataset(cell.spec for cell in search.corners()):
            datasets.check_source(spec, Path(data_dir) if data_dir else None)
        self._workers(search)

    @contextmanager
    def start(self, search: Search) -> Iterator[Train]:
        """Start as many workers as the trials can use."""
        spec = next(search.corners()).spec
        workers = self._workers(search)
        embedded = api.embed(spec, workers, shared=self.shared, data_dir=self.data_dir)
        with embedded as (cluster, client):

            def provide(status: Status) -> None:
                cluster.provide(status.wanted_workers)

            yield partial(_train, client, None, provide, cluster.check)

    def _workers(self, search: Search) -> int:
        return max(api.resolve(cell.spec, search.workers)[1] for cell in search.corners())


@dataclass(frozen=True, slots=True)
class Remote:
    """Has a manager train, with the workers that it has.

    What is being trained is written down in `note`, so that it is found again by who comes next.
    """

    client: api.Client
    note: Path | None = None

    def check(self, search: Search) -> None:
        """Leave it to the manager, which knows what it has."""

    @contextmanager
    def start(self, search: Search) -> Iterator[Train]:
        """Begin nothing: the manager runs already."""
        del search
        yield partial(_train, self.client, self.note, None, None)


def _train(
    client: api.Client,
    note: Path | None,
    look: api.OnStatus | None,
    check: Callable[[], None] | None,
    cell: Cell,
    on_status: api.OnStatus,
    on_epoch: OnEpoch,
) -> bytes:
    """Submit a trial and wait for it; where it should end, or the wait does, it is cancelled."""
    lines: list[str] = []
    ending = False

    def watch(status: Status) -> None:
        nonlocal ending
        if look is not None:
            look(status)
        on_status(status)
        new = client.record(experiment, len(lines))
        lines.extend(new)
        if not ending and any(on_epoch(epoch, share) for epoch, share in accuracies_in(new)):
            ending = True
            client.cancel(experiment)

    with submitted(client, cell, note) as experiment:
        with suppress(ExperimentFailed):  # the record tells
            client.wait(experiment, on_status=watch, check=check)
        lines += client.record(experiment, len(lines))
    return "".join(f"{line}\n" for line in lines).encode()


def accuracies_in(lines: list[str]) -> Iterator[tuple[int, float]]:
    """Yield the epochs, from 1, that lines of a record tell the accuracy of."""
    for _, fact in parse_lines(lines):
        if isinstance(fact, Evaluated) and math.isfinite(fact.accuracy):
            yield fact.round + 1, fact.accuracy
