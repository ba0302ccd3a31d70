"""Model versions, which the manager reads again and again while updates come in.

Each version is the start of the next, and the base of the updates that began from it. This process
keeps the versions that it has published in memory, so that for each push it reads only the update.
It reads and verifies the versions of an earlier manager each time. If versions are differences, we
keep the newest even if it is large, because the next one is a difference from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from downpour.base.values import PublishedFile
from downpour.files.aggregators.passes import Base
from downpour.files.store import Array, Parameters, Store, plan_layout, read_version

LIMIT_BYTES = 256 * 2**20
"""The share of the manager's memory for an experiment's versions."""


class Versions:
    """The model versions of one experiment; use it from one thread.

    Args:
        store: Where their files are.
        limit_bytes: The limit; we keep the newest versions that fit.
    """

    def __init__(self, store: Store, limit_bytes: int = LIMIT_BYTES) -> None:
        self.store = store
        self._limit_bytes = limit_bytes
        self._kept: dict[PublishedFile, Parameters] = {}
        self._order: Sequence[PublishedFile] = ()

    def follow(self, files: Sequence[PublishedFile]) -> None:
        """Remember which versions there are, oldest first, if some are steps."""
        self._order = files

    def read(self, file: PublishedFile) -> Parameters:
        """Return a version; callers must not change its tensors.

        Raises:
            StoreError: it is not kept, and its file cannot be read.
        """
        place = self._order.index(file) if file in self._order else 0
        return self.read_after(self._order[:place], file)

    def read_after(self, leading: Sequence[PublishedFile], file: PublishedFile) -> Parameters:
        """Return a version to which the steps in `leading` lead; other threads may call this, too.

        Raises:
            StoreError: it is not kept, and a file cannot be read.
        """
        return read_version(self.store, file, leading, self._kept.get)

    def base_of(
        self, file: PublishedFile, compression: str, trained_from: PublishedFile | None = None
    ) -> Base:
        """Return a version as the base of updates, which may be `trained_from` an earlier one.

        Raises:
            StoreError: it is not kept, and its file cannot be opened.
        """
        kept = self._kept.get(file)
        if kept is None and file in self._order:
            kept = self.read(file)
        data = _in_one(kept) if kept is not None else None
        if kept is None or data is None:
            return Base.opened(self.store, file, compression, trained_from)
        return Base.known(file, kept, data, compression, trained_from)

    def keep(
        self, file: PublishedFile, tensors: Mapping[str, Array], metadata: Mapping[str, str]
    ) -> None:
        """Keep the content of a published file, which the caller must not change from now on."""
        layout = plan_layout(tensors)
        if layout.size_bytes > self._limit_bytes and not self._order:
            return
        self._kept[file] = Parameters(tensors=dict(tensors), metadata=dict(metadata), layout=layout)
        while len(self._kept) > 1 and self._kept_bytes > self._limit_bytes:
            del self._kept[next(iter(self._kept))]

    @property
    def _kept_bytes(self) -> int:
        return sum(one.layout.size_bytes for one in self._kept.values())

    def clear(self) -> None:
        """Free all memory."""
        self._kept.clear()
        self._order = ()

    def forget(self, files: Iterable[PublishedFile]) -> None:
        """Free the memory of versions that are removed."""
        for file in files:
            self._kept.pop(file, None)


def _in_one(model: Parameters) -> Array | None:
    """Return the bytes of a model's tensors if they are contiguous, as the fold makes them.

    We don't join others, because that would cost more than reading the file.
    """
    owner = next((tensor.base for tensor in model.tensors.values()), None)
    if not isinstance(owner, np.ndarray) or owner.nbytes != model.layout.size_bytes:
        return None
    data = owner.reshape(-1).view(np.uint8)
    begin = data.ctypes.data
    places = {entry.name: begin + entry.start for entry in model.layout.entries}
    found = {name: tensor.ctypes.data for name, tensor in model.tensors.items() if tensor.nbytes}
    return data if all(places[name] == place for name, place in found.items()) else None
