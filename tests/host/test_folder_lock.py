"""A lock never makes its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.host.paths import FolderLock


def test_a_lock_in_a_folder_that_is_away_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    """The folder may be a mount; once it is back, the same lock can be taken."""
    lock = FolderLock(tmp_path / "mount" / "datasets" / "lock", timeout=0)
    with pytest.raises(FileNotFoundError), lock:
        raise AssertionError("it is held")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mount" / "datasets").mkdir(parents=True)
    with lock:
        assert lock.is_locked


def test_no_other_lock_is_used() -> None:
    """A `FileLock` would make its folder with all parents."""
    package = Path(__file__).parents[2] / "src" / "downpour"
    users = [path for path in package.rglob("*.py") if " FileLock" in path.read_text("utf-8")]
    assert [path.name for path in users] == ["paths.py"]
