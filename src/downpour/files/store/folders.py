"""Prepared datasets in an object store: the manager sends them, each machine fetches them once.

On a machine they are folders, as in any shared directory, so readers map them and check every
checksum. We send `facts.json` last: if a folder in the object store has it, the folder is whole.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from downpour.base.errors import FileMissing, SharedDirectoryError
from downpour.files.store.base import check_bare_name
from downpour.files.store.bucket import Bucket, KeyTakenError
from downpour.files.store.directory import names_in
from downpour.files.store.os_errors import explain
from downpour.files.store.publish import TEMPORARY_PREFIX
from downpour.files.store.shared_directory import SharedDirectory

_LAST = "facts.json"


def send_dataset(shared: SharedDirectory, key: str) -> None:
    """Send a prepared dataset to the object store, unless it is there.

    Raises:
        SharedDirectoryError: the object store does not take it.
    """
    if shared.bucket is None:
        return
    folder, place = shared.datasets / key, _place(shared, key)
    there = set(shared.bucket.names(place))
    for name in sorted(names_in(folder), key=lambda name: (name == _LAST, name)):
        if name not in there:
            _send(shared.bucket, f"{place}/{name}", folder / name)


def is_sent(shared: SharedDirectory, key: str) -> bool:
    """Whether workers find a prepared dataset in the object store, if there is one.

    Raises:
        SharedDirectoryError: the object store cannot be used.
    """
    return shared.bucket is None or _LAST in shared.bucket.names(_place(shared, key))


def fetch_dataset(shared: SharedDirectory, key: str) -> None:
    """Fetch a prepared dataset to this machine if it is missing here.

    Raises:
        FileMissing: no dataset has this key.
        SharedDirectoryError: the object store, or this machine's folder for it, cannot be used.
    """
    if shared.bucket is None or (shared.datasets / check_bare_name(key) / _LAST).exists():
        return
    place = _place(shared, key)
    names = shared.bucket.names(place)
    if _LAST not in names:
        raise FileMissing(f"{key}/{_LAST}")
    part = shared.datasets / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        part.mkdir()
        for name in names:
            shared.bucket.fetch(f"{place}/{check_bare_name(name)}", part / name)
        _give_name(part, shared.datasets / key)
    except OSError as error:
        raise SharedDirectoryError(shared.datasets, explain(error)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _place(shared: SharedDirectory, key: str) -> str:
    return f"{shared.datasets.name}/{check_bare_name(key)}"


def _send(bucket: Bucket, key: str, file: Path) -> None:
    try:
        bucket.put_new(key, file)
    except KeyTakenError:
        return  # another experiment prepared it: the key determines all bytes


def _give_name(part: Path, folder: Path) -> None:
    try:
        part.rename(folder)
    except OSError:
        # Another process of this machine may have fetched it meanwhile.
        if not (folder / _LAST).exists():
            raise
