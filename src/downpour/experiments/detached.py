"""A run that outlives the terminal: a process in a session of its own, writing a log.

It runs the folder's own `grid.toml`, so changing the user's file meanwhile changes nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from downpour.errors import LaunchError
from downpour.experiments.folder import GRID_NAME, Folder
from downpour.experiments.hold import held, holder

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


def detach(folder: Folder, options: Sequence[str]) -> int:
    """Begin to run a grid in a process of its own; returns its number once it has begun.

    Args:
        folder: Where results go; the grid is written there.
        options: Further words for `downpour experiment`.

    Raises:
        SpecError: the folder holds something else, or is being run.
        LaunchError: the process ended at once; tells its last words.
    """
    folder.check()
    folder.make()
    with held(folder.path):
        folder.begin()
    file = str(folder.path / GRID_NAME)
    words = [file, "--out", str(folder.path), *options]
    with folder.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - this program itself
            [sys.executable, "-m", "downpour.cli", "experiment", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while holder(folder.path) is None and time.monotonic() < deadline:
        if process.poll() is not None:
            if process.returncode == 0:  # nothing was missing
                break
            raise LaunchError(_last_words(folder.log), asked_wrongly=process.returncode == 2)
        time.sleep(_LOOK_SECONDS)
    return process.pid


def _last_words(log: Path) -> str:
    said = log.read_text("utf-8", errors="replace").strip().splitlines()
    return said[-1].removeprefix("downpour: ") if said else f"ended at once; see {log}"
