"""How far a search is, for people."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from downpour.studies.lock import held
from downpour.studies.search_display import SearchDisplay, seconds_left
from downpour.studies.search_runner import run_search
from downpour.studies.search_status import standing_of
from tests.studies.searching import SEARCH, FakeTrainer, Silence, folder_in


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
    assert lines[1].startswith("2/12 trial 2 failed, no luck in 0 s: batch size ")
    assert any(", pruned after epoch" in line for line in lines)
    assert tuned.best is not None
    assert tuned.best.accuracy is not None
    assert f"trials, best {tuned.best.accuracy:.2%}" in file.getvalue()


def test_the_time_left_follows_from_what_trials_took(tmp_path: Path) -> None:
    """Unknown before the first has ended, nothing once all have."""
    folder = folder_in(tmp_path)
    assert seconds_left(folder.tuned()) is None
    tuned = run_search(folder, FakeTrainer(), Silence())
    assert seconds_left(tuned) == 0.0
    twice = replace(tuned, asked=24)
    assert seconds_left(twice) == pytest.approx(sum(trial.wall_seconds for trial in tuned.trials))


def test_how_far_a_search_is_says_who_runs_it(tmp_path: Path) -> None:
    """And how long it takes yet; of a search that is done neither is told."""
    run_search(folder_in(tmp_path), FakeTrainer(), Silence())
    grown = folder_in(tmp_path, SEARCH.replace("trials = 12", "trials = 14"))
    assert str(standing_of(grown)).endswith("about 0 s left, nobody runs it now")
    with held(grown.path):
        assert str(standing_of(grown)).endswith("runs it")
        assert standing_of(grown).to_dict()["running"].startswith("process ")
    assert "left" not in str(standing_of(folder_in(tmp_path)))


def test_a_trial_of_bad_luck_is_not_counted_as_done(tmp_path: Path) -> None:
    """It is told of, and once it has been repeated as the others are."""
    folder = folder_in(tmp_path)
    lines: list[str] = []
    for unlucky in ({2, 3}, set[int]()):
        with SearchDisplay(Console(file=io.StringIO()), lines.append, folder.tuned()) as display:
            run_search(folder, FakeTrainer(unlucky=unlucky), display)
    assert [line.split()[0] for line in lines[:4]] == ["1/12", "1/12", "1/12", "2/12"]
    assert [" ".join(line.split()[:3]) for line in lines[12:]] == [
        "11/12 trial 2",
        "12/12 trial 3",
    ]
