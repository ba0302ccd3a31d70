"""The workers of an experiment, according to its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from downpour.experiments.dashboard.versioned import Row

WorkerActivity = Literal["training", "idle", "lost", "left"]


@dataclass(slots=True)
class WorkerRow:
    """A worker; times are seconds since the experiment's submission, `changed` is a line."""

    number: int
    name: str
    changed: int = 0
    state: WorkerActivity = "idle"
    joined: float | None = None
    left: float | None = None
    numeric_class: str = ""
    address: str = ""
    tasks_done: int = 0
    samples_per_second: float | None = None
    cpu_share: float | None = None
    memory_bytes: int | None = None
    running: dict[int, None] = field(default_factory=dict)

    def row(self) -> Row:
        """Return the row as the page receives it."""
        return (
            self.number,
            self.name,
            self.state,
            self.joined,
            self.left,
            self.numeric_class,
            self.tasks_done,
            self.samples_per_second,
            self.cpu_share,
            self.memory_bytes,
            self.address,
        )


class WorkerTable:
    """All workers by name, numbered in the order in which the record first names them."""

    def __init__(self) -> None:
        self._by_name: dict[str, WorkerRow] = {}
        self._names: list[str] = []

    def named(self, name: str) -> WorkerRow:
        """Return a worker, or a new one if the record has not named it before."""
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = WorkerRow(len(self._names), name)
            self._names.append(name)
        return known

    def at(self, number: int) -> WorkerRow:
        """Return a worker by its number."""
        return self._by_name[self._names[number]]

    def began(self, number: int, attempt: int, line: int) -> None:
        """Note that a worker trains an attempt."""
        worker = self.at(number)
        worker.running[attempt] = None
        worker.state, worker.changed = "training", line

    def stopped(self, number: int, attempt: int, line: int) -> None:
        """Note that a worker no longer trains an attempt."""
        worker = self.at(number)
        if worker.running.pop(attempt, attempt) is None and not worker.running:
            if worker.state == "training":
                worker.state = "idle"
            worker.changed = line

    def since(self, after: int, upto: int) -> Iterator[Row]:
        """Yield the workers that changed last after line `after`, up to line `upto`.

        If `after` is 0, yield all of them, because every attempt names its worker by number.
        """
        for worker in self._by_name.values():
            if after < worker.changed <= upto or (after == 0 and worker.changed):
                yield worker.row()
