"""A cluster's promises under any faults: the one list that all checks refer to.

A check compares a run with a promise. We count each comparison, so a run that ends well can show
that it has compared something. If a promise applies to a run and the run compared nothing with it,
the run fails (`trials/applying.py`). For each promise, `tests/virtual/trials/planted.py` plants a
defect that breaks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import partial


class Promise(StrEnum):
    """A promise; the value is its text in a failure."""

    ENDS = "every experiment ends"
    FINISHES = "an experiment that may not fail finishes"
    CONSISTENT = "the scheduler's state holds its invariants"
    REPLAYS = "the journal gives the state that it was written in"
    RECORDS = "the record tells of each version once, in order"
    REMEMBERS = "the journals hold all that a manager acted on or acknowledged"
    LEADS = "one manager leads at a time"
    REGISTERED = "only workers that have registered are asked"
    PLACES = "a shard goes only to workers that have what it needs"
    BLAMELESS = "the end of a manager costs no shard a retry"
    PROGRESS = "an attempt that got further costs its task no retry"
    OWN = "a manager takes up only experiments submitted to it"
    ONCE = "every shard counts once in a round"
    FOLDS = "a version holds the updates that count, in order"
    BYTES = "files hold what a run without faults makes"
    APART = "shards are no further apart, and wait no shorter, than their mode says"
    REFUSES = "no update is refused that is whole"
    TRAINS = "a worker trains what it was asked for last, alone and to its end"
    MENTIONS = "heartbeats mention all that a worker holds"
    STOPS = "a worker stops the tasks that its manager names, and no others"
    SAVES = "a worker saves its steps where that is of use, and only there"
    RESULTS = "the result is the last version, and the best one is kept"
    TIDY = "no file is left over"


class Broken(AssertionError):
    """A run broke a promise."""

    def __init__(self, promise: Promise, sentence: str) -> None:
        super().__init__(promise, sentence)
        self.promise = promise
        self.sentence = sentence

    def __str__(self) -> str:
        return f"{self.promise}: {self.sentence}"


Expect = Callable[[bool, str], None]
"""Compares: takes whether something holds, and the sentence to report if it does not."""


class Comparisons:
    """Counts the comparisons that a run has made with each promise."""

    def __init__(self) -> None:
        self.made: Counter[Promise] = Counter()

    def expect(self, promise: Promise, holds: bool, sentence: str) -> None:  # noqa: FBT001
        """Compare; raises Broken with the sentence if the run breaks the promise."""
        self.made[promise] += 1
        if not holds:
            raise Broken(promise, sentence)

    def of(self, promise: Promise) -> Expect:
        """Return a function that compares with one promise."""
        return partial(self.expect, promise)
