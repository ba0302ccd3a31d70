"""Copies a user's data from an object store to files of this machine.

A URL names one object, or a folder of them. We keep the copies below `DOWNPOUR_LOCAL`, and replace
one only when the store's entity tag or size has changed. So Downpour notices a changed object, and
workers of one machine fetch together. A file's time of change is that of its object.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from downpour.base.errors import SpecError, StoreError
from downpour.files.store.bucket import Bucket, Found
from downpour.files.store.location import folder_of
from downpour.files.store.publish import TEMPORARY_PREFIX
from downpour.host.extras import require
from downpour.host.folder_lock import FolderLock
from downpour.host.paths import checked_url, is_object_store, path_of

_FETCHES = 16
_TAGS = ".tags.json"


def local_path(field: str, given: str | os.PathLike[str]) -> Path:
    """Return a path as it is, or the file or folder that was fetched from an object store's URL.

    Raises:
        SpecError: nothing is there, or it cannot be fetched; names `field`.
        MissingPackage: the URL needs a library that is not installed.
    """
    if not is_object_store(given):
        return path_of(field, given) if str(given).startswith("file://") else Path(given)
    bucket, name = _place(field, str(given))
    folder = folder_of(bucket.url) / "data"
    with _naming(field, str(given)):
        _fetch(bucket, _found(field, str(given)), folder)
    return folder / name


def check_there(field: str, url: str) -> None:
    """Raise SpecError if a URL names no object and no folder; nothing is fetched."""
    with _naming(field, url):
        _found(field, url)


def _place(field: str, url: str) -> tuple[Bucket, str]:
    """Return the bucket that holds what a URL names, and its name there."""
    require(f"{field} = '{url}'", "objects")
    parent, _, name = checked_url(field, url).rpartition("/")
    if parent.endswith("/"):  # of the two behind the scheme
        raise SpecError(field, url, "must name an object or a folder in the bucket")
    return Bucket.at(parent), name


def _found(field: str, url: str) -> list[Found]:
    """Return the one object that a URL names, or all below it."""
    bucket, name = _place(field, url)
    found = [one for one in bucket.found(name) if _is_file(one.key)]
    # A folder may have an object of its name beside it in a store, and cannot on a disk.
    single = [one for one in found if one.key == name]
    if not found:
        raise SpecError(field, url, "no such object or folder")
    return single or found


@contextmanager
def _naming(field: str, url: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise SpecError(field, url, f"cannot be fetched: {error}") from None
    except OSError as error:
        raise SpecError(field, url, f"cannot be kept here: {error.strerror or error}") from None


def _is_file(key: str) -> bool:
    # Some programs make empty objects that end in a slash, for folders.
    return not key.endswith("/") and all(part not in {"", ".", ".."} for part in key.split("/"))


def _fetch(bucket: Bucket, found: list[Found], folder: Path) -> None:
    """Have these objects as files, and of their folder nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    top = found[0].key.partition("/")[0]
    with FolderLock(folder / f".{top}.lock"):
        tags_file = folder / f".{top}{_TAGS}"
        known = _read_tags(tags_file)
        missing = [one for one in found if known.get(one.key) != one.tag]
        missing += [one for one in found if one not in missing and not (folder / one.key).is_file()]
        with ThreadPoolExecutor(_FETCHES) as fetching:
            for _ in fetching.map(lambda one: _fetch_one(bucket, one, folder), missing):
                pass
        for key in known.keys() - {one.key for one in found}:
            with suppress(OSError):
                (folder / key).unlink()
                # An object store has no empty folders, which would count as classes here.
                for parent in (folder / key).relative_to(folder).parents[:-1]:
                    (folder / parent).rmdir()
        tags_file.write_text(json.dumps({one.key: one.tag for one in found}), encoding="utf-8")


def _fetch_one(bucket: Bucket, one: Found, folder: Path) -> None:
    path = folder / one.key
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        bucket.fetch(one.key, part)
        os.utime(part, (one.changed_seconds, one.changed_seconds))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _read_tags(file: Path) -> dict[str, str]:
    try:
        return {str(key): str(tag) for key, tag in json.loads(file.read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}
