"""Workers as actors of a Ray cluster; the manager runs where the command does.

Ray decides on which machines, by their free processors and accelerators, and adds machines where it
scales by itself. An actor holds its worker as a process of its own, which ends with the actor.
Ray moves an actor's class and arguments by its own means; parameters go through the shared
directory, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from socket import create_connection
from typing import Any

from downpour.errors import LaunchError, SpecError
from downpour.extras import require
from downpour.launchers.base import Ended, Launcher
from downpour.launchers.placed import PlacedCluster
from downpour.launchers.plan import LaunchPlan
from downpour.launchers.ray_actor import WorkerProcess
from downpour.worker.options import WorkerOptions

_LOCAL = "local"
_RAY_PORT = 6379
_CONNECT_SECONDS = 5.0
_LEAVING_SECONDS = 10.0
"""A worker that leaves saves what it trains, and says goodbye."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Which Ray cluster, and what it reserves for a worker.

    `ray_address` is HOST:PORT, `auto` (the one that runs here, or that RAY_ADDRESS names) or
    `local` (one that ends with the call). Ray has `ray_wait_seconds` to find places for the
    workers, which is time for it to add machines where it scales by itself.

    Raises:
        SpecError: a number is negative.
    """

    ray_address: str = "auto"
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    ray_wait_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what cannot be, before anything is asked of Ray."""
        for name in ("cpus_per_worker", "gpus_per_worker", "ray_wait_seconds"):
            if not 0 <= getattr(self, name) < inf:
                raise SpecError(name, getattr(self, name), "must be a number, at least 0")


def on_ray(options: RayOptions | None = None) -> Launcher:
    """Return what starts workers by Ray, for `downpour.run(spec, on=on_ray(options))`."""
    return lambda plan: PlacedCluster(plan, RayEngine(options or RayOptions()))


@dataclass(slots=True)
class _Actor:
    """A worker's actor, and what its `run` will return."""

    handle: Any
    running: Any


class RayEngine:
    """Starts each worker in an actor; those of the beginning in one placement group."""

    def __init__(self, options: RayOptions) -> None:
        """Raises MissingPackage if Ray is not installed."""
        require("--on ray", "ray")
        self._options = options
        self._actors: dict[str, _Actor] = {}
        self._group: Any = None
        self._connected = False
        self.manager_host = "127.0.0.1"

    def check(self, plan: LaunchPlan) -> None:
        """Connect to Ray, and reserve what the workers need."""
        if plan.device == "cuda" and not self._options.gpus_per_worker:
            raise LaunchError(
                "gpus_per_worker = 0.0: must be more with device = cuda", asked_wrongly=True
            )
        self._connect()
        try:
            self._reserve(plan.workers)
        except BaseException:
            self.close()
            raise

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Start a worker in an actor, which Ray starts as soon as there is a place for it."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        number = len(self._actors)
        strategy: Any = "SPREAD"
        if worker.name in self._actors:
            number = list(self._actors).index(worker.name)
        if self._group is not None and number < len(self._group.bundle_specs):
            strategy = PlacementGroupSchedulingStrategy(self._group, number)
        kind: Any = ray.remote(WorkerProcess)
        handle = kind.options(
            num_cpus=self._options.cpus_per_worker,
            num_gpus=self._options.gpus_per_worker,
            scheduling_strategy=strategy,
            max_concurrency=2,  # `stop` is called while `run` waits
        ).remote()
        words = [*worker.arguments(), "--log", str(log)]
        given = {**environment, **worker.credentials.to_environment()}
        self._actors[worker.name] = _Actor(handle, handle.run.remote(words, given))

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers whose process, actor or machine has ended."""
        import ray

        running = {one.running: name for name, one in self._actors.items() if one.running}
        if not running:
            return {}
        over, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        found = {}
        for reference in over:
            found[running[reference]] = _end_of(reference)
            self._actors[running[reference]].running = None
        return found

    def stop(self, name: str) -> None:
        """Tell a worker to leave."""
        self._actors[name].handle.stop.remote()

    def close(self) -> None:
        """Tell all workers to leave, and give back what Ray has reserved."""
        import ray
        from ray.util import remove_placement_group

        if not self._connected:
            return
        left = [actor for actor in self._actors.values() if actor.running is not None]
        for actor in left:
            actor.handle.stop.remote()
        if left:
            ray.wait(
                [actor.running for actor in left], num_returns=len(left), timeout=_LEAVING_SECONDS
            )
        for actor in self._actors.values():
            with suppress(Exception):  # it has ended with its machine
                ray.kill(actor.handle)
        if self._group is not None:
            remove_placement_group(self._group)
        ray.shutdown()
        self._connected = False

    def _connect(self) -> None:
        import ray

        address = self._options.ray_address
        try:
            if address not in {"auto", _LOCAL}:
                _try(address)
            ray.init(
                address=None if address == _LOCAL else address,
                namespace="downpour",
                log_to_driver=False,
                configure_logging=False,
                include_dashboard=None if address != _LOCAL else False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            if address == "auto" and isinstance(error, ConnectionError):
                reason = "no Ray runs here; `ray start --head` starts one"
            raise LaunchError(f"ray_address = {address!r}: {reason}", asked_wrongly=True) from None
        self._connected = True
        self.manager_host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def _reserve(self, workers: int) -> None:
        """Reserve a place for each worker, spread over machines, or tell what is free."""
        import ray
        from ray.util import placement_group

        bundle = {"CPU": self._options.cpus_per_worker, "GPU": self._options.gpus_per_worker}
        needed = {kind: number for kind, number in bundle.items() if number}
        if not needed:
            return
        self._group = placement_group([needed] * workers, strategy="SPREAD")
        if not self._group.wait(self._options.ray_wait_seconds):
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            has = ", ".join(f"{free.get(kind, 0):g} {kind} free" for kind in needed)
            wants = ", ".join(f"{number * workers:g} {kind}" for kind, number in needed.items())
            raise LaunchError(f"{workers} workers need {wants}; Ray has {has}", asked_wrongly=True)


def _try(address: str) -> None:
    """Raise OSError if nothing listens at an address, at which Ray would try for minutes."""
    from downpour.rpc import parse_address

    place = parse_address(address, field="ray_address", default_port=_RAY_PORT)
    create_connection((place.host, place.port), _CONNECT_SECONDS).close()


def _end_of(reference: Any) -> Ended:
    import ray

    try:
        status, last_line = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Ended(None, str(error).strip().partition("\n")[0])
    return Ended(status, last_line)
