"""How often a look is repeated, without ever sleeping."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from downpour.errors import FileMissing
from downpour.store.patience import Patience, is_passing


def looks_until(succeeds_at: int) -> tuple[Callable[[], str], list[int]]:
    """Return a look that fails until its call of that number, and the list of its calls."""
    calls: list[int] = []

    def look() -> str:
        calls.append(len(calls) + 1)
        if len(calls) < succeeds_at:
            raise FileMissing("file")
        return "seen"

    return look, calls


def test_a_look_that_succeeds_is_not_repeated() -> None:
    """Patience costs nothing where none is needed."""
    slept: list[float] = []
    look, calls = looks_until(1)
    assert Patience(seconds=9, sleep=slept.append).repeat(look) == "seen"
    assert (calls, slept) == ([1], [])


def test_the_second_look_comes_at_once_and_later_ones_rarely() -> None:
    """Waits grow from milliseconds to one second."""
    slept: list[float] = []
    look, _ = looks_until(13)
    Patience(seconds=60, sleep=slept.append).repeat(look)
    assert slept[0] < 0.01
    assert slept == sorted(slept)
    assert slept[-1] == 1.0


def test_patience_ends_with_the_last_error() -> None:
    """What was slept adds up to about the patience, and then the error stands."""
    slept: list[float] = []
    look, _ = looks_until(10**9)
    with pytest.raises(FileMissing, match="file"):
        Patience(seconds=5, sleep=slept.append).repeat(look)
    assert 5 <= sum(slept) <= 6


def test_no_patience_is_one_look() -> None:
    """Zero seconds mean that the first error stands."""
    look, calls = looks_until(2)
    with pytest.raises(FileMissing):
        Patience(seconds=0).repeat(look)
    assert calls == [1]


def test_other_errors_are_not_waited_for() -> None:
    """Only what a network file system may cure is repeated."""

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Patience(seconds=9, sleep=lambda _: pytest.fail("slept")).repeat(broken)


def test_a_change_is_repeated_only_where_the_server_was_away() -> None:
    """A full disk or a taken name does not pass by waiting."""
    passing = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
    assert all(is_passing(OSError(number, "")) for number in passing)
    assert not is_passing(OSError(errno.ENOSPC, ""))
    assert not is_passing(FileExistsError(errno.EEXIST, ""))
    assert not is_passing(FileMissing("file"))
