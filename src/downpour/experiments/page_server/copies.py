"""The source of a page: a local folder, or this machine's copy of a bucket's records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from downpour.experiments.page_server.place import ResultsPlace
from downpour.files.records.mirror import MirrorCopy
from downpour.files.store.location import seen_location
from downpour.host.paths import is_object_store, path_of

LOOK_SECONDS = 3.0
"""The time between two looks into a bucket, because each look is a request that costs money."""
Refresh = Callable[[str], None]
"""Called in a thread, with the ID of an experiment, or with "" for all experiments."""


@contextmanager
def opened(location: str) -> Iterator[tuple[ResultsPlace, Refresh]]:
    """Yield the place at a path or URL, and the function that updates it.

    Raises:
        SpecError: the folder does not exist, or the URL is invalid.
        SharedDirectoryError: the bucket cannot be used.
        MissingPackage: the URL needs a library that is not installed.
    """
    if not is_object_store(location):
        yield ResultsPlace.at(path_of("FOLDER", location)), lambda _: None
        return
    shared = seen_location(location)
    with TemporaryDirectory(prefix="downpour-") as folder:
        copies = _Copies(MirrorCopy(shared, Path(folder)))
        copies.refresh("")
        yield ResultsPlace.at(Path(folder)), copies.refresh


class _Copies:
    """Updates copies, but not too often; safe to share between threads."""

    def __init__(self, copy: MirrorCopy) -> None:
        self._copy = copy
        self._lock = Lock()
        self._looked: dict[str, float] = {}

    def refresh(self, experiment: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._looked.get(experiment, -LOOK_SECONDS) < LOOK_SECONDS:
                return
            self._copy.fetch(experiment)
            self._looked[experiment] = now
