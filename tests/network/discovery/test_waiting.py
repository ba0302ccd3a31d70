"""What is about to be there is waited for; what will never be is told at once."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from downpour.base.errors import (
    DownpourError,
    IncompatiblePeer,
    Refused,
    SharedDirectoryError,
    SpecError,
    Unreachable,
)
from downpour.files.store import SharedDirectory
from downpour.host.paths import Credentials
from downpour.network.discovery.waiting import awaiting, checked_seconds, files_may_come
from downpour.network.rpc import Trust

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
