"""How managers and workers start: their options, and the settings of a worker's process.

Python hashes text differently in each process, unless all get one seed. With one, accidental uses
of `hash()` and the order of sets are the same in all of them.

Two defaults would each cost more than half of the speed. OpenMP's threads spin while they wait,
which takes the cores from other workers. glibc returns the large blocks of every batch to the
kernel, and the next batch faults them in again.
"""

import ctypes
import os
import sys
from dataclasses import dataclass, field

from downpour.base import options
from downpour.base.errors import SpecError
from downpour.base.options import cache_of, flag, loaders_of, option, words_of
from downpour.host.paths import Credentials

_PATIENCE_MIN, _PATIENCE_MAX = 0.1, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """How to start a manager: the options of `downpour manager`, and what a launcher adds."""

    shared: str = options.location()
    host: str = option(
        "127.0.0.1", "The address to listen on; 0.0.0.0 or :: for all networks.", "ADDRESS"
    )
    port: int = options.port()
    data_dir: str = options.data_dir(value="")
    successor: bool = flag("Wait until the leading manager is gone, then take over.")
    patience: float = options.patience()
    predictor: str = option(
        "",
        "The predictor of completion times, as `downpour predictor train` writes it.",
        "FILE",
        default="the one that is shipped",
    )
    metrics_port: int | None = options.metrics_port()
    on_event: str = options.on_event()
    loaders: str = options.loaders()
    heartbeat_seconds: float = 1.0
    patience_seconds: float = 10.0
    """How long readers retry a file that is missing or short; then the attempt fails."""
    embedded: bool = False
    """It belongs to one `run`: it takes no lock, and closing it cancels its experiments."""
    run: str = ""
    """The run's name marks its experiments, so that the next manager finds them."""
    restarts: int = 0
    credentials: Credentials = field(default_factory=Credentials)

    def __post_init__(self) -> None:
        """Check what users may set."""
        loaders_of(self.loaders)

    def arguments(self) -> list[str]:
        """Return the command line that starts this manager as a separate process."""
        return ["manager", *words_of(self)]


def checked_patience(patience: float) -> float:
    """Return `patience` if it is valid."""
    if not isinstance(patience, int | float) or not _PATIENCE_MIN <= patience <= _PATIENCE_MAX:
        accepted = f"must be a number from {_PATIENCE_MIN} to {_PATIENCE_MAX:g}; 1 is the default"
        raise SpecError("patience", patience, accepted)
    return patience


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How to start a worker, or several: the options of `downpour worker`."""

    manager: str = options.manager()
    shared: str = options.location()
    name: str = option("", "The worker's name.", "NAME", default="the host's name")
    host: str = option(
        "",
        "The address to listen on.",
        "ADDRESS",
        default="loopback if the manager is on it, else all networks",
    )
    port: int = options.port(value=0)
    advertise: str = option(
        "",
        "The address at which the manager calls this worker back.",
        "HOST[:PORT]",
        default="the address that reaches the manager",
    )
    device: str = options.device()
    metrics_port: int | None = options.metrics_port()
    connect_seconds: float = options.connect_seconds()
    """Once each for the manager, its folder and its token."""
    drain_seconds: float = option(
        0.0,
        "How long the worker may take to finish its task when a signal or a notice tells it to "
        "leave. It saves and hands back an unfinished one.",
        "X",
    )
    notice: str = options.notice()
    alone_seconds: float = option(
        0.0, "Leave after this long without a manager's answer; 0: wait forever.", "X"
    )
    ready_file: str = option(
        "",
        "Keep this file, with the worker's address, as long as the worker is registered.",
        "FILE",
        default="none",
        reads="path",
    )
    labels: tuple[str, ...] = option(
        (),
        "A label that specs and shards can require; `downpour status` and `downpour ps` show it. "
        "Repeatable.",
        "KEY=VALUE",
        default=False,
        flag="--label",
    )
    processes: int | None = option(
        None,
        "Train each batch with at most N processes; the resulting bytes don't depend on N.",
        "N",
        default="as many as the spec asks for",
    )
    loaders: str = options.loaders()
    cache: str = options.cache()
    accepts_code: bool = flag(
        "If this machine lacks a file of an experiment's code or has another version, use the "
        "manager's. DOWNPOUR_ALLOW still decides whose code may run.",
        flag="--accept-code",
        variable="DOWNPOUR_ACCEPT_CODE",
    )
    count: int = option(
        1,
        "How many workers to run, each in its own process: NAME-1, NAME-2 and so on, with ports "
        "that count up.",
        "N",
    )
    place: int = option(
        0,
        "The worker's number among those of its machine, from 0: they take the accelerators in "
        "turn.",
        "N",
    )
    credentials: Credentials = field(default_factory=Credentials)

    def __post_init__(self) -> None:
        """Check what users may set."""
        loaders_of(self.loaders)
        cache_of(self.cache)

    def arguments(self) -> list[str]:
        """Return the command line that starts this worker as a separate process."""
        return ["worker", *words_of(self)]


# These numbers are from glibc's malloc.h; Python does not have them.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


HASH_SEED = "PYTHONHASHSEED"
ONE_HASH_SEED = {HASH_SEED: "0"}


_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""Idle threads sleep, and those of GNU's OpenMP spin first, for some tens of microseconds.

Measured with two threads on two virtual cores (AMD EPYC), by 20 steps of a small GPT-2, alone and
beside a busy process:

- with these: 2.2 s and 4.3 s
- asleep at once: 2.6 s and 3.8 s
- the libraries' default: 2.1 s and 8.3 s
"""


def training_environment(threads: int) -> dict[str, str]:
    """Return the variables of a process that trains, or prepares a training; torch reads them."""
    numbers = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return ONE_HASH_SEED | numbers | _WAITING


def wait_passively() -> None:
    """Let idle threads sleep soon, in a process that has not loaded torch yet."""
    if _WAITING.keys().isdisjoint(os.environ):  # or else its user has decided
        os.environ.update(_WAITING)


def keep_memory() -> None:
    """Keep freed memory in this process, if its C library can (glibc)."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        # Measured: without these two settings, batches of 256 trained at 0.7 of the speed of 64.
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
