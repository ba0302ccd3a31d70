"""A manager that is killed costs no retry and changes no byte, however many workers there are."""

from __future__ import annotations

import pytest

from tests.chaos.kills import measured, told


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("workers", "overlap"), [(3, 0), (6, 0), (3, 1)])
def test_a_killed_manager_costs_nothing_but_the_time_until_the_next_is_there(
    workers: int, overlap: int
) -> None:
    """Nor where rounds overlap; many more are played by the script of this test."""
    outcomes = measured(workers, kills=1, epochs=30, seed=workers, overlap=overlap)
    assert all(one.same_bytes and not one.burned for one in outcomes), told(workers, outcomes)
