"""Messages are values."""

from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.network.rpc import PROTOCOL, ManagerInfo, Status, frames
from downpour.network.rpc.generated import ttypes
from downpour.network.rpc.wire import from_wire


def test_a_message_cannot_be_changed() -> None:
    """It is frozen, and has no room for more."""
    with pytest.raises((AttributeError, TypeError)):
        Status(change=1).change = 2  # type: ignore[misc]


def test_experiments_end_in_three_ways() -> None:
    """Finished, failed or cancelled; the others go on."""
    ended = {state for state in ExperimentState if state.ended}
    assert {state.value for state in ended} == {"finished", "failed", "cancelled"}


def test_a_manager_of_another_protocol_can_be_asked_who_it_is() -> None:
    """What was added later may be missing, or nobody could be told that versions do not fit."""
    former: Any = ttypes.ManagerInfo(
        protocol=PROTOCOL - 1, version="0", presence_file="here", heartbeat_seconds=1.0
    )
    former.term = None
    protocol, buffer = frames.accelerated()
    former.write(protocol)
    read: Any = ttypes.ManagerInfo()
    read.read(frames.accelerated(buffer.getvalue())[0])
    assert from_wire(ManagerInfo, read).protocol == PROTOCOL - 1
