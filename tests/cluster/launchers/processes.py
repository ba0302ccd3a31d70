"""An engine for tests: each worker is a process of this machine, started by its command line."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from downpour.base.errors import LaunchError
from downpour.cluster.options import WorkerOptions
from downpour.launchers import Ended, LaunchPlan


class Processes:
    """Starts workers as processes, or refuses to."""

    def __init__(self, manager_host: str = "127.0.0.1", refusal: str = "") -> None:
        self.manager_host = manager_host
        self.refusal = refusal
        self.started: list[WorkerOptions] = []
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def check(self, plan: LaunchPlan) -> None:
        assert plan.workers
        if self.refusal:
            raise LaunchError(self.refusal, asked_wrongly=True)

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        self.started.append(worker)
        words = [sys.executable, "-m", "downpour", *worker.arguments(), "--log", str(log)]
        given = {**os.environ, **environment, **worker.credentials.to_environment()}
        self.running[worker.name] = subprocess.Popen(words, env=given)

    def ended(self) -> Mapping[str, Ended]:
        over = {name: one.poll() for name, one in self.running.items() if one.poll() is not None}
        for name in over:
            del self.running[name]
        return {name: Ended(status) for name, status in over.items()}

    def stop(self, name: str) -> None:
        self.running[name].terminate()

    def close(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait()
