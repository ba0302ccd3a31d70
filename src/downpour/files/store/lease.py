"""The right to manage a shared directory, which only one manager has at a time.

It consists of a lock, which ends with its holder, and of a *term*, begun by creating the file
`terms/N` (docs/internals/architecture.md, "One manager at a time" and "Recovery").

In a bucket, the terms are objects, and the lock works only within one machine. Between machines,
the leader's pulse takes its place.
"""

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread

import msgspec
from filelock import Timeout

from downpour.base.errors import FileMissing, SharedDirectoryError, StoreError
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import read_regular
from downpour.files.store.publish import RetryPolicy, explain, publish, reading
from downpour.files.store.shared_directory import MANAGER_LOCK_NAME, SharedDirectory, give_back
from downpour.host.paths import FolderLock

PULSES = "pulses"
BEAT_SECONDS = 2.0
DEAD_SECONDS = 10.0
"""Four beats may get lost, for instance in a slow store, before a successor takes over."""
_LAST = b"ended"


class Pulse:
    """Beats from `start` to `stop`, in a separate thread.

    The leader replaces an object (docs/internals/decisions.md, "An object store needs one
    condition"). A leader that only stood still finds the later term when it looks: `leads` says
    whether no later term has begun, and raises StoreError if it cannot find out.
    """

    def __init__(self, bucket: Bucket, term: int, leads: Callable[[], bool]) -> None:
        self._bucket = bucket
        self._key = f"{PULSES}/{term:06d}"
        self._leads = leads
        self._ended = Event()
        self._seen_leading = float("-inf")
        self._thread = Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin with a beat."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Say that the manager has ended, so that a successor need not wait; best effort."""
        self._ended.set()
        self._thread.join()
        try:
            self._bucket.put(self._key, _LAST)
        except StoreError as error:
            log.debug("the last beat failed: %s", error)

    @property
    def is_fresh(self) -> bool:
        """Whether no successor can have begun, because the manager still led moments ago."""
        return time.monotonic() - self._seen_leading < DEAD_SECONDS / 2

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._beat()
            except StoreError as error:
                log.debug("a beat failed: %s", error)

    def _beat(self) -> None:
        # We take the time before the request, which may last: a successor counts from its end at
        # most.
        began = time.monotonic()
        self._bucket.put(self._key, secrets.token_bytes(8))
        if self._leads():
            self._seen_leading = began


class Watch:
    """Looks at a manager's pulse from another machine, by that machine's own clock."""

    def __init__(
        self, bucket: Bucket, term: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.term = term
        self._bucket = bucket
        self._clock = clock
        self._beat: bytes | None = None
        self._changed_at = clock()
        self.seen_alive = False

    def is_dead(self) -> bool:
        """Look once; return whether the manager has ended or has been silent for too long."""
        now, beat = self._clock(), self._look()
        if beat == _LAST:
            return True
        if beat != self._beat:
            self.seen_alive = self.seen_alive or self._beat is not None
            self._beat, self._changed_at = beat, now
        return now - self._changed_at >= DEAD_SECONDS

    def _look(self) -> bytes:
        try:
            return self._bucket.get(f"{PULSES}/{self.term:06d}")
        except FileMissing:
            return b""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The manager of a term: its addresses and its process; the manager of the highest term leads.

    `cluster` is the same for all managers of a directory. `home` is the folder for a bucket on the
    manager's machine, with the lock that the manager holds.
    """

    term: int
    addresses: tuple[str, ...]
    hostname: str
    pid: int
    cluster: str = ""
    home: str = ""


def leader_of(shared: SharedDirectory) -> Leader | None:
    """Return the manager that leads, as any machine sees it; None as in `current_leader`."""
    bucket = shared.bucket
    if bucket is None:
        return current_leader(shared.terms)
    try:
        return _leader_in(bucket, shared.terms.name)
    except StoreError:
        return None


def _leader_in(bucket: Bucket, folder: str) -> Leader | None:
    """Return the manager that leads in a bucket; raises StoreError if we cannot read it."""
    term = highest_number(bucket.names(folder))
    return leader_in(term, bucket.get(f"{folder}/{term_name(term)}")) if term else None


def current_leader(terms: Path) -> Leader | None:
    """Return the manager of the highest term; None without one, or if we cannot read it."""
    try:
        term = highest_term(terms)
        return leader_in(term, read_regular(terms / term_name(term)))
    except StoreError:
        return None


def leader_in(term: int, content: bytes) -> Leader | None:
    """Read who led in a term."""
    try:
        return replace(msgspec.json.decode(content, type=Leader), term=term)
    except (ValueError, RecursionError):
        return None


def cluster_of(terms: Path) -> str:
    """Return the identity of the cluster; empty if no term has one."""
    # The latest readable file suffices, because all of them hold the same identity.
    for term in range(highest_term(terms), 0, -1):
        with suppress(StoreError):
            leader = leader_in(term, read_regular(terms / term_name(term)))
            if leader is not None and leader.cluster:
                return leader.cluster
    return ""


def highest_term(terms: Path) -> int:
    """Return the number of the highest term; 0 if there is none."""
    with reading(terms.parent):
        try:
            names = os.listdir(terms)  # noqa: PTH208 - the names alone are wanted
        except FileNotFoundError:
            return 0
    return highest_number(names)


def highest_number(names: Iterable[str]) -> int:
    """Return the highest term among names of files; 0 if there is none."""
    return max((int(name) for name in names if name.isdecimal()), default=0)


def term_name(term: int) -> str:
    """Return the name of a term's file."""
    return f"{term:06d}"


def taken(holder: Leader | None) -> str:
    """Say that the shared directory has a manager."""
    where = f"at {', '.join(holder.addresses)}" if holder else ""
    who = f" ({holder.hostname}, process {holder.pid}, {where})" if holder else ""
    return f"another manager serves this directory{who}; --successor waits until it is gone"


_LOOK_SECONDS = 0.5
"""The pause between a successor's tries to get the lock: part of the time without a manager."""


class Lease:
    """The right to manage, held from `acquire` to `release`."""

    def __init__(self, shared: SharedDirectory) -> None:
        self._terms = shared.terms
        self._bucket = shared.bucket
        root = str(shared.root).encode(errors="backslashreplace").decode()  # JSON has no bytes
        self._home = root if shared.bucket is not None else ""
        self._pulse: Pulse | None = None
        self.root = shared.root
        # Otherwise only the thread that took the lock would know it, but another may close the
        # manager.
        self._lock = FolderLock(shared.root / MANAGER_LOCK_NAME, thread_local=False)
        self.term = 0

    def acquire(self, *, wait: bool, while_waiting: Callable[[Leader | None], None]) -> None:
        """Acquire the lock; in a bucket, also outlive the managers of other machines.

        Args:
            wait: whether to wait until no other manager has it.
            while_waiting: called once before waiting, with the leader if it is known.
        """
        self._lock_here(wait=wait, while_waiting=while_waiting)
        if self._bucket is not None:
            try:
                self._outlive(self._bucket, wait=wait, while_waiting=while_waiting)
            except BaseException:
                self._lock.release()
                raise

    def _lock_here(self, *, wait: bool, while_waiting: Callable[[Leader | None], None]) -> None:
        try:
            self._lock.acquire_soon()  # a page or a command may look whether a manager holds it
        except Timeout:
            holder = current_leader(self._terms)
            if not wait:
                raise SharedDirectoryError(self.root, taken(holder)) from None
            while_waiting(holder)
            self._wait()
        except OSError as error:
            raise SharedDirectoryError(self.root, f"cannot be locked ({explain(error)})") from None

    def _wait(self) -> None:
        """Wait for the lock; if the directory is away meanwhile, only the holder needs to act."""
        while not self._lock.is_locked:
            try:
                self._lock.acquire(poll_interval=_LOOK_SECONDS)
            except OSError as error:
                log.info("cannot check the lock: %s", explain(error))
                time.sleep(_LOOK_SECONDS)

    def _outlive(
        self, bucket: Bucket, *, wait: bool, while_waiting: Callable[[Leader | None], None]
    ) -> None:
        """Return once the bucket's leader is dead; a leader from this machine is dead already."""
        watch, is_said = None, False
        while (leader := self._leader_elsewhere(bucket, wait=wait)) is not None:
            if watch is None or watch.term != leader.term:
                watch = Watch(bucket, leader.term)
                log.info("looking for a sign of life of the manager on %s", leader.hostname)
            try:
                if watch.is_dead():
                    return
            except StoreError:
                if not wait:
                    raise
            if watch.seen_alive and not wait:
                raise SharedDirectoryError(bucket.url, taken(leader))
            if wait and not is_said:
                while_waiting(leader)
                is_said = True
            time.sleep(_LOOK_SECONDS)

    def _leader_elsewhere(self, bucket: Bucket, *, wait: bool) -> Leader | None:
        """Return the leader if it is not on this machine; with `wait`, sit out any outage."""
        while True:
            try:
                leader = _leader_in(bucket, self._terms.name)
            except StoreError as error:
                if not wait:
                    raise
                log.info("cannot look up the leader: %s", error)
                time.sleep(_LOOK_SECONDS)
                continue
            # We compare the machine as well, because a copy of its folder has the same path
            # elsewhere.
            here = (socket.gethostname(), self._home)
            return None if leader and (leader.hostname, leader.home) == here else leader

    def claim(self, *addresses: str) -> Leader:
        """Begin a new term, as a manager that serves at these addresses."""
        made_up = secrets.token_hex(8)
        try:
            self._terms.mkdir(exist_ok=True)
        except OSError as error:
            raise SharedDirectoryError(self.root, explain(error)) from error
        while True:
            self.term = self._highest_term() + 1
            leader = Leader(
                term=self.term,
                addresses=addresses,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                # We look it up at each try: the manager that was first may have made one up.
                cluster=self._cluster() or made_up,
                home=self._home,
            )
            try:
                self._publish(term_name(self.term), json.dumps(asdict(leader)).encode())
            except SharedDirectoryError:
                raise
            except StoreError:
                # The name is taken: another manager began this term first, so we try the next one.
                # If there is no such term, the error has another cause.
                if self._highest_term() < self.term:
                    raise
            else:
                if self._bucket is not None:
                    self._pulse = Pulse(self._bucket, self.term, self._is_highest)
                    self._pulse.start()
                return leader

    def _publish(self, name: str, content: bytes) -> None:
        if self._bucket is not None:
            # The bucket comes first, because it decides between managers on several machines.
            self._bucket.put_new(f"{self._terms.name}/{name}", content)
        publish(self._terms, name, [content])

    def _highest_term(self) -> int:
        """Return the highest term that any machine knows of; 0 if there is none."""
        known = self._bucket.names(self._terms.name) if self._bucket is not None else []
        return max(highest_number(known), highest_term(self._terms))

    def _cluster(self) -> str:
        """Return the identity of the cluster; empty before the first manager."""
        leader = _leader_in(self._bucket, self._terms.name) if self._bucket is not None else None
        return leader.cluster if leader is not None else cluster_of(self._terms)

    @property
    def is_leader(self) -> bool:
        """Whether no later term exists; true if we cannot list the directory."""
        # An outage is no evidence of a successor; if it lasts, it ends the manager elsewhere.
        try:
            return self.leads()
        except SharedDirectoryError:
            return True

    def check(self, retry_policy: RetryPolicy) -> None:
        """Raise SharedDirectoryError if a later term exists; wait through an outage."""
        if not retry_policy.call_through_outage(self.leads):
            raise self.replaced()

    def replaced(self) -> SharedDirectoryError:
        """Return the error of a manager after whose term another one began."""
        return SharedDirectoryError(self.root, "another manager has taken over; this one stops")

    def leads(self) -> bool:
        """Return whether no later term exists."""
        if self._pulse is not None and self._pulse.is_fresh:
            return True
        return self._is_highest()

    def _is_highest(self) -> bool:
        return self._highest_term() <= self.term

    def release(self) -> None:
        """Release the lock; if the directory is away, the lock ends with this process."""
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None
        give_back(self._lock)
