"""Runs what is missing of a grid, cell by cell, and keeps each as soon as it has ended.

A cell that fails costs only itself; it is told of in the end, and run again the next time. But
where the very first of a grid fails because of its spec, a mistake in the file is likelier than a
setting that cannot be: that ends the run, before hours of the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from downpour.errors import ExperimentFailed
from downpour.rpc.messages import Status
from downpour.studies.grid import Cell
from downpour.studies.grid_backends import Trainer
from downpour.studies.grid_folder import Folder
from downpour.studies.lock import held
from downpour.studies.summary import Summary

OnKept = Callable[[Path], None]
"""Hears of the record of a run that has ended and was kept, in a folder of the run's name."""


class Watcher(Protocol):
    """Whoever shows how far a grid is."""

    def begins(self, cell: Cell, missing: Sequence[Cell]) -> None:
        """A cell begins; `missing` are all that have not finished, itself first."""

    def shows(self, status: Status) -> None:
        """The cell goes on."""

    def ends(self, cell: Cell, summary: Summary) -> None:
        """A cell has finished, or failed."""


def run_missing(
    folder: Folder, trainer: Trainer, watcher: Watcher, on_kept: OnKept | None = None
) -> dict[str, Summary]:
    """Run every cell that has not finished; returns those that came to nothing.

    Raises:
        SpecError: the folder or the grid cannot be; nothing was changed.
        ExperimentFailed: the first cell's spec cannot be.
        DownpourError: training cannot go on; what has finished is kept.
    """
    trainer.check(folder.grid)
    folder.check()
    folder.make()
    failed = {}
    with held(folder.path):
        folder.begin()
        missing = folder.missing()
        is_new = len(missing) == len(folder.grid.cells)
        for place, cell in enumerate(missing):
            watcher.begins(cell, missing[place:])
            began = time.monotonic()
            record = trainer.train(cell, watcher.shows)
            summary = folder.keep(cell, record, time.monotonic() - began)
            if on_kept is not None:
                on_kept(folder.record(cell.id))
            watcher.ends(cell, summary)
            if not summary.is_finished:
                failed[cell.id] = summary
                if is_new and place == 0 and summary.asked_wrongly:
                    raise ExperimentFailed(cell.id, summary.reason or "", asked_wrongly=True)
    return failed
