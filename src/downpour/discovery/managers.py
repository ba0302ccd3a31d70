"""Where to find a manager: at the given address, or where the leader's term names it."""

from __future__ import annotations

from downpour.errors import SpecError
from downpour.node.worker import next_address
from downpour.rpc import Address, ManagerClient, Trust, parse_address
from downpour.store import SharedDirectory
from downpour.store.lease import current_leader


class Managers:
    """Clients of the managers that may lead, for a worker or a user.

    `first` is the client of the given address.

    Args:
        shared: the shared directory, where managers write that they lead; None if it is unknown, or
            if no other manager is wanted.
        given: the address that the user gave.
        trust: the credentials of the calls.
    """

    def __init__(self, shared: SharedDirectory | None, given: Address, trust: Trust) -> None:
        self._shared = shared
        self._given = given
        self._trust = trust
        self._client = self.first = ManagerClient(given, trust=trust)

    def another(self) -> ManagerClient | None:
        """Return a client of another manager than the last one; None if none is known.

        `node.worker.next_address` says which.
        """
        following = next_address(self._given, self._leader_addresses(), self._client.address)
        if following is None:
            return None
        self._client = ManagerClient(following, trust=self._trust)
        return self._client

    def close(self) -> None:
        """Close the last client."""
        self._client.close()

    def _leader_addresses(self) -> list[Address]:
        leader = current_leader(self._shared.terms) if self._shared is not None else None
        try:
            return [parse_address(address) for address in leader.addresses] if leader else []
        except SpecError:
            return []
