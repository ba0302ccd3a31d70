"""What nobody uses for a month goes; everything else stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from downpour.host.machine import note_use, remove_unused

DAY_SECONDS = 86_400


def aged(path: Path, days: float) -> Path:
    """Set when a path was changed."""
    at = time.time() - days * DAY_SECONDS
    os.utime(path, (at, at), follow_symlinks=False)
    return path


def test_files_folders_and_links_go_after_a_month(tmp_path: Path) -> None:
    """A link goes alone: what it leads to is another's."""
    other = tmp_path / "other"
    (other / "inside").mkdir(parents=True)
    place = tmp_path / "place"
    for name in ("old", "recent"):
        (place / name).mkdir(parents=True)
        (place / name / "file").write_bytes(b"")
        (place / f"{name}.npy").write_bytes(b"")
        (place / f"{name}-link").symlink_to(other)
    for path in place.iterdir():
        aged(path, 31 if path.name.startswith("old") else 29)
    remove_unused([*place.iterdir(), place / "missing"])
    assert sorted(path.name for path in place.iterdir()) == ["recent", "recent-link", "recent.npy"]
    assert (other / "inside").is_dir()


def test_a_use_is_noted_once_a_day(tmp_path: Path) -> None:
    """Not more often, because a reader that verified the file looks at its time of change."""
    recent, old = aged(tmp_path, 0.5), tmp_path / "old"
    old.write_bytes(b"")
    before = recent.stat().st_mtime
    note_use(recent)
    assert recent.stat().st_mtime == before
    note_use(aged(old, 2))
    assert time.time() - old.stat().st_mtime < 3600
    note_use(tmp_path / "missing")
