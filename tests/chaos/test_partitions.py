"""Partitions of a real cluster in the lab, for a few seeds; `partitions.py` plays many."""

from pathlib import Path
from random import Random

import pytest

from tests.chaos.cuts import KINDS, drawn
from tests.chaos.partitions import PLANTED, Plan, play, play_planted
from tests.chaos.planted import DEFECTS
from tests.lab.lab import why_not


def test_a_schedule_follows_from_its_seed() -> None:
    """Seeds that follow each other go through the modes; every kind of trouble can be drawn."""
    plans = [Plan.of(seed, ["sync", "easgd"], ["folder", "objects"], 2) for seed in range(4)]
    assert [plan.mode for plan in plans] == ["sync", "easgd", "sync", "easgd"]
    assert [plan.shared for plan in plans] == ["folder", "folder", "objects", "objects"]
    assert plans[3] == Plan.of(3, ["sync", "easgd"], ["folder", "objects"], 2)
    found = {
        (one.kind, one.who, one.from_, one.way)
        for seed in range(400)
        for one in drawn(Random(seed), times=2, may_skew=True).troubles
    }
    assert len(found) == len(KINDS)


def test_every_planted_defect_is_played() -> None:
    """Each has a run in which it does harm."""
    assert set(PLANTED) == set(DEFECTS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_history_with_cuts_keeps_every_rule(tmp_path: Path) -> None:
    """And the model has the bytes of an undisturbed run; the script plays all modes and stores."""
    if reason := why_not("folder"):
        pytest.skip(reason)
    played = play(Plan.of(14, ["sync"], ["folder"], 1), tmp_path / "shared")
    assert not played.wrong, played.line()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_planted_defect_is_found(tmp_path: Path) -> None:
    """The cheapest one; the script plays them all."""
    if reason := why_not("folder"):
        pytest.skip(reason)
    played = play_planted("older_base", tmp_path / "shared")
    assert any("began from version" in reason for reason in played.wrong), played.line()
