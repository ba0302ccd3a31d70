"""Reads the model versions that tasks begin from.

If versions are differences, the reader keeps the last version in memory. The next version is one
difference away from it, so the worker need not read a version twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from downpour.base.values import PublishedFile
from downpour.files.store import Parameters, Store, decode, read_version


class ModelReader:
    """Reads the versions of one experiment; for one thread.

    Args:
        store: Holds their files.
        keeps: Whether to keep the last version in memory.
    """

    def __init__(self, store: Store, *, keeps: bool) -> None:
        self._store = store
        self._keeps = keeps
        self._last: tuple[PublishedFile, Parameters] | None = None

    def read(
        self,
        file: PublishedFile,
        leading: Sequence[PublishedFile],
        whole: PublishedFile | None = None,
    ) -> Parameters:
        """Return a version, which the `leading` versions' steps lead to; don't change its tensors.

        If the version is not in memory, this reads the file that holds the `whole` of it, if there
        is one.

        Raises:
            StoreError: a file cannot be read.
        """
        if whole is not None and self._known(file) is None:
            model: Parameters = decode(self._store.read(whole), whole.name)
        else:
            model = read_version(self._store, file, leading, self._known)
        if self._keeps:
            self._last = file, model
        return model

    def _known(self, file: PublishedFile) -> Parameters | None:
        if self._last is None or self._last[0] != file:
            return None
        return self._last[1]
