"""Logs of runs on this machine: one file per run in `logs`; we keep the last 20."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

import psutil

KEPT = 20
_NAME = re.compile(r"\d{8}-\d{6}-\d{1,9}")


def new_log(shared: Path) -> Path:
    """Return the path of this process's log in a shared directory, and remove the oldest logs.

    Other files stay where they are, and so do logs of processes that are alive on this machine.
    """
    folder = shared / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    for path in sorted(written, key=lambda path: path.name, reverse=True)[KEPT - 1 :]:
        if not psutil.pid_exists(int(path.name.rpartition("-")[2])):
            with suppress(OSError):  # another run has removed it, or it is another user's
                path.unlink()
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
