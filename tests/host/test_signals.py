"""Signals that end a process: which are heard, how often, and which stay ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from downpour.host import process as signals
from downpour.host.process import kept_handlers, on_interrupt, on_leaving

OF_ENGINES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Give back the handlers that a test replaces."""
    kept = {number: signal.getsignal(number) for number in (*OF_ENGINES, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [(True, False, True), (True, True, False), (False, False, False)],
    ids=["a closed terminal", "an open one", "none"],
)
def test_hup_ends_a_server_whose_terminal_has_closed(
    monkeypatch: pytest.MonkeyPatch, *, before: bool, after: bool, leaves: bool
) -> None:
    """Otherwise a program that rotates logs has sent it."""
    has = [before, after]
    monkeypatch.setattr(signals, "_has_terminal", lambda: has.pop(0))
    heard: list[int] = []
    on_leaving(heard.append)
    signal.raise_signal(signal.SIGHUP)
    assert heard == ([signal.SIGHUP] if leaves else [])


def test_signals_of_engines_are_heard_each_time() -> None:
    """By default each of them kills the process."""
    heard: list[int] = []
    on_leaving(heard.append)
    for number in OF_ENGINES:
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert heard == [number for number in OF_ENGINES for _ in range(2)]


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    """The process is to outlive its terminal."""
    heard: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    on_leaving(heard.append)
    signal.raise_signal(signal.SIGHUP)
    assert heard == []


def test_a_second_interrupt_ends_the_process() -> None:
    """The first one leaves in order; after it the system's default is back, which kills."""
    heard: list[str] = []
    on_interrupt(lambda: heard.append("interrupted"))
    signal.raise_signal(signal.SIGINT)
    assert heard == ["interrupted"]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_the_handlers_that_a_library_replaces_are_put_back() -> None:
    """Ray's `init` sets one of its own, which ends the command with status 15."""
    heard: list[int] = []
    on_leaving(heard.append)
    with kept_handlers():
        signal.signal(signal.SIGTERM, lambda *_: heard.append(-1))
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_a_thread_has_no_handlers_to_put_back() -> None:
    """Python lets the main thread alone set any."""
    entered = []

    def enter() -> None:
        with kept_handlers():
            entered.append(True)

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
