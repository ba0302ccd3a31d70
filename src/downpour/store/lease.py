"""The right to manage a shared directory, which one manager has at a time.

It is a lock that is held, so that it ends with its holder, and a *term* that is claimed by creating
the file `terms/N`, which fails where N is taken: a holder whose lock was lost without his knowledge
(a network file system forgets it when it has not heard of him for long) finds that there is a
higher term than his. The file says where the manager answers, so that workers find the one in
leader, and which *cluster* this is: the first manager makes an identity up, and each one after it
hands it on. What another cluster's managers wrote is known by that.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from downpour.errors import SharedDirectoryError, StoreError
from downpour.store.directory import read_regular
from downpour.store.layout import SharedDirectory
from downpour.store.os_errors import explain, reading
from downpour.store.publish import publish

log = logging.getLogger(__name__)

_LOCK = "manager.lock"
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who manages, or did: the term, where it may answer, and which process that is.

    The `cluster` is the same for all managers of a directory; earlier versions had none.
    """

    term: int
    addresses: tuple[str, ...]
    hostname: str
    pid: int
    cluster: str = ""


class Lease:
    """Held from `acquire` to `release`.

    Args:
        shared: the shared directory.
    """

    def __init__(self, shared: SharedDirectory) -> None:
        self._terms = shared.terms
        self.root = shared.root
        self._lock = FileLock(shared.root / _LOCK, thread_local=False)
        self.term = 0

    def acquire(self, *, wait: bool, while_waiting: Callable[[Leader | None], None]) -> None:
        """Become the one who holds it.

        Args:
            wait: whether to wait until nobody else holds it.
            while_waiting: called once before waiting, with who holds it.

        Raises:
            SharedDirectoryError: somebody holds it; or the folder cannot be locked.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            holder = current_leader(self._terms)
            if not wait:
                raise SharedDirectoryError(self.root, _taken(holder)) from None
            while_waiting(holder)
            self._wait()
        except OSError as error:
            raise SharedDirectoryError(self.root, f"cannot be locked ({explain(error)})") from None

    def _wait(self) -> None:
        """Return with the lock; a directory that is away meanwhile is the holder's affair."""
        while not self._lock.is_locked:
            try:
                self._lock.acquire(poll_interval=_LOOK_SECONDS)
            except OSError as error:
                log.info("the lock cannot be looked at: %s", explain(error))
                time.sleep(_LOOK_SECONDS)

    def claim(self, *addresses: str) -> Leader:
        """Begin a term of one's own, as the manager who answers there.

        Raises:
            SharedDirectoryError: it cannot be written.
        """
        made_up = secrets.token_hex(8)
        try:
            self._terms.mkdir(exist_ok=True)
        except OSError as error:
            raise SharedDirectoryError(self.root, explain(error)) from error
        while True:
            self.term = highest_term(self._terms) + 1
            leader = Leader(
                term=self.term,
                addresses=addresses,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                cluster=cluster_of(self._terms) or made_up,
            )
            try:
                publish(self._terms, _name(self.term), [json.dumps(asdict(leader)).encode()])
            except SharedDirectoryError:
                raise
            except StoreError:
                if highest_term(self._terms) < self.term:
                    raise
            else:
                return leader

    @property
    def is_leader(self) -> bool:
        """Whether nobody has begun a later term; where that cannot be seen, it is assumed."""
        try:
            return highest_term(self._terms) <= self.term
        except SharedDirectoryError:
            return True

    def release(self) -> None:
        """Let somebody else have it; where the directory is away, it ends with this process."""
        with suppress(OSError):
            self._lock.release()


def current_leader(terms: Path) -> Leader | None:
    """Return who manages, or did last; None where nobody ever has, or the file cannot be read."""
    try:
        term = highest_term(terms)
        told = json.loads(read_regular(terms / _name(term)))
        return Leader(
            term=term,
            addresses=tuple(map(str, told["addresses"])),
            hostname=str(told["hostname"]),
            pid=int(told["pid"]),
            cluster=str(told.get("cluster", "")),
        )
    except (StoreError, ValueError, KeyError, TypeError):
        return None


def cluster_of(terms: Path) -> str:
    """Return the identity that the latest manager handed on; empty where none has any.

    A file that cannot be read or is damaged is passed over: those before it say the same.
    """
    for term in range(highest_term(terms), 0, -1):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((terms / _name(term)).read_bytes())["cluster"])
    return ""


def highest_term(terms: Path) -> int:
    """Return the number of the latest term; 0 where there was none.

    Raises:
        SharedDirectoryError: the folder cannot be read.
    """
    with reading(terms.parent):
        try:
            names = os.listdir(terms)  # noqa: PTH208 - the names alone are wanted
        except FileNotFoundError:
            return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _name(term: int) -> str:
    return f"{term:06d}"


def _taken(holder: Leader | None) -> str:
    where = f"at {', '.join(holder.addresses)}" if holder else ""
    who = f" ({holder.hostname}, process {holder.pid}, {where})" if holder else ""
    return f"another manager serves here{who}; --successor waits until it is gone"
