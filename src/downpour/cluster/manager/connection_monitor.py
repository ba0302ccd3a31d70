"""Notices a worker's death at once, because its kernel closes the connection for heartbeats.

The end of a connection proves nothing, because living workers open new ones. So the manager calls
the worker back. If the connection is refused, the worker is dead. If the call times out, the worker
may be busy or the network down; then the heartbeat timeout decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import local

from downpour.base.errors import DownpourError, Unreachable
from downpour.cluster.manager.roster import Roster, RosterEntry
from downpour.network.rpc import Address, Trust, WorkerClient

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 3.0
"""The timeout of a call back. It runs in the ended connection's thread, so nothing waits for it."""


class ConnectionMonitor:
    """Remembers, for each connection's thread, which worker called over it.

    Args:
        roster: the workers' addresses.
        trust: the credentials of the call back.
        lost: called with the name of a dead worker, and with the evidence for its death.
    """

    def __init__(self, roster: Roster, trust: Trust, lost: Callable[[str, str], None]) -> None:
        self._roster = roster
        self._trust = trust
        self._lost = lost
        # A separate thread serves each connection. So thread-local data belongs to one connection,
        # and the protocol needs no field for it.
        self._connection = local()

    def heard(self, worker: str) -> None:
        """Note that this thread's connection belongs to a worker."""
        # Keep the worker's current entry. If the worker registers again, it gets another entry, and
        # the end of this connection then says nothing about it.
        self._connection.heard = worker, self._roster.get(worker)

    def connection_ended(self) -> None:
        """Check the worker that called over this thread's connection, if any did.

        This skips a worker that left or has registered again.
        """
        heard: tuple[str, RosterEntry | None] = getattr(self._connection, "heard", ("", None))
        worker, entry = heard
        if entry is None:
            return
        refused = self._is_refused(entry.address)
        if self._roster.is_dead(worker, entry, refused=refused):
            self._lost(worker, f"its connection ended and {entry.address} does not answer")

    def _is_refused(self, address: Address) -> bool:
        """Whether a connection to this address is refused."""
        client = WorkerClient(
            address,
            trust=self._trust,
            timeout_seconds=_ANSWER_SECONDS,
            connect_seconds=_ANSWER_SECONDS,
        )
        try:
            with client:
                client.ping()
        except Unreachable as error:
            # A timeout while connecting may mean a lost network as well as a dead machine.
            return not isinstance(error.__cause__, TimeoutError)
        except DownpourError as error:
            log.info("%s answers badly: %s", address, error)
        return False
