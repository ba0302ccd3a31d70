"""Where to find a manager: at the address that was told, or where the leader says it is."""

from __future__ import annotations

from downpour.errors import SpecError
from downpour.node.worker import next_address
from downpour.rpc import Address, ManagerClient, Trust, parse_address
from downpour.store import SharedDirectory
from downpour.store.lease import current_leader


class Managers:
    """Clients of the managers that there may be, for a worker or a user; `first` is the one told.

    Args:
        shared: the shared directory, where managers write that they lead; None: it is not
            known, or no other manager is wanted.
        told: the address that was given.
        trust: what is asked of managers.
    """

    def __init__(self, shared: SharedDirectory | None, told: Address, trust: Trust) -> None:
        self._shared = shared
        self._told = told
        self._trust = trust
        self._client = self.first = ManagerClient(told, trust=trust)

    def another(self) -> ManagerClient | None:
        """Return a client of a manager elsewhere than the last one; None where none is known.

        `node.worker.next_address` says which.
        """
        following = next_address(self._told, self._in_office(), self._client.address)
        if following is None:
            return None
        self._client = ManagerClient(following, trust=self._trust)
        return self._client

    def close(self) -> None:
        """Let go of the last one."""
        self._client.close()

    def _in_office(self) -> list[Address]:
        leader = current_leader(self._shared.terms) if self._shared is not None else None
        try:
            return [parse_address(address) for address in leader.addresses] if leader else []
        except SpecError:
            return []
