"""Where the cells of a grid are trained: here, with processes of their own, or by a manager.

A trainer hands back a cell's record as the manager wrote it, also that of a cell that failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from downpour import api, datasets
from downpour.errors import ExperimentFailed, SpecError, StoreError
from downpour.runtime.record import RECORD_NAME
from downpour.spec import Spec
from downpour.store import SharedDirectory
from downpour.studies.grid import Cell, Grid
from downpour.studies.submission import submitted


class Trainer(Protocol):
    """Whoever can run a cell."""

    def check(self, grid: Grid) -> None:
        """Refuse a grid that cannot be, before anything starts.

        Raises:
            SpecError: names the field and what is accepted.
        """

    def train(self, cell: Cell, on_status: api.OnStatus) -> bytes:
        """Run a cell to its end and return its record.

        Raises:
            DownpourError: there is nobody who could run it, now or ever.
        """


@dataclass(frozen=True, slots=True)
class Embedded:
    """Trains on this machine; manager and workers begin and end with each cell."""

    shared: Path
    data_dir: Path | None = None

    def check(self, grid: Grid) -> None:
        """Refuse datasets that are not there."""
        data_dir = self.data_dir or os.environ.get("DOWNPOUR_DATA")
        for spec in once_each_dataset(cell.spec for cell in grid.cells.values()):
            datasets.check_source(spec, Path(data_dir) if data_dir else None)

    def train(self, cell: Cell, on_status: api.OnStatus) -> bytes:
        """Run a cell here."""
        try:
            experiment = api.run(
                cell.spec,
                workers=cell.workers,
                shared=self.shared,
                data_dir=self.data_dir,
                on_status=on_status,
                progress=False,
            ).experiment
        except ExperimentFailed as failed:
            experiment = failed.experiment
        record = SharedDirectory(self.shared).experiment_path(experiment) / RECORD_NAME
        try:
            return record.read_bytes()
        except OSError as error:
            raise StoreError(f"{record}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Remote:
    """Has a manager train, with the workers that it has.

    What is being trained is written down in `note`, so that it is found again by who comes next.
    """

    client: api.Client
    note: Path | None = None

    def check(self, grid: Grid) -> None:
        """Refuse several numbers of workers: a manager's are as they are."""
        for group in grid.groups:
            if "workers" in group.axes:
                accepted = "must be one number with --manager, whose workers are as they are"
                raise SpecError("workers", group.fields["workers"], accepted)

    def train(self, cell: Cell, on_status: api.OnStatus) -> bytes:
        """Submit a cell and wait for it; where that is interrupted, it is cancelled."""
        with submitted(self.client, cell, self.note) as experiment:
            with suppress(ExperimentFailed):  # the record tells
                self.client.wait(experiment, on_status=on_status)
            return "".join(f"{line}\n" for line in self.client.record(experiment)).encode()


def once_each_dataset(specs: Iterable[Spec]) -> Iterable[Spec]:
    """Pick a spec for each source of examples."""
    fields = ("dataset", "data_path", "dataset_options", "image_size", "loss")
    return {str([getattr(spec, field) for field in fields]): spec for spec in specs}.values()
