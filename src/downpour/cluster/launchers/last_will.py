"""Cleans up after this process if someone kills it, so that it cannot clean up itself.

A shell in a separate session waits at a pipe whose other end this process holds. The pipe ends with
this process, however that ends; then the shell carries out what it was given. It takes 1 MB.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress


class LastWill:
    """Carries out a shell script when this process has died, unless it is revoked.

    Args:
        script: what to do, in a shell's words.
        environment: the shell's whole environment; None: this process's.
    """

    def __init__(self, script: str, environment: Mapping[str, str] | None = None) -> None:
        # `revoke` writes a line; the end of the pipe without one is a death.
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
        """Carry it out now if the command has not cleaned up and no longer can."""
        if self._shell.returncode is None:
            self._shell.communicate()

    def revoke(self) -> None:
        """Do nothing of it: this process has cleaned up."""
        with suppress(BrokenPipeError):
            self._shell.communicate(b"done\n")
