"""How far a grid is, said to people."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from downpour.studies.grid import Grid
from downpour.studies.grid_display import GridDisplay, about, seconds_left, spoken
from downpour.studies.grid_folder import Folder
from downpour.studies.grid_runner import run_missing
from downpour.studies.grid_status import standing_of
from downpour.studies.lock import held, holder
from tests.studies.conftest import GRID, FakeTrainer, Interruption, Silence, record_of


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (43, "43 s"), (750, "12 min"), (12_000, "3 h 20 min"), (3599, "60 min")],
)
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    """Seconds, minutes, or hours with minutes."""
    assert spoken(seconds) == said


def test_the_time_left_follows_what_the_same_settings_took(tmp_path: Path) -> None:
    """A slow setting's second trial counts as slow, and one never tried as the usual."""
    folder = Folder(tmp_path, Grid.from_toml('name="g"\ntrials=2\nworkers=[1, 2, 3]\n'))
    folder.begin()
    cells = list(folder.grid.cells.values())
    assert about(seconds_left(folder.grid.cells, {}, cells)) == "unknown time"
    folder.keep(cells[0], record_of(cells[0]), 600.0)
    folder.keep(cells[1], record_of(cells[1]), 60.0)
    # 330 s twice for the third setting, and the second trials of the others.
    left = seconds_left(folder.grid.cells, folder.summaries(), cells[2:])
    assert left == 2 * 330 + 600 + 60
    assert about(left) == "about 22 min"
    assert seconds_left(folder.grid.cells, {}, []) == 0


def test_a_line_a_cell_goes_to_the_log(tmp_path: Path) -> None:
    """Where nobody draws bars, each cell's end is told with what is left."""
    folder = Folder(tmp_path / "small", Grid.from_toml(GRID))
    hopeless = list(folder.grid.cells)[-1]
    said: list[str] = []
    console = Console(file=io.StringIO())
    with GridDisplay(console, said.append, folder.grid.cells, {}) as display:
        run_missing(folder, FakeTrainer(hopeless={hopeless}), display)
    assert len(said) == 10
    assert said[0].startswith("1/10 w1-random-average-s0-")
    assert said[0].endswith(" in 0 s, about 0 s left")
    assert said[-1].startswith(f"9/10 {hopeless} failed: no luck in ")


def test_a_standing_counts_from_the_folder(tmp_path: Path) -> None:
    """Also while somebody else runs the grid, and says who."""
    folder = Folder(tmp_path / "small", Grid.from_toml(GRID))
    with pytest.raises(Interruption):
        run_missing(folder, FakeTrainer(interrupted_at={4}), Silence())
    standing = standing_of(folder)
    assert (standing.finished, standing.cells, standing.running) == (3, 10, None)
    assert str(standing).endswith("left, nobody runs it now")
    with held(folder.path):
        assert standing_of(folder).running == holder(folder.path)
        assert "runs it" in str(standing_of(folder))
    run_missing(folder, FakeTrainer(), Silence())
    assert str(standing_of(folder)) == "small: 10 of 10 cells"
    assert standing_of(folder).to_dict()["failures"] == {}
