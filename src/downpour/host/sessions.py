"""Ends what a process has started and left behind: the processes of its session."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil


def end_session(leader: int) -> None:
    """Kill all processes of the session that a process led, except the leader itself.

    A user's task may start processes of its own (data helpers, tracking libraries), which no one
    would end if its worker dies.
    """
    if leader == os.getsid(0):
        return
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
