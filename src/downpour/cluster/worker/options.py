"""The options for starting a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from downpour.base.devices import AUTO
from downpour.host.credentials import Credentials
from downpour.network.discovery.waiting import CONNECT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How to start a worker.

    `manager` is the manager's address; if it is empty, the worker finds the one that leads in the
    shared directory. The worker listens at `host` and `port` (port 0: any free port). `advertise`
    is the host, or HOST:PORT, at which the manager calls it back, if that differs. The worker
    serves metrics at `metrics_port` unless that is None. It waits `connect_seconds` each for the
    manager, its folder and its token. After an order to leave, it may take `drain_seconds` to
    finish its task. It leaves on its own after `alone_seconds` without a manager's answer, unless
    they are 0. While it is registered, the file `ready_file` exists and holds its address. Lists of
    workers show its `labels`, each as KEY=VALUE. It trains a batch with at most `processes`; None:
    as many as the spec asks for. `place` numbers, from 0, the workers of one machine: they take the
    machine's accelerators in turn. The worker takes an experiment's code from the manager if it
    `accepts_code`.
    """

    shared: str
    manager: str = ""
    name: str = ""
    host: str = ""
    port: int = 0
    advertise: str = ""
    device: str = AUTO
    connect_seconds: float = CONNECT_SECONDS
    metrics_port: int | None = None
    drain_seconds: float = 0.0
    alone_seconds: float = 0.0
    ready_file: str = ""
    labels: tuple[str, ...] = ()
    processes: int | None = None
    place: int = 0
    accepts_code: bool = False
    credentials: Credentials = field(default_factory=Credentials)

    def arguments(self) -> list[str]:
        """Return the command line that starts this worker as a separate process."""
        words = ["worker", "--shared", self.shared]
        words += ["--host", self.host, "--port", str(self.port), "--device", self.device]
        words += ["--connect-seconds", str(self.connect_seconds)]
        words += ["--drain-seconds", str(self.drain_seconds)]
        words += ["--alone-seconds", str(self.alone_seconds)]
        optional = {
            "--manager": self.manager,
            "--name": self.name,
            "--advertise": self.advertise,
            "--ready-file": self.ready_file,
            "--place": str(self.place or ""),
        }
        for flag, value in optional.items():
            words += [flag, value] if value else []
        if self.metrics_port is not None:
            words += ["--metrics-port", str(self.metrics_port)]
        if self.processes is not None:
            words += ["--processes", str(self.processes)]
        words += ["--accept-code"] if self.accepts_code else []
        for label in self.labels:
            words += ["--label", label]
        return words
