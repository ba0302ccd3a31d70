"""Which manager is meant, where a worker looks for another, and what is waited for."""

import errno
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from downpour.base.errors import (
    DownpourError,
    IncompatiblePeer,
    Refused,
    SharedDirectoryError,
    SpecError,
    Unreachable,
)
from downpour.base.options import checked_seconds
from downpour.cluster.manager.process import Manager, start_manager
from downpour.cluster.options import ManagerOptions
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Lease
from downpour.host.paths import Credentials
from downpour.network.discovery import Managers, awaiting, files_may_come, managers_for
from downpour.network.rpc import Address, Trust, parse_address
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
    monkeypatch.setattr("downpour.network.discovery.DEFAULT_MANAGER", str(one.address))
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


def test_the_default_port_is_the_last_resort(
    two: TwoClusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """It counts only if no folder was given and none is here, and a line says that it does."""
    assert two.found(None, None) == two.one.address
    assert f"manager at {two.one.address}, because no shared_dir is here" in caplog.text
    (tmp_path / "shared_dir").symlink_to(two.folders[1])
    assert two.found(None, None) == two.other.address
    with pytest.raises(Unreachable, match=r"no manager leads in .*nowhere yet"):
        two.found(None, tmp_path / "nowhere")
    two.other.close()
    for here in (tmp_path, two.folders[1]):
        monkeypatch.chdir(here)
        with pytest.raises(Unreachable, match=str(two.other.address)):
            two.found(None, None)


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


PATIENCE_SECONDS = 30.0


class Late:
    """Fails with an error so often, then answers."""

    def __init__(self, error: DownpourError, failures: int = 2) -> None:
        self.error, self.failures, self.calls = error, failures, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "here"


@pytest.mark.parametrize(
    "error", [Unreachable("there:1", "refused"), Refused("manager", "is stopping", busy=True)]
)
def test_a_manager_that_starts_is_waited_for(
    error: DownpourError, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says once what is waited for, and how long at most."""
    between: list[str] = []
    with caplog.at_level(logging.WARNING):
        found = awaiting(PATIENCE_SECONDS, lambda: between.append("looked"))(Late(error))
    assert found == "here"
    assert [record.getMessage() for record in caplog.records] == [
        f"{error}; waiting for up to 30 s"
    ]
    assert len(between) == 2


@pytest.mark.parametrize(
    "error",
    [
        IncompatiblePeer("another version"),
        Refused("advertise", "nobody answers there"),
        SharedDirectoryError("here", "not a folder"),
        SpecError("token_file", "x", "is not text"),
    ],
)
def test_a_lasting_error_is_raised_at_once(error: DownpourError) -> None:
    """There is one try."""
    late = Late(error)
    with pytest.raises(type(error)):
        awaiting(PATIENCE_SECONDS)(late)
    assert late.calls == 1


def test_without_seconds_to_wait_there_is_one_try() -> None:
    """A script may want to know at once."""
    late = Late(Unreachable("there:1", "refused"))
    with pytest.raises(Unreachable):
        awaiting(0.0)(late)
    assert late.calls == 1


def test_a_folder_and_a_token_that_the_manager_makes_are_waited_for(tmp_path: Path) -> None:
    """A worker that is started together with its manager finds neither of them yet."""
    folder, token = tmp_path / "shared", tmp_path / "token"

    def begin() -> None:
        SharedDirectory.open(folder, create=True)

    wait = awaiting(PATIENCE_SECONDS, begin, when=files_may_come)
    assert wait(lambda: SharedDirectory.open(folder, create=False)).root == folder

    def make_token() -> None:
        token.write_text("0123456789abcdef" * 4)
        token.chmod(0o600)

    trust = awaiting(PATIENCE_SECONDS, make_token, when=files_may_come)(
        Trust.load, Credentials(token_file=str(token))
    )
    assert not trust.is_open


def test_a_token_on_a_mount_that_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may start while its link is down; it ended as if its user had made a mistake."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    away = Mock(side_effect=[OSError(errno.ENOTCONN, "not connected"), token.open("rb")])
    monkeypatch.setattr("downpour.network.rpc.trust.open_user_file", away)
    wait = awaiting(PATIENCE_SECONDS, when=files_may_come)
    assert not wait(Trust.load, Credentials(token_file=str(token))).is_open


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), True])
def test_a_time_to_wait_is_one(seconds: float) -> None:
    """Less than nothing, and more than a day, are none."""
    with pytest.raises(SpecError, match="connect_seconds"):
        checked_seconds("connect_seconds", seconds)


def test_a_folder_that_is_not_the_managers_is_told_at_once(tmp_path: Path) -> None:
    """The file by which a worker proves that it sees the same folder never comes to this one."""
    shared = replace(SharedDirectory.open(tmp_path, create=True), patience_seconds=0.1)
    looks: list[str] = []
    with pytest.raises(SharedDirectoryError):
        awaiting(PATIENCE_SECONDS, lambda: looks.append("looked"))(shared.read_presence, "none")
    assert looks == []
