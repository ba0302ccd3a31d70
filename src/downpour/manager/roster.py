"""The registered workers' addresses, and a client to call each one back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock

from downpour.errors import Unreachable
from downpour.node.roster import Registry
from downpour.rpc import Address, WorkerClient
from downpour.rpc.messages import Registration

attendance = logging.getLogger("downpour.attendance")
"""Tells who joins, leaves and is lost; a manager in a terminal shows it."""


@dataclass(frozen=True, slots=True)
class RosterEntry:
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
        self._registry = Registry[RosterEntry]()
        self._lock = Lock()

    def enter(self, registration: Registration, client: WorkerClient) -> str:
        """Take a worker in; returns the name it goes by, see `Registry`."""
        process = registration.hostname, registration.pid
        with self._lock:
            name, former = self._registry.enter(
                registration.name, process, RosterEntry(registration, client)
            )
        if former is not None:
            former.client.close()
        return name

    def get(self, name: str) -> RosterEntry | None:
        """Return a worker's entry, or None where it is not here."""
        return self._registry.get(name)

    def client(self, name: str) -> WorkerClient:
        """Return the client of a worker; raises Unreachable where it is not here."""
        entry = self.get(name)
        if entry is None:
            raise Unreachable(name, "it is not registered")
        return entry.client

    def names(self) -> tuple[str, ...]:
        """Name all of them, in the order in which they came."""
        return self._registry.names()

    def is_dead(self, name: str, entry: RosterEntry, *, refused: bool = True) -> bool:
        """Whether a call that failed shows that a worker is dead; see `Registry`."""
        with self._lock:
            return self._registry.is_dead(name, entry, refused=refused)

    def strike(self, name: str) -> None:
        """Forget a worker."""
        with self._lock:
            entry = self._registry.remove(name)
        if entry is not None:
            entry.client.close()

    def close(self) -> None:
        """Forget all of them."""
        for name in self.names():
            self.strike(name)
