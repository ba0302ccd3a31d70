"""A worker whose manager is gone looks where the leader is."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.discovery.managers import Managers
from downpour.rpc import OPEN, Address, parse_address
from downpour.store import SharedDirectory
from downpour.store.lease import Lease

TOLD = Address("told", 1)


@pytest.fixture
def shared(tmp_path: Any) -> SharedDirectory:
    """An empty shared directory."""
    return SharedDirectory.open(tmp_path, create=True)


def test_without_a_manager_in_office_there_is_one_address(shared: SharedDirectory) -> None:
    """The one that the worker was told."""
    managers = Managers(shared, TOLD, OPEN)
    assert managers.first.address == TOLD
    assert managers.another() is None


def test_told_and_in_office_take_turns(shared: SharedDirectory) -> None:
    """A machine may have several addresses, and the lead may change hands meanwhile."""
    managers = Managers(shared, TOLD, OPEN)
    Lease(shared).claim("there:2", "[fd00::2]:2")
    turns = [str(found.address) for _ in range(4) if (found := managers.another())]
    assert turns == ["there:2", "[fd00::2]:2", "told:1", "there:2"]
    Lease(shared).claim("elsewhere:3")
    turns = [str(found.address) for _ in range(3) if (found := managers.another())]
    assert turns == ["told:1", "elsewhere:3", "told:1"]


@pytest.mark.parametrize("address", [str(TOLD), "not:an:address"])
def test_the_same_address_or_none_is_no_other(shared: SharedDirectory, address: str) -> None:
    """The worker goes on trying where it is."""
    Lease(shared).claim(address)
    assert Managers(shared, parse_address("told:1"), OPEN).another() is None
