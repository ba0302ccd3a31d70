"""The worker as a process: opens the shared directory, serves, registers, and works until stopped.

SIGTERM and SIGINT give up the running attempt and leave; a second signal ends the process at
once.
"""

from __future__ import annotations

import logging
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import FrameType

from downpour.discovery.managers import Managers
from downpour.discovery.waiting import awaiting, files_may_come
from downpour.errors import SpecError
from downpour.metrics import MetricsEndpoint
from downpour.rpc import Address, Trust, parse_address, serve_worker
from downpour.store import SharedDirectory
from downpour.worker.agent import WorkerAgent
from downpour.worker.environment import keep_memory, wait_passively
from downpour.worker.metrics import WorkerMetrics
from downpour.worker.options import WorkerOptions

log = logging.getLogger(__name__)

_EVERYWHERE = "::"
_EVERYWHERE_V4 = "0.0.0.0"  # noqa: S104 - only where trust is asked for


def run_worker(
    options: WorkerOptions,
    ready: Callable[[Address], None],
    measured: Callable[[str], None] = lambda _: None,
) -> None:
    """Work until a signal stops it; calls `ready` with its address once it is registered.

    The worker waits for a manager, a folder or a token that does not exist yet. If the shared
    directory names another manager as the leader, the worker turns to that one.

    If metrics are served, `measured` is then called with their URL.

    Raises:
        Unreachable: no manager answers at the address.
        SharedDirectoryError: the folder is missing, not writable or not the manager's.
        Untrusted: the token or the certificates do not match the manager's.
        IncompatiblePeer: the manager speaks another protocol.
        Refused: the manager cannot call this worker back.
        SpecError: an address, a port, the device or a credential is invalid or not available.
    """
    # First, because torch reads these settings when it is loaded.
    wait_passively()
    keep_memory()
    address = parse_address(options.manager, field="manager")
    wait = awaiting(options.connect_seconds, when=files_may_come)
    trust = wait(Trust.load, options.credentials)
    shared = wait(lambda: SharedDirectory.open(Path(options.shared), create=False))
    managers = Managers(shared, address, trust)
    agent, metrics = _make_agent(options, managers, shared)
    host = options.host or listening_host(address)
    with ExitStack() as ending:
        ending.callback(managers.close)
        # Before it registers, because the manager first calls back at its address.
        server = serve_worker(agent, host, options.port, trust=trust).start()
        ending.callback(server.stop)
        _leave_on_signals(agent)
        endpoint = _measured(options, metrics, server.address.host, trust)
        if endpoint is not None:
            ending.callback(endpoint.close)
        where = advertised(options.advertise, host, server.address.port)
        register = awaiting(options.connect_seconds, agent.look_elsewhere)
        here = register(agent.register, *where)
        log.info("%s serves at %s for the manager at %s", agent.name, here, agent.manager)
        ready(here)
        if endpoint is not None:
            measured(endpoint.start().url)
        agent.run(_import_the_rest)


def check_device(device: str) -> None:
    """Refuse a device that this machine lacks; the device is not initialized.

    Raises:
        SpecError: torch finds no such device.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError("device", device, "torch finds no such device here; cpu works everywhere")


def listening_host(manager: Address) -> str:
    """Return where to listen: on loopback if the manager is there, else on all interfaces."""
    if manager.is_loopback:
        return "::1" if ":" in manager.host else "127.0.0.1"
    return _EVERYWHERE if socket.has_dualstack_ipv6() else _EVERYWHERE_V4


def advertised(asked: str, listening: str, port: int) -> tuple[str, int]:
    """Return the address for calls back; an empty host stands for the one seen by the manager."""
    if asked:
        address = parse_address(asked, field="advertise", default_port=port)
        return address.host, address.port
    return ("" if listening in {_EVERYWHERE, _EVERYWHERE_V4} else listening), port


def _make_agent(
    options: WorkerOptions, managers: Managers, shared: SharedDirectory
) -> tuple[WorkerAgent, WorkerMetrics]:
    # Here, because both import torch, and that reads the settings made before.
    from downpour.training.numeric_class import numeric_class
    from downpour.worker.task import TaskRunner

    check_device(options.device)
    name = options.name or f"{socket.gethostname()}-{secrets.token_hex(2)}"
    numerics = numeric_class(options.device)
    metrics = WorkerMetrics(TaskRunner(shared, options.device).run)
    agent = WorkerAgent(managers.first, shared, name, numerics, metrics.run, managers.another)
    return agent, metrics


def _measured(
    options: WorkerOptions, metrics: WorkerMetrics, host: str, trust: Trust
) -> MetricsEndpoint | None:
    """Make the endpoint of metrics, if there is a port for it; it does not serve yet."""
    if options.metrics_port is None:
        return None
    return MetricsEndpoint(metrics, host, options.metrics_port, trust)


def _import_the_rest() -> None:
    """Import what the first optimizer imports, before a task waits for it: it takes a second."""
    import_module("torch._dynamo")


def _leave_on_signals(agent: WorkerAgent) -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        agent.hand_back()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
