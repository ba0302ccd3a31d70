"""A manager that is killed costs no retry and changes no byte, however many workers there are."""

from __future__ import annotations

import pytest

from tests.chaos.kills import measured, told


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("workers", [3, 6])
def test_a_killed_manager_costs_nothing_but_the_time_until_the_next_is_there(workers: int) -> None:
    """Many more are played by the script of this test."""
    outcomes = measured(workers, kills=1, epochs=30, seed=workers)
    assert all(one.same_bytes and not one.burned for one in outcomes), told(workers, outcomes)
