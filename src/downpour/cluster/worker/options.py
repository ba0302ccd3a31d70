"""How a worker starts: its options, and the settings of its process.

Python hashes text differently in each process, unless all get one seed. With one, accidental uses
of `hash()` and the order of sets are the same in all of them.

Two defaults would each cost more than half of the speed. OpenMP's threads spin while they wait,
which takes the cores from other workers. glibc returns the large blocks of every batch to the
kernel, and the next batch faults them in again.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass, field

from downpour.base.devices import AUTO
from downpour.host.paths import Credentials
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


# These numbers are from glibc's malloc.h; Python does not have them.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


HASH_SEED = "PYTHONHASHSEED"
ONE_HASH_SEED = {HASH_SEED: "0"}


def training_environment(threads: int) -> dict[str, str]:
    """Return the environment variables of a process that trains, or prepares a training.

    Torch reads those for threads when it is loaded.
    """
    return ONE_HASH_SEED | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Measured with two threads on two cores, beside one busy process. Training alone reaches
        # 1500 samples a second. Beside that process it reached 165 without this setting, and 680 to
        # 765 with it. On a quiet machine the setting costs 5 to 6 %.
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def wait_passively() -> None:
    """Let idle threads sleep, in a process that has not loaded torch yet."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def keep_memory() -> None:
    """Keep freed memory in this process, if its C library can (glibc)."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        # Measured: without these two settings, batches of 256 trained at 0.7 of the speed of 64.
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
