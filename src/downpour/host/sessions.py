"""Signals a process and its children: the processes of its session."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil


def end_session(leader: int) -> None:
    """Kill all processes of a leader's session, except the leader itself.

    A user's task may start its own processes (data helpers, tracking libraries), which would
    outlive a dead worker.
    """
    if leader == os.getsid(0):
        return
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to a process that leads a session, and to its children in the same group.

    Does nothing if the process has ended, or does not lead yet.
    """
    with suppress(ProcessLookupError, PermissionError):  # macOS raises PermissionError for a zombie
        os.killpg(leader, number)
