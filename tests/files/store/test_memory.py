"""The twin in memory; what both stores keep is in `test_base`."""

from __future__ import annotations

from downpour.files.store import MemoryStore


def test_chunks_may_change_afterwards() -> None:
    """The store keeps a copy, as a file would."""
    store = MemoryStore()
    chunk = bytearray(b"before")
    file = store.put_new("a", [chunk])
    chunk[:] = b"after!"
    assert bytes(store.read(file)) == b"before"
