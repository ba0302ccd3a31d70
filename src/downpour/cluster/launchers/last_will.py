"""Cleans up after this process if someone kills it before it can clean up itself.

A shell in a separate session reads from a pipe whose other end this process holds. The pipe ends
with this process, however the process ends; then the shell runs its script. The shell takes 1 MB.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress


class LastWill:
    """Runs a shell script once this process has died, unless the process revokes it.

    Args:
        script: the shell script.
        environment: the shell's whole environment; None: this process's.
    """

    def __init__(self, script: str, environment: Mapping[str, str] | None = None) -> None:
        # `revoke` writes a line. If the pipe ends without one, this process has died.
        waits = f"trap '' HUP INT TERM; read word || {{ {script}\n}}"
        self._shell = subprocess.Popen(  # noqa: S603 - words of this package
            ["/bin/sh", "-c", waits],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def __del__(self) -> None:
        """Run the script now if the command has not cleaned up and no longer can."""
        if self._shell.returncode is None:
            self._shell.communicate()

    def revoke(self) -> None:
        """Drop the script, because this process has cleaned up."""
        with suppress(BrokenPipeError):
            self._shell.communicate(b"done\n")
