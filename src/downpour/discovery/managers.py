"""Where to find a manager: at the given address, or where the leader's term names it."""

from __future__ import annotations

from downpour.errors import SpecError, Unreachable
from downpour.node.worker import next_address
from downpour.rpc import Address, ManagerClient, Trust, parse_address
from downpour.store import SharedDirectory
from downpour.store.lease import leader_of


def leading_manager(shared: SharedDirectory) -> Address:
    """Return the address of the manager that leads in a shared directory.

    Raises:
        Unreachable: no manager has written there that it leads.
    """
    addresses = _leader_addresses(shared)
    if not addresses:
        raise Unreachable("the manager", f"none leads in {shared.where} yet")
    return addresses[0]


class Managers:
    """Clients of the managers that may lead, for a worker or a user.

    `first` is the client of the given address.

    Args:
        shared: the shared directory, where managers write that they lead; None if it is unknown, or
            if no other manager is wanted.
        given: the address that the user gave, or that of the first leader.
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
        of_leader = _leader_addresses(self._shared) if self._shared is not None else []
        following = next_address(self._given, of_leader, self._client.address)
        if following is None:
            return None
        self._client = ManagerClient(following, trust=self._trust)
        return self._client

    def close(self) -> None:
        """Close the last client."""
        self._client.close()


def _leader_addresses(shared: SharedDirectory) -> list[Address]:
    leader = leader_of(shared)
    try:
        return [parse_address(address) for address in leader.addresses] if leader else []
    except SpecError:
        return []
