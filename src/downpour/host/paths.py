"""Checks a user's path or URL, without opening any file, for speed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from downpour.base.errors import SpecError

_NAME_BYTES_MAX = 255
_PATH_BYTES_MAX = 4095  # Linux's PATH_MAX, minus the final byte

_FILE = "file://"
_SCHEMES = ("s3", "gs", "az")
_OF_STORES = tuple(f"{scheme}://" for scheme in _SCHEMES)
_PLACE = re.compile(r"([a-z0-9]+)://([^/?#\s]+)(?:/([^?#]*))?")


def path_of(field: str, given: object) -> Path:
    """Return a path, with `~` expanded.

    Raises:
        SpecError: it is empty, not a path, names an unknown user, or is too long for the system.
    """
    if not isinstance(given, str | os.PathLike):
        raise SpecError(field, given, "must be a path: a string or a Path")
    text = os.fspath(given)
    if not isinstance(text, str) or not text or "\0" in text:
        raise SpecError(field, text, "must be a path; '.' is the current folder")
    if is_object_store(text):
        accepted = (
            "must be a folder on this machine; only manager, worker and clients can use an "
            "object store"
        )
        raise SpecError(field, text, accepted)
    if text.startswith(_FILE) and not text.startswith(f"{_FILE}/"):
        raise SpecError(field, text, "must be a path; a file URL begins with file:///")
    text = text.removeprefix(_FILE)
    try:
        path = Path(text).expanduser()
        longest = max(len(os.fsencode(part)) for part in (*path.parts, ""))
        whole = len(os.fsencode(path))
    except (RuntimeError, UnicodeError):
        raise SpecError(
            field, text, "must be a path: the user or the characters do not exist"
        ) from None
    if longest > _NAME_BYTES_MAX or whole > _PATH_BYTES_MAX:
        most = f"{_PATH_BYTES_MAX} bytes, and {_NAME_BYTES_MAX} between two slashes"
        raise SpecError(field, text, f"must be a path of at most {most}")
    return path


def is_object_store(location: object) -> bool:
    """Whether a location is, or should be, an object store's URL."""
    return isinstance(location, str) and location.startswith(_OF_STORES)


def checked_url(field: str, url: str) -> str:
    """Return an object store's URL without slashes at its end.

    Raises:
        SpecError: it names no bucket, or has more than a bucket and a prefix.
    """
    found = _PLACE.fullmatch(url)
    parts = (found[3] or "").rstrip("/").split("/") if found else []
    if found is None or found[1] not in _SCHEMES or ("" in parts and parts != [""]):
        raise SpecError(
            field,
            url,
            f"must look like s3://BUCKET/PREFIX; known are {', '.join(_SCHEMES)}",
        )
    return url.rstrip("/")


def empty_folder(field: str, folder: Path) -> Path:
    """Return an empty folder; create it if it is missing.

    Raises:
        SpecError: it is not empty, or cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SpecError(field, str(folder), "is not empty, and Downpour never overwrites files")
    except OSError as error:
        raise SpecError(field, str(folder), f"cannot be written: {error.strerror}") from None
    return folder
