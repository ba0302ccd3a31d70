"""Chooses the manager to call, and waits for one: the rules for workers, commands and clients.

1. An address that the user gave wins (`--manager`, `DOWNPOUR_MANAGER`).
2. Without one, the shared directory or the bucket says who leads (`--shared`, `DOWNPOUR_SHARED`).
3. With neither, `./shared_dir` says it, or the current folder if that is a shared directory. Only
   if there is none, we ask localhost's default port.

If both an address and a directory are known, the manager must serve that directory. Otherwise a
command would silently reach another cluster. A *presence file* proves that it does: the manager
tells every caller its name, and the directory holds it. If a manager is silent, we call the leader.

People and tools may start a manager, its workers and its clients in any order. So we wait for
missing managers, folders and tokens, and say so once in the log.
"""

import errno
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import tenacity

from downpour.base import errors
from downpour.base.values import DEFAULT_MANAGER, DEFAULT_SHARED
from downpour.core.node.worker import next_address
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import leader_of
from downpour.files.store.shared_directory import seen_location
from downpour.network.rpc import CALL_SECONDS, Address, ManagerClient, Trust, parse_address


@dataclass(eq=False)
class Managers:
    """Clients of the managers that may lead, for a worker or a user.

    Managers write into `shared` that they lead; None: look for no other one. The user gave the
    `address`, if any. Without a leader, we try the `last` one, even for another directory.
    """

    shared: SharedDirectory | None
    address: Address | None
    trust: Trust
    _: KW_ONLY
    last: Address | None = None
    timeout_seconds: float = CALL_SECONDS
    _client: ManagerClient | None = field(init=False, default=None)
    _checked: set[Address] = field(init=False, default_factory=set)

    def first(self) -> ManagerClient:
        """Return the client of the first manager to try."""
        if self.address is not None:
            return self._turn_to(self.address)
        leading = self._leader_addresses()
        address = leading[0] if leading else self.last
        if address is None:
            raise errors.Unreachable("the manager", f"no manager leads in {self._where} yet")
        return self._turn_to(address)

    def another(self) -> ManagerClient | None:
        """Return a client of another manager, by `next_address`; None if we know no other."""
        if self._client is None:
            return None
        of_leader = self._leader_addresses()
        users = [address for address in (self.address, self.last) if address is not None]
        first, *others = [*users, *of_leader] or [self._client.address]
        following = next_address(first, others, self._client.address)
        return None if following is None else self._turn_to(following)

    def check(self, client: ManagerClient) -> None:
        """Check that a manager serves the shared directory, if this machine sees the directory."""
        if self.shared is None:
            return
        address = client.address
        if address in self._checked:
            return
        if address == self.last:
            log.warning("manager at %s, because no %s is here", address, self._where)
        # If no manager ever led, or this machine does not see the directory, we accept any one.
        elif leader_of(self.shared) is not None:
            try:
                self.shared.read_presence(client.describe().presence_file)
            except (errors.OtherDirectory, errors.Untrusted) as error:
                raise self.explained(error, address) from None
        self._checked.add(address)

    def explained(
        self, error: errors.OtherDirectory | errors.Untrusted, address: Address
    ) -> errors.DownpourError:
        """Return an error in the user's terms for an error of the manager at an address."""
        leaders = self._leader_addresses()
        # A host has many names ([::1], localhost, one per network), so we compare ports. If there
        # is no second cluster, the folder or the credentials are wrong.
        is_leader = any(address.port == leader.port for leader in leaders)
        if not leaders or (isinstance(error, errors.Untrusted) and is_leader):
            return error
        if address != self.address:
            reason = f"another cluster's manager now has its address {address}"
            return errors.Unreachable(f"the manager of {self._where}", reason)
        place = f"shared = {self._where} (its manager is at {', '.join(map(str, leaders))})"
        accepted = f"serves another cluster than {place}; give only one of them"
        return errors.SpecError("manager", str(address), accepted)

    def close(self) -> None:
        """Close the last client."""
        if self._client is not None:
            self._client.close()

    @property
    def _where(self) -> str:
        return self.shared.where if self.shared is not None else "no directory"

    def _leader_addresses(self) -> Sequence[Address]:
        leader = leader_of(self.shared) if self.shared is not None else None
        try:
            return [parse_address(address) for address in leader.addresses] if leader else []
        except errors.SpecError:
            return []

    def _turn_to(self, address: Address) -> ManagerClient:
        self._client = ManagerClient(
            address, trust=self.trust, timeout_seconds=self.timeout_seconds
        )
        return self._client


def managers_for(
    manager: str | None,
    shared: str | os.PathLike[str] | None,
    trust: Trust,
    *,
    timeout_seconds: float = CALL_SECONDS,
) -> Managers:
    """Return the managers that the user's options mean: an address, and a path or bucket's URL."""
    address = parse_address(manager, field="manager") if manager else None
    seen = seen_location(shared) if shared is not None else None
    last = None
    if seen is None and address is None:
        here = Path() if leader_of(SharedDirectory(Path())) else Path(DEFAULT_SHARED)
        seen = SharedDirectory(here)
        # A directory belongs to one cluster, even if its manager has ended or has yet to begin.
        last = None if here.exists() else parse_address(DEFAULT_MANAGER)
    return Managers(seen, address, trust, last=last, timeout_seconds=timeout_seconds)


log = logging.getLogger(__name__)


def manager_may_come(error: BaseException) -> bool:
    """Whether a call failed because no manager serves yet, or none any more."""
    busy = isinstance(error, errors.Refused) and error.busy
    return busy or isinstance(error, errors.DeadlineExceeded | errors.Unreachable)


_MISSING_OR_AWAY = {errno.ENOENT, errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.ETIMEDOUT}
"""Errors of a file that a manager has yet to create, or whose mount does not answer now."""


def files_may_come(error: BaseException) -> bool:
    """Whether the folder or its token is missing or away; a manager creates both at its start."""
    of_token = isinstance(error, errors.SpecError) and error.field == "token_file"
    of_a_file = isinstance(error, errors.SharedDirectoryError) or of_token
    cause = error.__context__
    return of_a_file and isinstance(cause, OSError) and cause.errno in _MISSING_OR_AWAY


def awaiting(
    seconds: float,
    between: Callable[[], object] = lambda: None,
    *,
    when: Callable[[BaseException], bool] = manager_may_come,
) -> tenacity.Retrying:
    """Return a retrying caller; after these `seconds` (0: one try), it raises the last error.

    `between` is called before each further try; it may turn to another manager, or raise. `when`
    says whether a call that failed with an error may succeed later.
    """

    def before_sleep(state: tenacity.RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            log.warning("%s; waiting for up to %.0f s", state.outcome.exception(), seconds)
        between()

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(when),
        # Random, so that workers that wait for one manager do not all call it at the same moments.
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1),
        stop=tenacity.stop_after_delay(seconds),
        before_sleep=before_sleep,
        reraise=True,
    )
