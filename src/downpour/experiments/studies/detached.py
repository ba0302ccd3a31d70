"""Starts a process that runs a study without a terminal, in its own session, and writes a log.

The process reads the folder's own copy of the study's file, so later edits of the user's file have
no effect on it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from downpour.base.errors import LaunchError
from downpour.experiments.studies.lock import LOG_NAME, held, holder
from downpour.experiments.studies.study import Study
from downpour.experiments.studies.study_folder import StudyFolder

# A busy machine takes seconds to import what a study needs. After this long we assume that the
# process runs; `--status` says whether it does.
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


def detach(command: str, folder: StudyFolder[Study], options: Sequence[str]) -> int:
    """Start a process that runs a study; return its ID once it holds the folder's lock.

    Args:
        command: The subcommand of `downpour`, which takes a file and `--out`.
        folder: Where results go; the study's file is written there.
        options: Further arguments of the command.

    Raises:
        SpecError: the folder holds another study, or a process is running the study already.
        LaunchError: the process ended at once; the message has the last line of its log.
    """
    folder.check()
    folder.make()
    with held(folder.path):  # released again, because the new process takes the lock itself
        folder.begin()
    log = folder.path / LOG_NAME
    words = [str(folder.study_file), "--out", str(folder.path), *options]
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 - this program itself
            [sys.executable, "-m", "downpour.cli", command, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # neither Ctrl-C nor a closed terminal reaches it
        )
    deadline = time.monotonic() + _START_SECONDS
    while holder(folder.path) is None and time.monotonic() < deadline:
        if process.poll() is not None:
            if process.returncode == 0:  # all runs had finished before
                break
            raise LaunchError(_last_words(log), asked_wrongly=process.returncode == 2)
        time.sleep(_LOOK_SECONDS)
    return process.pid


def _last_words(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("downpour: ") if lines else f"ended at once; see {log}"
