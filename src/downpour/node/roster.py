"""The workers that have registered with a manager: how each is called, and when it is dead.

A name belongs to one process. A call that fails, or a connection that ends, says something of the
registration that it was made for, and nothing of the same worker registered anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")


class Entered(NamedTuple, Generic[E]):
    """The name that a worker goes by, and what was known of the same process before."""

    name: str
    former: E | None


class Registry(Generic[E]):
    """Keeps an entry for each worker; `E` is what its driver needs to call one."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Hashable, E]] = {}

    def enter(self, name: str, process: Hashable, entry: E) -> Entered[E]:
        """Take a worker in, under its own name unless another process has that.

        The same process that registers again keeps its name, and its entry is replaced.
        """
        chosen, copies = name, 1
        while chosen in self._entries and self._entries[chosen][0] != process:
            copies += 1
            chosen = f"{name}-{copies}"
        former = self.get(chosen)
        self._entries[chosen] = process, entry
        return Entered(chosen, former)

    def get(self, name: str) -> E | None:
        """Return a worker's entry, or None where it is not here."""
        found = self._entries.get(name)
        return found[1] if found is not None else None

    def names(self) -> tuple[str, ...]:
        """Name all of them, in the order in which they came."""
        return tuple(self._entries)

    def remove(self, name: str) -> E | None:
        """Forget a worker; returns its entry."""
        found = self._entries.pop(name, None)
        return found[1] if found is not None else None

    def is_dead(self, name: str, entry: E, *, refused: bool = True) -> bool:
        """Whether a call that failed shows that a worker is dead: it still has that entry.

        One that has registered anew, or is gone, is known to the core from there. After the end of
        a connection only a call that is `refused` shows it: the living open new connections, and
        one that answers late may be busy, or the network gone; then its silence tells in time.
        """
        return refused and self.get(name) is entry
