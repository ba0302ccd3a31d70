"""One object store in memory, and machines that each have a folder of their own for it."""

from dataclasses import replace
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from downpour.files.store import SharedDirectory
from downpour.files.store.bucket import Bucket
from downpour.files.store.shared_directory import LOCAL_VARIABLE, open_location

URL = "s3://bucket/place"


class Cloud:
    """One object store, and machines that each have a folder of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.objects = MemoryStore()
        self._monkeypatch, self._tmp_path = monkeypatch, tmp_path
        monkeypatch.setattr(Bucket, "at", lambda url: Bucket(url, self.objects))

    def on(self, machine: str, *, create: bool = False) -> SharedDirectory:
        """Open the place on a machine, as its manager or as a worker."""
        self._monkeypatch.setenv(LOCAL_VARIABLE, str(self._tmp_path / machine))
        return replace(open_location(URL, create=create), patience_seconds=0.0)
