"""Messages are values."""

import pytest

from downpour.rpc import ExperimentState, Status


def test_a_message_cannot_be_changed() -> None:
    """It is frozen, and has no room for more."""
    with pytest.raises((AttributeError, TypeError)):
        Status(change=1).change = 2  # type: ignore[misc]


def test_experiments_end_in_three_ways() -> None:
    """Finished, failed or cancelled; the others go on."""
    ended = {state for state in ExperimentState if state.ended}
    assert {state.value for state in ended} == {"finished", "failed", "cancelled"}
