"""A process that runs a study without a terminal, in a session of its own, and writes a log.

It runs the study as the folder's own file has it, so changing the user's file meanwhile changes
nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from downpour.errors import LaunchError
from downpour.studies.folder import StudyFolder
from downpour.studies.lock import LOG_NAME, held, holder
from downpour.studies.study import Study

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


def detach(command: str, folder: StudyFolder[Study], options: Sequence[str]) -> int:
    """Begin to run a study in a process of its own; returns its number once it has begun.

    Args:
        command: The word behind `downpour`, which takes a file and `--out`.
        folder: Where results go; what was asked for is written there.
        options: Further words for the command.

    Raises:
        SpecError: the folder holds another study, or a process runs the study already.
        LaunchError: the process ended at once; has the last line of its log.
    """
    folder.check()
    folder.make()
    with held(folder.path):
        folder.begin()
    log = folder.path / LOG_NAME
    words = [str(folder.study_file), "--out", str(folder.path), *options]
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
