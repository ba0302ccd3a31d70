"""Where a worker finds a manager: where it was told to, and where the one in office says it is."""

from __future__ import annotations

from downpour.errors import SpecError
from downpour.rpc import Address, ManagerClient, Trust, parse_address
from downpour.store import SharedDirectory
from downpour.store.lease import current_office


class Managers:
    """Clients of the managers that there may be; `first` is the one that the worker was told.

    Args:
        shared: the shared directory, where managers write that they are in office.
        told: the address that the worker was given.
        trust: what is asked of managers.
    """

    def __init__(self, shared: SharedDirectory, told: Address, trust: Trust) -> None:
        self._shared = shared
        self._told = told
        self._trust = trust
        self._client = self.first = ManagerClient(told, trust=trust)

    def another(self) -> ManagerClient | None:
        """Return a client of a manager elsewhere than the last one; None where none is known.

        Who asks again and again comes by turns to the address it was told and to those of the
        manager in office: the first may be a name that moves, the others may not be seen from here.
        """
        places = list(dict.fromkeys([self._told, *self._in_office()]))
        last = places.index(self._client.address) if self._client.address in places else -1
        following = places[(last + 1) % len(places)]
        if following == self._client.address:
            return None
        self._client = ManagerClient(following, trust=self._trust)
        return self._client

    def close(self) -> None:
        """Let go of the last one."""
        self._client.close()

    def _in_office(self) -> list[Address]:
        office = current_office(self._shared.terms)
        try:
            return [parse_address(address) for address in office.addresses] if office else []
        except SpecError:
            return []
