"""How far a grid is, as a value: counted from its folder, whoever runs it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from downpour.studies.grid_display import about, seconds_left
from downpour.studies.grid_folder import Folder
from downpour.studies.lock import holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Counts of cells; `running` says who runs the grid now.

    `failures` are the cells that came to nothing, with the reason; they are run again.
    `seconds_left` is an estimate, None before the first cell has finished.
    """

    name: str
    cells: int
    finished: int
    failures: dict[str, str]
    running: str | None
    seconds_left: float | None

    def to_dict(self) -> dict[str, Any]:
        """Turn it into values that JSON can hold."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        told = [f"{self.name}: {self.finished} of {self.cells} cells"]
        if self.failures:
            first, reason = next(iter(self.failures.items()))
            told.append(f"{len(self.failures)} failed ({first}: {reason})")
        if self.finished < self.cells:
            told.append(outlook(self.seconds_left, self.running))
        return ", ".join(told)


def outlook(seconds_left: float | None, running: str | None) -> str:
    """Say of what is not done yet how long it takes, and who is at it."""
    at_it = f"{running} runs it" if running else "nobody runs it now"
    return f"{about(seconds_left)} left, {at_it}"


def standing_of(folder: Folder) -> Standing:
    """Look how far a grid is."""
    told, cells = folder.summaries(), folder.grid.cells
    finished = {cell: summary for cell, summary in told.items() if summary.is_finished}
    missing = [cell for cell_id, cell in cells.items() if cell_id not in finished]
    return Standing(
        name=folder.grid.name,
        cells=len(cells),
        finished=len(finished),
        failures={c: s.reason or s.state for c, s in told.items() if c not in finished},
        running=holder(folder.path),
        seconds_left=seconds_left(cells, finished, missing),
    )
