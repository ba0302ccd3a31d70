"""How to start a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from downpour.credentials import Credentials
from downpour.discovery.waiting import CONNECT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How to start a worker.

    `host` and `port` are where it listens (port 0: any free port); `advertise` is the host, or
    HOST:PORT, at which the manager calls it back, if that differs. Metrics are served at
    `metrics_port` unless it is None. The worker waits `connect_seconds` each for the manager, its
    folder and its token.
    """

    manager: str
    shared: str
    name: str = ""
    host: str = ""
    port: int = 0
    advertise: str = ""
    device: str = "cpu"
    connect_seconds: float = CONNECT_SECONDS
    metrics_port: int | None = None
    credentials: Credentials = field(default_factory=Credentials)

    def arguments(self) -> list[str]:
        """Return the command line that starts this worker in a process of its own."""
        words = ["worker", "--manager", self.manager, "--shared", self.shared]
        words += ["--host", self.host, "--port", str(self.port), "--device", self.device]
        words += ["--connect-seconds", str(self.connect_seconds)]
        for flag, value in (("--name", self.name), ("--advertise", self.advertise)):
            words += [flag, value] if value else []
        if self.metrics_port is not None:
            words += ["--metrics-port", str(self.metrics_port)]
        return words
