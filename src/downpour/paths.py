"""A path as a user gives it → a `Path`, or a refusal; no file is opened, for speed."""

from __future__ import annotations

import os
from pathlib import Path

from downpour.errors import SpecError

_NAME_BYTES_MAX = 255
_PATH_BYTES_MAX = 4095  # Linux's PATH_MAX, less the byte that ends it

_FILE = "file://"
_OBJECTS = ("s3://", "gs://", "az://")


def path_of(field: str, given: object) -> Path:
    """Return a path, with `~` expanded.

    Raises:
        SpecError: it is empty, not a path, of an unknown user, or longer than the system allows.
    """
    if not isinstance(given, str | os.PathLike):
        raise SpecError(field, given, "must be a path, as text or a Path")
    text = os.fspath(given)
    if not isinstance(text, str) or not text or "\0" in text:
        raise SpecError(field, text, "must be a path; '.' is the current folder")
    if text.startswith(_OBJECTS):
        accepted = "must be a folder here; an object store is for manager, worker and clients"
        raise SpecError(field, text, accepted)
    if text.startswith(_FILE) and not text.startswith(f"{_FILE}/"):
        raise SpecError(field, text, "must be a path; one in a URL begins with file:///")
    text = text.removeprefix(_FILE)
    try:
        path = Path(text).expanduser()
        longest = max(len(os.fsencode(part)) for part in (*path.parts, ""))
        whole = len(os.fsencode(path))
    except (RuntimeError, UnicodeError):
        raise SpecError(
            field, text, "must be a path: no such user, or no such characters"
        ) from None
    if longest > _NAME_BYTES_MAX or whole > _PATH_BYTES_MAX:
        most = f"{_PATH_BYTES_MAX} bytes, and {_NAME_BYTES_MAX} between two slashes"
        raise SpecError(field, text, f"must be a path of at most {most}")
    return path


def empty_folder(field: str, folder: Path) -> Path:
    """Return a folder that holds nothing, made if it is missing.

    Raises:
        SpecError: it holds something, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SpecError(field, str(folder), "is not empty, and nothing is overwritten")
    except OSError as error:
        raise SpecError(field, str(folder), f"cannot be written: {error.strerror}") from None
    return folder
