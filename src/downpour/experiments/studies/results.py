"""The results of a study for programs: read from a folder, as a data frame."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from downpour.base.errors import FileCorrupt, FileMissing, SpecError
from downpour.experiments.studies.folder import read_folder
from downpour.experiments.studies.grid import Grid, grid_results
from downpour.experiments.studies.search import FIGURE_STEM, Search
from downpour.host.paths import path_of
from downpour.record.result import frame_of
from downpour.record.result_parts import names_of
from downpour.record.study_result import StudyResult, read_one

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Study:
    """The results of a grid, or of a single experiment."""

    result: StudyResult

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a folder of `downpour grid`, or of one experiment; it need not have ended.

        Raises:
            SpecError: the folder holds neither.
        """
        place = path_of("FOLDER", folder)
        if (place / Grid.file_name).exists():
            grid = read_folder(place, Grid)
            grid.check()
            return cls(grid_results(grid))
        if (place / Search.file_name).exists():
            accepted = f"is a folder of `downpour tune`; its figure is {FIGURE_STEM}.svg"
            raise SpecError("FOLDER", str(folder), accepted)
        try:
            return cls(read_one(place))
        except FileMissing:
            accepted = "must be a folder of `downpour grid`, or of one experiment"
            raise SpecError("FOLDER", str(folder), accepted) from None
        except FileCorrupt as error:
            raise SpecError("FOLDER", str(folder), str(error)) from None

    def to_frame(self) -> pd.DataFrame:
        """Turn the runs into a data frame, one row each, those that failed included.

        The columns are the subgrid, the values on its axes, the repetition, seed, experiment and
        state, the final metrics, the loss, and seconds. An accuracy is a share in 0..1.

        Raises:
            MissingPackage: pandas is not installed.
        """
        rows = []
        for subgrid in self.result.subgrids:
            for run in (*subgrid.runs, *subgrid.failed):
                axes = dict(zip(subgrid.axes, run.values, strict=True))
                about = {"repetition": run.repetition, "seed": run.result.spec.get("seed")}
                ended = {"experiment": run.result.experiment, "state": run.result.state}
                seconds = {
                    "train_seconds": run.result.train_seconds,
                    "total_seconds": run.result.total_seconds,
                }
                measured = {**run.result.metrics, "test_loss": run.result.test_loss, **seconds}
                rows.append({"subgrid": subgrid.name, **axes, **about, **ended, **measured})
        return frame_of(rows, names_of(rows))
