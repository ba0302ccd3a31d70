"""Who leads a shared directory, and who has led it: one small file per term."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from downpour.base.errors import StoreError
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import read_regular
from downpour.files.store.os_errors import reading
from downpour.files.store.shared_directory import SharedDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The manager of a term: its addresses and its process; the manager of the highest term leads.

    `cluster` is the same for all managers of a directory; earlier versions had none. `home` is the
    folder for a bucket on the manager's machine, with the lock that the manager holds.
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
        fields = json.loads(content)
        return Leader(
            term=term,
            addresses=tuple(map(str, fields["addresses"])),
            hostname=str(fields["hostname"]),
            pid=int(fields["pid"]),
            cluster=str(fields.get("cluster", "")),
            home=str(fields.get("home", "")),
        )
    except (ValueError, OverflowError, KeyError, TypeError, RecursionError):
        return None


def cluster_of(terms: Path) -> str:
    """Return the identity of the cluster; empty if no term has one."""
    # The latest readable file suffices, because all of them hold the same identity.
    for term in range(highest_term(terms), 0, -1):
        with suppress(StoreError, ValueError, KeyError, TypeError, RecursionError):
            return str(json.loads(read_regular(terms / term_name(term)))["cluster"])
    return ""


def highest_term(terms: Path) -> int:
    """Return the number of the highest term; 0 if there is none.

    Raises:
        SharedDirectoryError: the folder cannot be read.
    """
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
