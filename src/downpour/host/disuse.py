"""Removes this machine's own copies after a month without use."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_DAY_SECONDS = 86_400
_UNUSED_SECONDS = 30 * _DAY_SECONDS


def note_use(path: Path) -> None:
    """Set a path's time of change, at most once a day: processes that verified a file check it."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY_SECONDS:
            os.utime(path)


def remove_unused(paths: Iterable[Path]) -> None:
    """Remove files and folders unused for a month; processes that map such a file still have it."""
    for path in paths:
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime <= _UNUSED_SECONDS:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
