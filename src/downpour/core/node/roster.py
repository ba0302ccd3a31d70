"""The workers that have registered with a manager: the name of each, and when it counts as dead.

A name belongs to one process. A failed call, or a broken connection, only affects its own
registration, and not a new registration of the same worker.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")


class Entered(NamedTuple, Generic[E]):
    """The name under which a worker is registered, and the same process's former entry."""

    name: str
    former: E | None


class Registry(Generic[E]):
    """Keeps an entry for each worker; `E` is the driver's data for calling one."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Hashable, E]] = {}

    def enter(self, name: str, process: Hashable, entry: E) -> Entered[E]:
        """Register a worker under its own name, or with a number added if another process has it.

        A process that registers again keeps its name, and the new entry replaces the old one.
        """
        # Users may give workers equal names. Without a given name, a worker picks a random one.
        chosen, copies = name, 1
        while chosen in self._entries and self._entries[chosen][0] != process:
            copies += 1
            chosen = f"{name}-{copies}"
        former = self.get(chosen)
        self._entries[chosen] = process, entry
        return Entered(chosen, former)

    def get(self, name: str) -> E | None:
        """Return a worker's entry, or None if it is not registered."""
        _, entry = self._entries.get(name, (None, None))
        return entry

    def names(self) -> tuple[str, ...]:
        """Return the names of all workers, in the order of registration."""
        return tuple(self._entries)

    def remove(self, name: str) -> E | None:
        """Remove a worker and return its entry, or None if it is not registered."""
        _, entry = self._entries.pop(name, (None, None))
        return entry

    def is_dead(self, name: str, entry: E, *, refused: bool = True) -> bool:
        """Whether a failed call shows that a worker is dead: it must still have that entry.

        If the worker has registered again or is gone, the call no longer says anything about it.
        After a connection ends, only a `refused` call counts. A live worker opens a new connection,
        and a worker that answers late may be busy or cut off. The heartbeat timeout decides then.
        """
        return refused and self.get(name) is entry
