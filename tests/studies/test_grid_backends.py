"""Who trains a cell: processes of this machine, or a manager elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.api import Asked, Client, OnStatus
from downpour.errors import ExperimentFailed, SpecError
from downpour.reports import Result
from downpour.spec import Spec
from downpour.studies.grid import Grid
from downpour.studies.grid_backends import Embedded, Remote
from downpour.studies.grid_folder import Folder
from downpour.studies.grid_runner import run_missing
from tests.studies.conftest import Interruption, Silence, record_of

QUICK = 'name = "quick"\ntrials = 1\nepochs = 1\ntrain_limit = 200\nworkers = 2\n'


class FakeClient(Client):
    """A client whose manager is made up: every experiment ends as it is told to."""

    def __init__(self, end: BaseException | None = None) -> None:
        self.end = end
        self.cancelled: list[str] = []

    def submit(self, spec: Asked, request: str = "") -> str:
        """Take it."""
        assert request
        assert isinstance(spec, Spec)
        self.spec = spec
        return "quick-1"

    def wait(self, experiment: str, *, on_status: object = None, check: object = None) -> Result:
        """End at once."""
        del on_status, check
        if self.end is not None:
            raise self.end
        return Result.from_lines(self.record(experiment))

    def record(self, experiment: str, from_line: int = 0) -> list[str]:
        """Return a record."""
        assert (experiment, from_line) == ("quick-1", 0)
        (cell,) = Grid.from_toml(QUICK).cells.values()
        failed = isinstance(self.end, ExperimentFailed)
        return record_of(cell, failed=failed).decode().splitlines()

    def cancel(self, experiment: str) -> None:
        """Note it."""
        self.cancelled.append(experiment)


def no_status(*_: object) -> None:
    """Nobody looks."""


WATCH: OnStatus = no_status


def test_a_manager_is_given_the_spec_and_gives_the_record() -> None:
    """The record comes as the manager wrote it, also of an experiment that failed."""
    (cell,) = Grid.from_toml(QUICK).cells.values()
    client = FakeClient()
    assert Remote(client).train(cell, WATCH) == record_of(cell)
    assert client.spec == cell.spec
    unlucky = FakeClient(ExperimentFailed("quick-1", "no luck"))
    assert Remote(unlucky).train(cell, WATCH) == record_of(cell, failed=True)
    assert unlucky.cancelled == []


def test_who_stops_waiting_cancels() -> None:
    """So the manager's workers are free again when the grid is run anew."""
    (cell,) = Grid.from_toml(QUICK).cells.values()
    client = FakeClient(Interruption())
    with pytest.raises(Interruption):
        Remote(client).train(cell, WATCH)
    assert client.cancelled == ["quick-1"]


def test_a_managers_workers_are_as_they_are(tmp_path: Path) -> None:
    """Several numbers of workers are refused before anything is written."""
    grid = Grid.from_toml('name = "g"\nworkers = [1, 2]')
    folder = Folder(tmp_path / "g", grid)
    with pytest.raises(SpecError, match=r"workers = \[1, 2\]: must be one number with --manager"):
        run_missing(folder, Remote(FakeClient()), Silence())
    assert not folder.path.exists()


def test_a_dataset_that_is_nowhere_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Every dataset of the grid is looked for, not only the first cell's."""
    grid = Grid.from_toml('name = "g"\nworkers = 1\ndataset = ["digits", "nowhere"]')
    folder = Folder(tmp_path / "g", grid)
    with pytest.raises(SpecError, match="dataset = 'nowhere'"):
        run_missing(folder, Embedded(tmp_path / "shared"), Silence())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_cell_is_trained_here(tmp_path: Path) -> None:
    """By real processes; a cell that cannot be fails, and the others are kept."""
    text = QUICK + 'batches = ["shuffled", "balanced"]\nbatch_size = 4\n'
    folder = Folder(tmp_path / "quick", Grid.from_toml(text))
    failed = run_missing(folder, Embedded(tmp_path / "shared"), Silence())
    (reason,) = [summary.reason for summary in failed.values()]
    assert reason is not None
    assert "batches" in reason
    ((values, runs),) = folder.study().groups[0].measured
    assert values == ("shuffled",)
    assert runs[0].result.accuracy is not None
    assert {stint.shard for stint in runs[0].stints} == {0, 1}
