"""Notices a worker's death at once: its kernel closes the connection over which it was heard.

A connection that ends proves nothing, for the living open new ones, so the worker is called back.
Where nobody takes the call, it is dead. Where the call takes too long, it may be busy, or the
network gone; then its silence tells in time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import local

from downpour.errors import DownpourError, Unreachable
from downpour.manager.roster import Roster, RosterEntry
from downpour.rpc import Address, Trust, WorkerClient

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 3.0


class ConnectionMonitor:
    """Remembers for each connection's thread which worker was heard there.

    Args:
        roster: knows where workers answer.
        trust: what is asked of them.
        lost: told the name of a worker that is dead, and how that is known.
    """

    def __init__(self, roster: Roster, trust: Trust, lost: Callable[[str, str], None]) -> None:
        self._roster = roster
        self._trust = trust
        self._lost = lost
        self._connection = local()

    def heard(self, worker: str) -> None:
        """Note that this thread's connection is a worker's."""
        self._connection.heard = worker, self._roster.get(worker)

    def connection_ended(self) -> None:
        """Look after the worker that was heard over this thread's connection, if one was.

        One that left, or has registered anew, is not looked after here.
        """
        heard: tuple[str, RosterEntry | None] = getattr(self._connection, "heard", ("", None))
        worker, entry = heard
        if entry is None:
            return
        refused = self._is_refused(entry.address)
        if self._roster.is_dead(worker, entry, refused=refused):
            self._lost(worker, f"its connection ended and {entry.address} does not answer")

    def _is_refused(self, address: Address) -> bool:
        """Whether nobody takes a call there."""
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
            return not isinstance(error.__cause__, TimeoutError)
        except DownpourError as error:
            log.info("%s does not answer well: %s", address, error)
        return False
