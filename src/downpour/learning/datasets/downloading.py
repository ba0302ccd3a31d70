"""Finds a well-known dataset's folder: in the data folder, in the cache, or by a download.

A download goes to its own folder under a lock and is renamed into the cache when it is whole, so
that no process reads half of one. If it fails, or the server stops sending, one line says what
to do without a network.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.request import BaseHandler, Request, build_opener, install_opener

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.files.store.directory import names_in
from downpour.files.store.os_errors import writing
from downpour.host.folder_lock import FolderLock

SILENT_SECONDS = 60.0
"""How long a server may send nothing before the download fails."""

Present = Callable[[Path], list[Path] | None]


def found_or_downloaded(
    spec: Spec,
    folder: str,
    places: tuple[Path | None, Path],
    present: Present,
    fetch: Callable[[Path], object],
) -> list[Path]:
    """Return a dataset's files.

    Args:
        spec: names the dataset.
        folder: the name of the folder that holds the files, in either place.
        places: the data folder, if there is one, and the cache that a download goes to.
        present: returns the files under a place's folder, or None if one is missing.
        fetch: downloads into a place, with torchvision.

    Raises:
        SpecError: the files are in neither place and cannot be downloaded; says what would help.
        SharedDirectoryError: the cache cannot be written.
    """
    data_dir, downloads = places
    files = (present(data_dir / folder) if data_dir else None) or present(downloads / folder)
    if files:
        return files
    with writing(downloads, folder):
        downloads.mkdir(exist_ok=True)
        lock = FolderLock(downloads / f".{folder}.lock").acquire()
    with lock:
        # An NFS client caches that a file was missing until it lists the folder.
        names_in(downloads)
        reason = "" if present(downloads / folder) else _downloaded(folder, downloads, fetch)
    files = present(downloads / folder)
    if files is None:
        raise SpecError(
            "dataset",
            spec.dataset,
            f"its files are missing, and torchvision could not download them ({reason}); "
            f"--data-dir or DOWNPOUR_DATA must name a folder that holds {folder}/",
        )
    return files


def _downloaded(folder: str, downloads: Path, fetch: Callable[[Path], object]) -> str:
    """Download; return the reason of a failure, or what to say if the files are incomplete."""
    partial = downloads / f".{folder}.partial"
    # For the whole process: torchvision calls `urlopen`, and takes neither opener nor timeout.
    install_opener(build_opener(_Deadlines()))
    try:
        fetch(partial)
        shutil.rmtree(downloads / folder, ignore_errors=True)
        (partial / folder).rename(downloads / folder)
    except (ImportError, OSError, RuntimeError) as error:
        return _reason(error)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return "its contents are wrong"


def _reason(error: Exception) -> str:
    """Return its first line, with those after it where it only announces them, as MNIST's does."""
    lines = str(error).splitlines() or [type(error).__name__]
    return " ".join(lines) if lines[0].endswith(":") else lines[0]


class _Deadlines(BaseHandler):
    """Sets a timeout for requests without one: torchvision's would wait forever."""

    def http_request(self, request: Request) -> Request:
        """Set the timeout; urllib calls this before each request."""
        if not isinstance(request.timeout, int | float):
            request.timeout = SILENT_SECONDS
        return request

    https_request = http_request
