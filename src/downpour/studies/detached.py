"""A run that outlives the terminal: a process in a session of its own, writing a log.

It runs what the folder itself says was asked for, so changing the user's file meanwhile changes
nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from downpour.errors import LaunchError
from downpour.studies.lock import LOG_NAME, held, holder

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


class Results(Protocol):
    """A folder of results that a command fills: those of a grid, or of a search."""

    @property
    def path(self) -> Path:
        """Where they lie."""

    @property
    def asked(self) -> Path:
        """The file of what was asked for, which the command takes."""

    def check(self) -> None:
        """See that the folder can take these results; changes nothing."""

    def make(self) -> None:
        """Make the folder where it is missing."""

    def begin(self) -> None:
        """Write down what was asked for; only for who holds the folder."""


def detach(command: str, folder: Results, options: Sequence[str]) -> int:
    """Begin to fill a folder in a process of its own; returns its number once it has begun.

    Args:
        command: The word behind `downpour`, which takes a file and `--out`.
        folder: Where results go; what was asked for is written there.
        options: Further words for the command.

    Raises:
        SpecError: the folder holds something else, or is being filled.
        LaunchError: the process ended at once; tells its last words.
    """
    folder.check()
    folder.make()
    with held(folder.path):
        folder.begin()
    log = folder.path / LOG_NAME
    words = [str(folder.asked), "--out", str(folder.path), *options]
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 - this program itself
            [sys.executable, "-m", "downpour.cli", command, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while holder(folder.path) is None and time.monotonic() < deadline:
        if process.poll() is not None:
            if process.returncode == 0:  # nothing was missing
                break
            raise LaunchError(_last_words(log), asked_wrongly=process.returncode == 2)
        time.sleep(_LOOK_SECONDS)
    return process.pid


def _last_words(log: Path) -> str:
    said = log.read_text("utf-8", errors="replace").strip().splitlines()
    return said[-1].removeprefix("downpour: ") if said else f"ended at once; see {log}"
