"""Calls to workers, in order for each and beside each other for all."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event

from downpour.cluster.manager.lanes import OrderedCalls

PATIENCE_SECONDS = 10


def test_calls_to_one_worker_keep_their_order() -> None:
    """However many threads there are, calls under one name run one after the other."""
    calls, seen = OrderedCalls(threads=4), SimpleQueue[int]()
    for number in range(200):
        calls.submit("anna", lambda number=number: seen.put(number))  # type: ignore[misc]
    assert [seen.get(timeout=PATIENCE_SECONDS) for _ in range(200)] == list(range(200))
    calls.close()


def test_a_slow_worker_does_not_hold_up_another() -> None:
    """While a call to one worker waits, calls to another go through."""
    calls, release, done = OrderedCalls(threads=2), Event(), SimpleQueue[str]()

    def wait() -> None:
        release.wait(PATIENCE_SECONDS)
        done.put("slow")

    calls.submit("slow", wait)
    calls.submit("quick", lambda: done.put("quick"))
    assert done.get(timeout=PATIENCE_SECONDS) == "quick"
    release.set()
    assert done.get(timeout=PATIENCE_SECONDS) == "slow"
    calls.close()
