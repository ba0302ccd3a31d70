"""Reads an experiment's record while it grows, and what it tells of deaths and their cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Self

from downpour.base.errors import StoreError
from downpour.files.store.layout import RECORD_NAME
from downpour.record.journal import segments
from downpour.record.record import RecordReader, line_text, read_record
from downpour.record.record_lines import (
    AssignedLine,
    AttemptFailedLine,
    Dated,
    RecordLine,
    UpdatedLine,
)

LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A fact, and when it could first be read by this process's clock."""

    at_seconds: float
    fact: RecordLine


class Watcher:
    """Looks for new lines in the one experiment of a shared directory; a context manager.

    The record's own times are the managers', which stand still while there is none. A look reads
    what the journal has gained, because a record that is read as a whole, fifty times a second,
    takes a core from those who are watched.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._lines: list[tuple[str, Seen]] = []
        self._files: list[Path] | None = None
        self._reader = RecordReader(shared)
        self._ending = Event()
        self._thread = Thread(target=self._watch)

    @property
    def story(self) -> list[Seen]:
        return [seen for _, seen in self._lines]

    def wait(self, seconds: float) -> None:
        """Let that much time pass, while lines are read."""
        self._ending.wait(seconds)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look a last time, and end."""
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        """Take in new lines; a manager that takes over may have put others in place of the last."""
        for folder in self._shared.glob("experiments/*"):
            try:
                files = segments(folder)
                if files == self._files:
                    self._lines += _seen(self._reader.take())
                else:
                    self._look_anew(folder, files)
            except StoreError:
                self._files = None  # what it has read of the rest is lost

    def _look_anew(self, folder: Path, files: list[Path]) -> None:
        reader = RecordReader(folder)
        lines = _seen(reader.take()) if files else _seen(read_record(folder / RECORD_NAME))
        both = zip(self._lines, lines, strict=False)
        known = sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1][0], both))
        self._lines[known:] = lines[known:]
        self._files, self._reader = files, reader


def _seen(lines: Iterable[Dated]) -> list[tuple[str, Seen]]:
    """Return lines by their texts, seen now."""
    now = monotonic()
    return [(line_text(at, fact), Seen(at_seconds=now, fact=fact)) for at, fact in lines]


def until_next_assignment(story: Sequence[Seen], death_seconds: float) -> float | None:
    """Return the seconds from a manager's death to the next assignment; None where none came."""
    following = (seen.at_seconds for seen in story if isinstance(seen.fact, AssignedLine))
    return next((at - death_seconds for at in following if at > death_seconds), None)


def until_reassignment(story: Sequence[Seen], worker: str, death_seconds: float) -> float | None:
    """Return the seconds from a worker's death until its task was given out again, if it was."""
    running: AssignedLine | None = None
    for seen in story:
        fact = seen.fact
        if seen.at_seconds <= death_seconds:
            if isinstance(fact, AssignedLine) and fact.worker == worker:
                running = fact
            elif isinstance(fact, UpdatedLine | AttemptFailedLine) and _same(fact, running):
                running = None
        elif running is None or (isinstance(fact, UpdatedLine) and _same(fact, running)):
            return None  # it reported with its last breath
        elif isinstance(fact, AssignedLine) and _task(fact) == _task(running):
            return seen.at_seconds - death_seconds
    return None


Attempt = AssignedLine | UpdatedLine | AttemptFailedLine


def _task(fact: Attempt) -> tuple[int, int]:
    return fact.round, fact.shard


def _same(fact: Attempt, other: Attempt | None) -> bool:
    return other is not None and (*_task(fact), fact.attempt) == (*_task(other), other.attempt)
