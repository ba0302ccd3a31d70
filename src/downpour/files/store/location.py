"""The location of a shared directory: a folder's path, or an object store's URL.

For a URL, each machine has its own folder (`DOWNPOUR_LOCAL`) for fetched files. The manager's
folder also has files that no other process reads: journals, records, locks. Journals and records
are in the bucket as well (`files/records/mirror.py`), so a manager may start on any machine.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from downpour.base.errors import FileMissing, SharedDirectoryError, StoreError
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import read_regular
from downpour.files.store.shared_directory import SharedDirectory
from downpour.host.paths import is_object_store, path_of

LOCAL_VARIABLE = "DOWNPOUR_LOCAL"
LOCAL_DEFAULT = "~/.local/share/downpour"

FORMER_HOME = "manager.json"
"""Named the machine with the journals, in a version that kept them only there."""


def open_location(location: str, *, create: bool) -> SharedDirectory:
    """Return the shared directory at a path or URL, after proving that it is writable.

    Args:
        location: a folder's path, or an object store's URL.
        create: whether it is for a manager, which creates a missing folder.

    Raises:
        SharedDirectoryError: it cannot be used; states the reason.
        SpecError: the URL is invalid.
        MissingPackage: the URL needs a library that is not installed.
    """
    if not is_object_store(location):
        return SharedDirectory.open(path_of("shared", location), create=create)
    shared = seen_location(location)
    if shared.bucket is None:
        return shared
    shared.bucket.check_conditions()
    # Create this machine's own folder, because no other code does.
    local = SharedDirectory.open(shared.root, create=True)
    if create:
        _check_journals(local.root, shared.bucket)
    return shared


def seen_location(location: str | os.PathLike[str]) -> SharedDirectory:
    """Return the shared directory at a path or URL, without looking or creating anything."""
    if not (isinstance(location, str) and is_object_store(location)):
        return SharedDirectory(path_of("shared", location))
    bucket = Bucket.at(location)
    return replace(SharedDirectory(folder_of(bucket.url)), bucket=bucket)


def own_folder() -> Path:
    """Return this machine's folder for copies of shared files; it may not exist yet."""
    return path_of(LOCAL_VARIABLE, os.environ.get(LOCAL_VARIABLE) or LOCAL_DEFAULT).absolute()


def folder_of(url: str) -> Path:
    """Return this machine's own folder for an object store's URL, whether it exists or not."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", url)[:64].strip("-")
    return own_folder() / f"{readable}-{sha256(url.encode()).hexdigest()[:8]}"


def _check_journals(root: Path, bucket: Bucket) -> None:
    """Refuse to manage a place whose journals only another machine has."""
    try:
        known = bucket.get(FORMER_HOME)
    except FileMissing:
        return
    try:
        mine = read_regular(root / FORMER_HOME)
    except StoreError:
        mine = b""
    if known != mine:
        reason = (
            f"an earlier version left its journals on {_where(known)}; start the manager there once"
        )
        raise SharedDirectoryError(bucket.url, reason)


def _where(content: bytes) -> str:
    try:
        about = json.loads(content)
        return f"{about['hostname']}:{about['folder']}"
    except (ValueError, KeyError, TypeError):
        return f"another machine (its {FORMER_HOME} cannot be read)"
