"""The worker as a process: opens the shared directory, serves, registers, and works until told.

SIGTERM and SIGINT hand back what is running and leave; a second one ends the process at once.
"""

from __future__ import annotations

import logging
import secrets
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from downpour.errors import SpecError, Unreachable
from downpour.rpc import Address, ManagerClient, parse_address, serve_worker
from downpour.store import SharedDirectory
from downpour.worker.agent import WorkerAgent
from downpour.worker.environment import keep_memory, wait_passively
from downpour.worker.options import WorkerOptions
from downpour.worker.system import numeric_class

log = logging.getLogger(__name__)


def run_worker(options: WorkerOptions, ready: Callable[[Address], None]) -> None:
    """Work until told to leave; calls `ready` with its address once it is registered.

    Raises:
        Unreachable: no manager answers at the address.
        SharedDirectoryError: the folder is missing, not writable or not the manager's.
        IncompatiblePeer: the manager runs a version that does not fit.
        SpecError: an address is none, or the port or the device cannot be had.
    """
    wait_passively()
    keep_memory()
    shared = SharedDirectory.open(Path(options.shared), create=False)
    address = parse_address(options.manager, field="manager")
    manager = ManagerClient(address)
    agent = _make_agent(options, manager, shared)
    host = options.host or ("127.0.0.1" if address.is_loopback else "0.0.0.0")  # noqa: S104
    server = serve_worker(agent, host, options.port).start()
    try:
        _leave_on_signals(agent)
        advertised = options.advertise or _reachable_host(address, host)
        here = Address(advertised, server.address.port)
        for attempt in _patiently(options.connect_seconds):
            with attempt:
                agent.register(here)
        log.info("%s serves at %s for the manager at %s", agent.name, here, address)
        ready(here)
        agent.run()
    finally:
        server.stop()
        manager.close()


def check_device(device: str) -> None:
    """Refuse a device that is not there; it is not touched.

    Raises:
        SpecError: torch finds no such device.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError("device", device, "torch finds no such device here; cpu works everywhere")


def _make_agent(
    options: WorkerOptions, manager: ManagerClient, shared: SharedDirectory
) -> WorkerAgent:
    import torch

    from downpour.worker.task import TaskRunner

    check_device(options.device)
    name = options.name or f"{socket.gethostname()}-{secrets.token_hex(2)}"
    numerics = numeric_class(str(torch.__version__), options.device)
    return WorkerAgent(manager, shared, name, numerics, TaskRunner(shared, options.device).run)


def _patiently(seconds: float) -> Retrying:
    return Retrying(
        retry=retry_if_exception_type(Unreachable),
        wait=wait_random_exponential(multiplier=0.1, max=1),
        stop=stop_after_delay(seconds),
        reraise=True,
    )


def _reachable_host(manager: Address, listening: str) -> str:
    """Find the address by which the manager sees this machine, where it listens on all."""
    if listening not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return listening
    family = socket.AF_INET6 if ":" in manager.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((manager.host, manager.port))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _leave_on_signals(agent: WorkerAgent) -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        agent.hand_back()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
