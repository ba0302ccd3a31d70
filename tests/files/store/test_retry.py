"""How often a look is repeated, without ever sleeping."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from downpour.base.errors import FileMissing, SharedDirectoryError, StoreError
from downpour.files.store.publish import RetryPolicy


def looks_until(succeeds_at: int) -> tuple[Callable[[], str], list[int]]:
    """Return a look that fails until its call of that number, and the list of its calls."""
    calls: list[int] = []

    def look() -> str:
        calls.append(len(calls) + 1)
        if len(calls) < succeeds_at:
            raise FileMissing("file")
        return "seen"

    return look, calls


def test_a_success_or_no_patience_is_one_look() -> None:
    """Patience costs nothing without need; without any, the first error stands."""
    slept: list[float] = []
    look, calls = looks_until(1)
    assert RetryPolicy(seconds=9, sleep=slept.append).call(look) == "seen"
    assert (calls, slept) == ([1], [])
    look, calls = looks_until(2)
    with pytest.raises(FileMissing):
        RetryPolicy(seconds=0).call(look)
    assert calls == [1]


def test_the_second_look_comes_at_once_and_later_ones_rarely() -> None:
    """Waits grow from milliseconds to one second."""
    slept: list[float] = []
    look, _ = looks_until(13)
    RetryPolicy(seconds=60, sleep=slept.append).call(look)
    assert slept[0] < 0.01
    assert slept == sorted(slept)
    assert slept[-1] == 1.0


def test_other_errors_are_not_waited_for() -> None:
    """Only what a network file system may cure is repeated."""

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RetryPolicy(seconds=9, sleep=lambda _: pytest.fail("slept")).call(broken)


def test_with_the_directory_there_may_be_another_patience_than_with_a_file() -> None:
    """One that is away is waited for as long as that says, and a file that is missing is not."""

    def away() -> None:
        raise SharedDirectoryError("shared", "is away")

    def missing() -> None:
        raise FileMissing("file")

    for act, at_least in ((away, 9), (missing, 3)):
        slept: list[float] = []
        with pytest.raises(StoreError):
            RetryPolicy(seconds=3, away_seconds=9, sleep=slept.append).call(act)
        assert at_least <= sum(slept) <= at_least + 1


def test_insisting_callers_wait_for_the_directory_alone() -> None:
    """What a file's own error leads to does not change by waiting."""
    look, calls = looks_until(2)
    with pytest.raises(FileMissing):
        RetryPolicy(seconds=9, sleep=lambda _: pytest.fail("slept")).call_through_outage(look)
    assert calls == [1]


def test_a_directory_that_stays_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looks at the log sees what is waited for."""

    def away() -> None:
        raise SharedDirectoryError("shared", "is away")

    with pytest.raises(SharedDirectoryError):
        RetryPolicy(seconds=60, sleep=lambda _: None).call_through_outage(away)
    assert [record.message for record in caplog.records] == [
        "waiting for the shared directory: shared directory shared: is away"
    ]
