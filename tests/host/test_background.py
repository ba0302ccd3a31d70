"""A user's function in a thread of its own: neither a slow nor a broken one is waited for."""

from __future__ import annotations

import logging
from threading import Event

import pytest

from downpour.host.process import Background


def test_every_value_comes_in_its_order() -> None:
    """Also those that wait when it is closed."""
    taken: list[int] = []
    thread = Background[int]("f", taken.append)
    for value in range(100):
        thread.take(value)
    thread.close()
    assert taken == [*range(100)]


def test_an_error_is_told_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """In one line, whatever it holds; later values still come."""
    taken: list[int] = []

    def broken(value: int) -> None:
        taken.append(value)
        raise ValueError("one\ntwo\x1b")

    thread = Background[int]("on_round broken", broken)
    with caplog.at_level(logging.WARNING):
        for value in range(3):
            thread.take(value)
        thread.close()
    assert taken == [0, 1, 2]
    said = r"on_round broken raised ValueError: one two\x1b; its later errors are not shown"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_function_that_hangs_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    """Values beyond those that may wait are left out and counted, and closing has a limit."""
    begun, goes_on = Event(), Event()

    def hangs(_: int) -> None:
        begun.set()
        goes_on.wait()

    thread = Background[int]("f", hangs, waiting_max=2)
    thread.take(0)
    begun.wait()
    for value in range(1, 6):
        thread.take(value)
    with caplog.at_level(logging.WARNING):
        thread.close(seconds=0.05)
    goes_on.set()
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("f has not returned after")
    assert told[1] == "f was too slow: it missed 5 calls"
