"""How far a search is, for people."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from downpour.tuning import run_search
from downpour.tuning.progress import SearchDisplay, seconds_left
from tests.tuning.conftest import FakeTrainer, Silence, folder_in


def test_a_line_tells_of_each_trial_and_the_bar_of_the_best(tmp_path: Path) -> None:
    """Its number, what came of it, its values, and whether it is the best so far."""
    folder = folder_in(tmp_path)
    lines: list[str] = []
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with SearchDisplay(console, lines.append, folder.tuned()) as display:
        tuned = run_search(folder, FakeTrainer(hopeless={2}), display)
    assert len(lines) == 12
    assert lines[0].startswith("1/12 trial 1 finished accuracy ")
    assert "learning rate " in lines[0]
    assert "dropout 0." in lines[0]
    assert lines[0].endswith("(the best so far)")
    assert lines[1].startswith("2/12 trial 2 failed, no luck in 0 s: learning rate")
    assert any(", pruned after epoch" in line for line in lines)
    assert tuned.best is not None
    assert tuned.best.accuracy is not None
    assert f"trials, best {tuned.best.accuracy:.2%}" in file.getvalue()


def test_the_time_left_follows_from_what_trials_took(tmp_path: Path) -> None:
    """Unknown before the first has ended, nothing once all have."""
    tuned = run_search(folder_in(tmp_path), FakeTrainer(), Silence())
    assert seconds_left([], 12) is None
    assert seconds_left(tuned.trials, 12) == 0.0
    assert seconds_left(tuned.trials, 24) == sum(trial.wall_seconds for trial in tuned.trials)
