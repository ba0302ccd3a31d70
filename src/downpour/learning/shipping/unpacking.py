"""Unpacks each bundle once per machine, into a folder that its SHA-256 names.

A folder appears whole or not at all. We verify it before each use, because a person may have edited
it, and replace an edited one. A folder without use for a month is removed. If a process cannot
write to the machine's own folder, as in some containers, it has a temporary one.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from downpour.files.store.location import own_folder
from downpour.host.disuse import note_use, remove_unused
from downpour.host.folder_lock import FolderLock
from downpour.learning.shipping.bundle import BYTES_MAX, BadBundle, Bundle

log = logging.getLogger(__name__)


def unpacked_folder(
    digest: str, read: Callable[[], Bundle], check: Callable[[Bundle], None]
) -> Path:
    """Return this machine's folder with the files of a bundle, which is read if it must be.

    Exceptions of `read` and `check` are passed on.

    Args:
        digest: the bundle's SHA-256.
        read: returns the bundle.
        check: refuses one that must not be used here; it is asked each time.

    Raises:
        OSError: no folder can be written.
    """
    own = own_folder() / "code"
    try:
        return _unpacked(own, digest, read, check)
    except OSError as error:
        log.warning("no copy of the code in %s: %s", own, error.strerror or error)
    return _unpacked(_temporary(), digest, read, check)


@cache
def _temporary() -> Path:
    """Return a folder of this process, which is removed when the process ends."""
    folder = Path(mkdtemp(prefix="downpour-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _unpacked(
    place: Path, digest: str, read: Callable[[], Bundle], check: Callable[[Bundle], None]
) -> Path:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = place / digest
    with FolderLock(place / f".{digest}.lock"):
        there = _held(folder)
        bundle = there if there is not None and there.digest == digest else read()
        check(bundle)
        if bundle is there:
            note_use(folder)
        else:
            remove_unused(path for path in place.iterdir() if path != folder)
            _write(bundle, folder)
    return folder


def _held(folder: Path) -> Bundle | None:
    """Return the bundle of all modules in a folder; None if it has none, or others."""
    try:
        return Bundle.of(dict(_modules(folder)))
    except (OSError, BadBundle):
        return None


def _modules(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a folder's modules by path; a link is none, and stays unread."""
    left = BYTES_MAX
    for at, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(at, name)
            if path.is_symlink():
                raise BadBundle(f"{name} is a link")
            if name.endswith(".py") and name in names:
                left -= path.stat().st_size
                if left < 0:
                    raise BadBundle(f"{name} is too long")
                yield path.relative_to(folder).as_posix(), path.read_bytes()


def _write(bundle: Bundle, folder: Path) -> None:
    part = Path(mkdtemp(prefix=".", suffix=".partial", dir=folder.parent))
    try:
        for name, content in bundle.files.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
