"""Which manager is meant, and where a worker whose manager is gone looks for another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import SpecError, Unreachable
from downpour.cluster.manager.options import ManagerOptions
from downpour.cluster.manager.process import Manager, start_manager
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Lease
from downpour.network.discovery.managers import Managers, managers_for
from downpour.network.rpc import Address, parse_address
from downpour.network.rpc.trust import OPEN

TOLD = Address("told", 1)


@pytest.fixture
def shared(tmp_path: Any) -> SharedDirectory:
    """An empty shared directory."""
    return SharedDirectory.open(tmp_path, create=True)


def test_without_a_manager_in_office_there_is_one_address(shared: SharedDirectory) -> None:
    """The one that the worker was told."""
    managers = Managers(shared, TOLD, OPEN)
    assert managers.first().address == TOLD
    assert managers.another() is None


def test_told_and_in_office_take_turns(shared: SharedDirectory) -> None:
    """A machine may have several addresses, and the lead may change hands meanwhile."""
    managers = Managers(shared, TOLD, OPEN)
    managers.first()
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
    managers = Managers(shared, parse_address("told:1"), OPEN)
    managers.first()
    assert managers.another() is None


@dataclass
class TwoClusters:
    """Two managers, each of a folder of its own; the first is at the default address."""

    one: Manager
    other: Manager
    folders: tuple[Path, Path]

    def found(self, manager: str | None, shared: Path | str | None) -> Address:
        """Return the address of the manager that answers to a user's words."""
        managers = managers_for(manager, shared, OPEN)
        if managers.shared is not None:  # on a local disk nothing comes late
            managers.shared = replace(managers.shared, patience_seconds=0.1)
        try:
            client = managers.first()
            managers.check(client)
            client.status()
            return client.address
        finally:
            managers.close()


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoClusters]:
    """Both serve; the current folder holds no shared directory."""
    folders = tmp_path / "one", tmp_path / "other"
    one, other = (start_manager(ManagerOptions(shared=str(f), port=0)) for f in folders)
    monkeypatch.setattr("downpour.network.discovery.managers.DEFAULT_MANAGER", str(one.address))
    monkeypatch.chdir(tmp_path)
    yield TwoClusters(one, other, folders)
    one.close()
    other.close()


def test_an_address_wins_and_else_the_folder_says_who_leads(two: TwoClusters) -> None:
    """Although another cluster is at the default port, where nothing is sent then."""
    _, folder = two.folders
    other = two.other.address
    assert two.found(str(other), None) == other
    assert two.found(None, folder) == other
    assert two.found(str(other), folder) == other


def test_the_default_port_is_the_last_resort(two: TwoClusters, tmp_path: Path) -> None:
    """It counts only if no folder was given, and the default folder has no leader."""
    assert two.found(None, None) == two.one.address
    (tmp_path / "shared_dir").symlink_to(two.folders[1])
    assert two.found(None, None) == two.other.address
    with pytest.raises(Unreachable, match=r"no manager leads in .*nowhere yet"):
        two.found(None, tmp_path / "nowhere")


def test_an_address_and_a_folder_of_two_clusters_are_refused(two: TwoClusters) -> None:
    """In one line that names both, and where the folder's own manager is."""
    with pytest.raises(SpecError) as caught:
        two.found(str(two.one.address), two.folders[1])
    said = str(caught.value)
    for named in (two.one.address, two.folders[1], two.other.address):
        assert str(named) in said
    assert "\n" not in said


def test_an_address_that_another_cluster_has_taken_over_is_not_the_folders(
    two: TwoClusters, tmp_path: Path
) -> None:
    """A folder's last manager has ended, and a stranger serves at its port: no command calls it."""
    shared = SharedDirectory.open(tmp_path / "left", create=True)
    Lease(shared).claim(str(two.one.address))
    with pytest.raises(Unreachable, match="another cluster's manager now has its address"):
        two.found(None, shared.root)
    # The address alone is the user's word.
    assert two.found(str(two.one.address), None) == two.one.address


def test_a_folder_that_this_machine_does_not_see_refuses_nothing(
    two: TwoClusters, tmp_path: Path
) -> None:
    """A client elsewhere may have the manager's environment without its folder."""
    address = two.other.address
    assert two.found(str(address), tmp_path / "not-mounted") == address
