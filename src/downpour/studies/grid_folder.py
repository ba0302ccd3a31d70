"""The folder of a grid's results, and the only place that spells what lies in it.

    grid.toml        what was asked for, resolved; itself a file that can be run
    cells/ID/        spec.toml, record.jsonl and summary.json of one cell
    run.lock         held by whoever runs the grid (`lock.py`)
    log.txt          what a detached run had to say
    request.json     what a manager elsewhere is training (`submission.py`)

A cell's folder appears whole, by renaming, once the cell has ended; so what is there was run, and
what is not there was not. A cell that failed is run again, and replaced. A grid may change in its
folder as long as all that has finished there is still of it (more trials, more values, fewer of
what failed); whatever else is found there is refused, and left as it is.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from downpour.errors import SpecError
from downpour.reports import Result
from downpour.reports.study import Group, Run, Study
from downpour.runtime.record import RECORD_NAME
from downpour.store.trouble import explain
from downpour.studies.grid import Cell, Grid
from downpour.studies.lock import HOLD_NAMES
from downpour.studies.run_folder import (
    keep,
    kept_in,
    make_folder,
    read_kept,
    read_summary,
    refusal,
    remove_unfinished,
    replace_file,
    stranger,
)
from downpour.studies.submission import REQUEST_NAME
from downpour.studies.summary import Summary

GRID_NAME = "grid.toml"
_CELLS = "cells"


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the results of one grid lie.

    Raises:
        SpecError: from everything that reads: what lies there does not belong to the grid, or is
            not whole; from everything that writes: the folder cannot be written.
    """

    path: Path
    grid: Grid

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Open a folder by what it says it holds."""
        return cls(path, _grid_of(path))

    @property
    def asked(self) -> Path:
        """The file of what was asked for, which is there once the folder was begun."""
        return self.path / GRID_NAME

    @property
    def request(self) -> Path:
        """The file in which it is written down what a manager elsewhere is training."""
        return self.path / REQUEST_NAME

    def check(self) -> None:
        """See that the folder can take this grid's results; changes nothing.

        It can where it is missing or empty, or where all that has finished there is of this grid;
        each cell is looked at in full.
        """
        try:
            others = {path.name for path in self.path.iterdir()} - set(HOLD_NAMES)
        except FileNotFoundError:
            return
        except OSError as error:
            raise refusal(self.path, explain(error)) from None
        if not others:
            return
        before = _grid_of(self.path)
        strange = [cell_id for cell_id in self._strangers() if self._summary(cell_id).is_finished]
        if before.name != self.grid.name or strange:
            raise refusal(self.path, "holds another experiment; choose another folder")
        for cell_id in self._ended():
            self._run(cell_id)

    def make(self) -> None:
        """Make the folder where it is missing."""
        make_folder(self.path)

    def begin(self) -> None:
        """Write down the grid and remove what was cut off; only for who holds the folder."""
        try:
            (self.path / _CELLS).mkdir(exist_ok=True)
            replace_file(self.asked, self.grid.to_toml().encode())
            remove_unfinished(self.path / _CELLS)
            for cell_id in self._strangers():  # they came to nothing, and nobody wants them
                shutil.rmtree(self.path / _CELLS / cell_id)
        except OSError as error:
            raise refusal(self.path, explain(error)) from None

    def keep(self, cell: Cell, record: bytes, wall_seconds: float) -> Summary:
        """Keep what a cell came to; whole, or not at all."""
        result = Result.from_lines(record.decode().splitlines())
        summary = Summary.of(result, cell.workers, wall_seconds)
        keep(self.path / _CELLS / cell.id, cell.spec, record, summary)
        return summary

    def summaries(self) -> dict[str, Summary]:
        """Return what the cells that have ended came to."""
        return {cell_id: self._summary(cell_id) for cell_id in self._ended()}

    def records(self) -> list[Path]:
        """Name the records of the cells that have ended, each in a folder of its cell's name."""
        return [self.record(cell_id) for cell_id in self._ended()]

    def record(self, cell_id: str) -> Path:
        """Name the record of a cell, which is there once it has ended."""
        return self.path / _CELLS / cell_id / RECORD_NAME

    def missing(self) -> list[Cell]:
        """Return the cells that have not finished, in the order in which to run them."""
        finished = {cell_id for cell_id, told in self.summaries().items() if told.is_finished}
        return [cell for cell_id, cell in self.grid.cells.items() if cell_id not in finished]

    def study(self) -> Study:
        """Read everything that has ended, each run at its place in the grid."""
        runs = {cell_id: self._run(cell_id) for cell_id in self._ended()}
        groups = []
        for group in self.grid.groups:
            ended = [
                replace(runs[point.cell.id], values=point.values, trial=point.trial)
                for point in self.grid.points
                if point.group == group.name and point.cell.id in runs
            ]
            groups.append(
                Group(
                    name=group.name,
                    axes=group.axes,
                    trials=self.grid.trials,
                    settings=tuple(group.settings()),
                    runs=tuple(run for run in ended if run.result.state == "finished"),
                    failed=tuple(run for run in ended if run.result.state != "finished"),
                )
            )
        return Study(name=self.grid.name, groups=tuple(groups))

    def _ended(self) -> list[str]:
        """Name the cells of this grid that have ended."""
        return [name for name in self._names() if name in self.grid.cells]

    def _strangers(self) -> list[str]:
        """Name what else lies among them."""
        return [name for name in self._names() if name not in self.grid.cells]

    def _names(self) -> list[str]:
        return kept_in(self.path / _CELLS)

    def _summary(self, cell_id: str) -> Summary:
        return read_summary(self.path / _CELLS / cell_id)

    def _run(self, cell_id: str) -> Run:
        """Read a cell's files, and see that they tell of the cell whose name they bear."""
        place, cell = self.path / _CELLS / cell_id, self.grid.cells[cell_id]
        spec, run = read_kept(place, cell.workers)
        if spec != cell.spec:
            raise stranger(place)
        return run


def _grid_of(path: Path) -> Grid:
    try:
        return Grid.from_toml((path / GRID_NAME).read_text("utf-8"))
    except FileNotFoundError:
        raise refusal(path, f"is not empty, and has no {GRID_NAME}") from None
    except (OSError, ValueError) as error:
        raise refusal(path, f"{GRID_NAME} cannot be read: {error}") from None
    except SpecError as error:
        raise refusal(path, f"{GRID_NAME} is not what was written: {error}") from None
