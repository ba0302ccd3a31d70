"""The code in a Ray actor: it runs one worker as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from downpour.host.paths import without_credentials
from downpour.host.process import end_with_parent

_REASON_CHARACTERS = 600


class WorkerProcess:
    """A worker's process, which ends with the actor, however the actor ends.

    The worker is not a thread of the actor, because signals tell a worker to leave. Only the main
    thread gets signals, and that one belongs to Ray.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Run a worker by its command line; return its exit status and its last line."""
        if self._stopped:
            return 0, ""
        self._process = subprocess.Popen(  # noqa: S603 - this package's own command
            [sys.executable, "-m", "downpour.cli", *words],
            env={**without_credentials(os.environ), **environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it makes one system call
        )
        last = ""
        for line in self._process.stderr or ():
            last = line.strip() or last
        return self._process.wait(), last.removeprefix("downpour: ")[:_REASON_CHARACTERS]

    def node(self) -> str:
        """Return the ID of the Ray node that this runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def stop(self) -> None:
        """Tell the worker to leave."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()
