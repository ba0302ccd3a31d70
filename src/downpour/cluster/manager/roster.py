"""The registered workers' addresses, and a client to call each one back.

The end of a connection proves nothing, because living workers open new ones. So the manager calls
the worker back. If the connection is refused, the worker is dead. If the call times out, the worker
may be busy or the network down; then the heartbeat timeout decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, local

from downpour.base.errors import DownpourError, Unreachable
from downpour.host.text import shortened
from downpour.network.rpc import Address, WorkerClient
from downpour.network.rpc.messages import Registration

log = logging.getLogger(__name__)

_DIFFERENCES_MAX, _PHRASE_LETTERS_MAX = 50, 200

membership_log = logging.getLogger("downpour.membership")
"""Workers that join, leave and are lost; a manager in a terminal shows these lines."""


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One registered worker."""

    registration: Registration
    client: WorkerClient

    @property
    def process(self) -> tuple[str, int]:
        """Its machine and process."""
        return self.registration.hostname, self.registration.pid

    @property
    def address(self) -> Address:
        """The address at which it answers."""
        return Address(self.registration.host, self.registration.port)


class Roster:
    """The entries of all registered workers; safe to share between threads.

    A name belongs to one process. A failed call, or a broken connection, only affects its own
    registration, and not a new registration of the same worker.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RosterEntry] = {}
        self._differs: dict[str, tuple[str, ...]] = {}
        self._lock = Lock()

    def enter(self, registration: Registration, client: WorkerClient) -> str:
        """Register a worker under its own name, or with a number added if another process has it.

        A process that registers again keeps its name, and the new entry replaces the old one.
        """
        process = registration.hostname, registration.pid
        with self._lock:
            # Users may give workers equal names. Without a given name, a worker picks a random one.
            name, copies = registration.name, 1
            while name in self._entries and self._entries[name].process != process:
                copies += 1
                name = f"{registration.name}-{copies}"
            former = self._entries.get(name)
            self._entries[name] = RosterEntry(registration, client)
        # The same process has registered again, maybe with another address. End calls in flight to
        # the old address at once, rather than at their deadline.
        if former is not None:
            former.client.close()
        return name

    def get(self, name: str) -> RosterEntry | None:
        """Return a worker's entry, or None if it is not registered."""
        # This needs no lock, because reading one item of a dictionary is atomic.
        return self._entries.get(name)

    def note_differences(self, name: str, differs: tuple[str, ...]) -> None:
        """Note in which packages a worker says that it differs; log each difference once."""
        said = tuple(shortened(one, _PHRASE_LETTERS_MAX) for one in differs[:_DIFFERENCES_MAX])
        if self.get(name) is None or said == self.differences(name):
            return
        for one in said:
            if one not in self.differences(name):
                log.warning("%s has %s", name, one)
        self._differs[name] = said

    def differences(self, name: str) -> tuple[str, ...]:
        """Return the packages in which a worker differs, as it last reported."""
        return self._differs.get(name, ())

    def names(self) -> tuple[str, ...]:
        """Return the names of all workers, in the order of registration."""
        return tuple(self._entries)

    def is_dead(self, name: str, entry: RosterEntry) -> bool:
        """Whether a failed call shows that a worker is dead: it has not registered again since."""
        return self.get(name) is entry

    def strike(self, name: str) -> None:
        """Remove a worker."""
        with self._lock:
            entry = self._entries.pop(name, None)
            self._differs.pop(name, None)
        if entry is not None:
            entry.client.close()

    def close(self) -> None:
        """Remove all workers."""
        for name in self.names():
            self.strike(name)


_ANSWER_SECONDS = 3.0
"""The timeout of a call back. It runs in the ended connection's thread, so nothing waits for it."""


@dataclass(frozen=True, slots=True)
class ConnectionMonitor:
    """Remembers, for each connection's thread, which worker called over it.

    `connect` makes the client of a call back. `lost` gets a dead worker's name, and the evidence.
    """

    roster: Roster
    connect: Callable[..., WorkerClient]
    lost: Callable[[str, str], None]
    # Each connection has its thread, so thread-local data belongs to it; no message needs a field.
    _connection: local = field(default_factory=local)

    def heard(self, worker: str) -> None:
        """Note that this thread's connection belongs to a worker."""
        # Keep the worker's current entry. If the worker registers again, it gets another entry, and
        # the end of this connection then says nothing about it.
        self._connection.heard = worker, self.roster.get(worker)

    def connection_ended(self) -> None:
        """Check the worker of this thread's ended connection, unless it left or came again."""
        heard: tuple[str, RosterEntry | None] = getattr(self._connection, "heard", ("", None))
        worker, entry = heard
        if entry is not None:
            self.check(worker, entry)

    def check(self, worker: str, entry: RosterEntry) -> None:
        """Call a worker back, and lose it if the call is refused."""
        if self._is_refused(entry.address) and self.roster.is_dead(worker, entry):
            self.lost(worker, f"its connection ended and {entry.address} does not answer")

    def _is_refused(self, address: Address) -> bool:
        """Whether a connection to this address is refused."""
        timeouts = {"timeout_seconds": _ANSWER_SECONDS, "connect_seconds": _ANSWER_SECONDS}
        client = self.connect(address, **timeouts)
        try:
            client.ping()
        except Unreachable as error:
            # A timeout while connecting may mean a lost network as well as a dead machine.
            return not isinstance(error.__cause__, TimeoutError)
        except DownpourError as error:
            log.info("%s answers badly: %s", address, error)
        finally:
            client.close()
        return False
