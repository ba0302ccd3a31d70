"""Capacity estimates: against results by hand, and for clusters too large to try."""

from dataclasses import replace
from statistics import fmean

import pytest

from downpour.core.modes import MODES
from downpour_lab.capacity import Load, estimate_capacity, quantile
from downpour_lab.simulated.environment import Timings

EVEN = Timings(task_seconds=60.0, spread=0.0, worker_spread=0.0, patience=1.0)


def round_seconds(workers: int, shards: int) -> float:
    """Return the mean time of a round where all tasks take the same."""
    return estimate_capacity(
        Load(workers=workers, shards=shards, rounds=3, timings=EVEN)
    ).mean_seconds


@pytest.mark.slow
def test_even_workers_take_as_long_as_a_task_and_what_the_manager_adds() -> None:
    """One task a worker takes one task's time; three take three times that."""
    assert 60 < round_seconds(10, 10) < 61
    assert 180 < round_seconds(10, 30) < 182


@pytest.mark.slow
def test_uneven_tasks_make_a_round_as_slow_as_its_slowest() -> None:
    """That is why there are straggler policies; the quantile is over rounds."""
    uneven = Timings(task_seconds=60.0, spread=0.3, worker_spread=0.0, patience=1.0)
    estimate = estimate_capacity(Load(workers=20, shards=20, rounds=10, timings=uneven))
    assert estimate.mean_seconds > 90
    rounds = estimate.round_seconds
    assert max(rounds) == quantile(rounds, 0.99) >= estimate.mean_seconds
    assert estimate.rounds_per_hour == 3600 / estimate.mean_seconds
    assert estimate.lost == 0


def test_a_manager_with_too_much_to_do_is_told_by_its_share() -> None:
    """Fifty heartbeats a second, sixteen milliseconds each, keep it busy."""
    timings = Timings(task_seconds=20.0, event_seconds=0.016, patience=1.0)
    estimate = estimate_capacity(Load(workers=50, shards=50, rounds=1, timings=timings))
    assert 0.4 < estimate.manager_busy <= 1.0


def test_progress_is_told() -> None:
    """At the end at least."""
    shown: list[int] = []
    estimate_capacity(Load(workers=2, shards=2, rounds=2, timings=EVEN), shown.append)
    assert shown[-1] == 2


def test_a_quantile_is_one_of_the_values() -> None:
    """A share of the values does not exceed it."""
    assert [quantile((3, 1, 2, 4), share) for share in (0.0, 0.5, 0.99)] == [1, 2, 4]


UNEVEN = Load(
    workers=6,
    shards=6,
    rounds=6,
    timings=Timings(task_seconds=60.0, spread=0.3, worker_spread=0.0, patience=1.0),
)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_applies_an_update_of_each_shard_in_each_round(mode: str) -> None:
    """In step, none is stale. Of six shards, `k-sync` awaits nine tenths, which are all."""
    short = replace(UNEVEN.timings, task_seconds=10.0)
    estimate = estimate_capacity(replace(UNEVEN, mode=mode, rounds=4, timings=short))
    assert len(estimate.round_seconds) == 4
    assert len(estimate.staleness) == 24
    assert (max(estimate.staleness) > 0) == (mode not in {"sync", "k-sync"})
    assert 0 < estimate.training < 1


@pytest.mark.slow
def test_workers_that_wait_for_nobody_train_more_of_the_time() -> None:
    """They apply more updates an hour, which are older."""
    in_step, apart = (estimate_capacity(replace(UNEVEN, mode=m)) for m in ("sync", "downpour"))
    assert apart.training > in_step.training
    assert apart.updates_per_hour > in_step.updates_per_hour
    assert fmean(apart.staleness) > fmean(in_step.staleness) == 0


@pytest.mark.slow
def test_workers_that_die_cost_rounds_and_no_update() -> None:
    """Another worker trains the shard again; the same seed kills the same workers."""
    calm = estimate_capacity(UNEVEN)
    often, again = (estimate_capacity(replace(UNEVEN, deaths_an_hour=120.0)) for _ in range(2))
    assert often == again
    assert often.lost > 0
    assert len(often.staleness) == len(calm.staleness)
    assert often.mean_seconds > calm.mean_seconds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_workers_do_a_round() -> None:
    """Their heartbeats are more than one manager can take in at once, and no worker is lost."""
    timings = Timings(task_seconds=60.0, spread=0.2, event_seconds=0.0002, patience=1.0)
    estimate = estimate_capacity(Load(workers=10_000, shards=10_000, rounds=1, timings=timings))
    assert estimate.lost == 0
    assert estimate.mean_seconds > 60
