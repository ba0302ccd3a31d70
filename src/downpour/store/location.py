"""Where a shared directory is: a folder's path, or an object store's URL.

Of a URL each machine has a folder of its own (`DOWNPOUR_LOCAL`), with what it has fetched. The
manager's also has what no other process reads: journals, records, locks. So managers of one place
take over from each other on one machine, which the object `manager.json` names from the first one
on; any other machine is refused before it serves.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from downpour.errors import SharedDirectoryError, StoreError
from downpour.paths import is_object_store, path_of
from downpour.store.bucket import Bucket, KeyTakenError
from downpour.store.directory import read_regular
from downpour.store.layout import SharedDirectory
from downpour.store.publish import publish

LOCAL_VARIABLE = "DOWNPOUR_LOCAL"
LOCAL_DEFAULT = "~/.local/share/downpour"

_HOME = "manager.json"


def open_location(location: str, *, create: bool) -> SharedDirectory:
    """Return the shared directory at a path or URL, proven to be writable.

    Args:
        location: a folder's path, or an object store's URL.
        create: whether it is for a manager: a folder is made if it is missing, and a URL becomes
            this machine's to manage.

    Raises:
        SharedDirectoryError: it cannot be used, or another machine manages it; states the reason.
        SpecError: the URL is invalid.
        MissingPackage: the URL needs a library that is not installed.
    """
    if not is_object_store(location):
        return SharedDirectory.open(path_of("shared", location), create=create)
    shared = seen_location(location)
    if shared.bucket is None:
        return shared
    shared.bucket.check_conditions()
    # Its own folder, which nothing else would make.
    local = SharedDirectory.open(shared.root, create=True)
    if create:
        _claim(local.root, shared.bucket)
    return shared


def seen_location(location: str | os.PathLike[str]) -> SharedDirectory:
    """Return the shared directory at a path or URL; nothing is looked at, and nothing is made."""
    if not (isinstance(location, str) and is_object_store(location)):
        return SharedDirectory(path_of("shared", location))
    bucket = Bucket.at(location)
    return replace(SharedDirectory(_folder_of(bucket.url)), bucket=bucket)


def _folder_of(url: str) -> Path:
    local = path_of(LOCAL_VARIABLE, os.environ.get(LOCAL_VARIABLE) or LOCAL_DEFAULT)
    readable = re.sub(r"[^A-Za-z0-9]+", "-", url)[:64].strip("-")
    return local.absolute() / f"{readable}-{sha256(url.encode()).hexdigest()[:8]}"


def _claim(root: Path, bucket: Bucket) -> None:
    """Refuse to manage a place whose journals are on another machine."""
    with suppress(StoreError):  # which says that there is one already
        publish(root, _HOME, [_described(root)])
    mine = read_regular(root / _HOME)
    try:
        bucket.put_new(_HOME, mine)
    except KeyTakenError:
        known = bucket.get(_HOME)
        if known != mine:
            where = _where(known)
            reason = f"is managed from {where}, where its journals are; start the manager there"
            raise SharedDirectoryError(bucket.url, reason) from None


def _described(root: Path) -> bytes:
    # The identity travels with the folder: with a copy of it another machine may manage.
    about = {"hostname": socket.gethostname(), "folder": str(root), "id": secrets.token_hex(8)}
    return json.dumps(about).encode()


def _where(content: bytes) -> str:
    try:
        about = json.loads(content)
        return f"{about['hostname']}:{about['folder']}"
    except (ValueError, KeyError, TypeError):
        return f"another machine (its {_HOME} cannot be read)"
