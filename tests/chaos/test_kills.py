"""A manager that is killed costs no retry and changes no byte, however many workers there are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.kills import STEPS, measured, told


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("workers", "fields"), [(3, {}), (6, {}), (3, {"overlap": 1, **STEPS})])
def test_a_killed_manager_costs_nothing_but_the_time_until_the_next_is_there(
    workers: int, fields: dict[str, Any]
) -> None:
    """Nor where rounds overlap, and versions are steps; the script of this test plays many more."""
    outcomes = measured(workers, kills=1, epochs=30, seed=workers, fields=fields)
    assert all(one.same_bytes and not one.burned for one in outcomes), told(workers, outcomes)
