"""The registered workers' addresses, and a client to call each one back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock

from downpour.errors import Unreachable
from downpour.rpc import Address, WorkerClient
from downpour.rpc.messages import Registration

attendance = logging.getLogger("downpour.attendance")
"""Tells who joins, leaves and is lost; a manager in a terminal shows it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered worker."""

    registration: Registration
    client: WorkerClient

    @property
    def address(self) -> Address:
        """Where it answers."""
        return Address(self.registration.host, self.registration.port)


class Roster:
    """Written by registrations, read by calls; safe between threads."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._lock = Lock()

    def enter(self, registration: Registration, client: WorkerClient) -> str:
        """Take a worker in; returns the name it goes by, its own where nobody else has it.

        The same process registering again keeps its name and replaces its former entry.
        """
        with self._lock:
            name, copies = registration.name, 1
            while (held := self._entries.get(name)) and not _same(held.registration, registration):
                copies += 1
                name = f"{registration.name}-{copies}"
            former = self._entries.get(name)
            self._entries[name] = Entry(registration, client)
        if former is not None:
            former.client.close()
        return name

    def get(self, name: str) -> Entry | None:
        """Return a worker's entry, or None where it is not here."""
        return self._entries.get(name)

    def client(self, name: str) -> WorkerClient:
        """Return the client of a worker; raises Unreachable where it is not here."""
        entry = self._entries.get(name)
        if entry is None:
            raise Unreachable(name, "it is not registered")
        return entry.client

    def names(self) -> tuple[str, ...]:
        """Name all of them, in the order in which they came."""
        return tuple(self._entries)

    def strike(self, name: str) -> None:
        """Forget a worker."""
        with self._lock:
            entry = self._entries.pop(name, None)
        if entry is not None:
            entry.client.close()

    def close(self) -> None:
        """Forget all of them."""
        for name in list(self._entries):
            self.strike(name)


def _same(one: Registration, other: Registration) -> bool:
    return (one.hostname, one.pid) == (other.hostname, other.pid)
