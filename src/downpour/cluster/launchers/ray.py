"""Runs workers as actors of a Ray cluster, and the manager where the command runs.

Ray chooses the machines by their free processors and accelerators, and adds machines if it scales
automatically. An actor holds its worker as a separate process, which ends with the actor. Ray
transfers an actor's class and arguments; parameters go through the shared directory.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from downpour.base.errors import LaunchError, require
from downpour.base.names import AUTO, CPU, Device
from downpour.base.values import merged
from downpour.cluster.launchers import Ended, Launcher, LauncherKind, LaunchPlan, ray_nodes
from downpour.cluster.launchers.cluster import PlacedCluster
from downpour.cluster.launchers.ray_nodes import RayOptions
from downpour.cluster.options import WorkerOptions
from downpour.host.process import kept_handlers

_LOCAL = "local"
_OF_RAY = {"cuda", "xpu"}
"""The devices that Ray reserves as GPUs."""
_LOOK_SECONDS = 0.05
_LEAVING_SECONDS = 10.0
"""A leaving worker saves its task and unregisters."""


def on_ray(options: RayOptions | None = None) -> Launcher:
    """Return a launcher that uses Ray, for `downpour.run(spec, on=on_ray(options))`."""
    return lambda plan: PlacedCluster(plan, RayEngine(options or RayOptions()))


@dataclass(slots=True)
class _Place:
    """A worker's reservation, its actor, the actor's future results, and the node last seen."""

    group: Any = None
    handle: Any = None
    running: Any = None
    where: Any = None
    node: str = ""


class RayEngine:
    """Starts each worker in an actor with its own placement group.

    Ray never restarts these actors. The launcher replaces a worker as soon as it sees that the
    worker's node is gone. Ray sees that later, and must not start a second worker then.
    """

    def __init__(self, options: RayOptions) -> None:
        """Raises MissingPackage if Ray is not installed."""
        require("--on ray", "ray")
        self._options = options
        bundle = {"CPU": options.cpus_per_worker, "GPU": options.gpus_per_worker}
        self._bundle = {kind: number for kind, number in bundle.items() if number}
        self._places: dict[str, _Place] = {}
        self._nodes = ray_nodes.NodeWatch()
        self._connected = False
        self.manager_host = "127.0.0.1"

    def check(self, plan: LaunchPlan) -> None:
        """Connect to Ray, and reserve the resources that the workers need."""
        if Device.of(plan.device).kind in _OF_RAY and not self._options.gpus_per_worker:
            reason = f"gpus_per_worker = 0.0: must be above 0 with device = {plan.device}"
            raise LaunchError(reason, asked_wrongly=True)
        self._connect()
        try:
            self._reserve_all(plan)
        except BaseException:
            self.close()
            raise

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Submit an actor with a worker; Ray starts it as soon as it has room."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = self._places.setdefault(worker.name, _Place())
        where: dict[str, Any] = {"scheduling_strategy": "SPREAD", "label_selector": self._allowed()}
        if self._bundle:
            place.group = place.group or self._reserve()
            where = {"scheduling_strategy": PlacementGroupSchedulingStrategy(place.group, 0)}
        kind: Any = ray.remote(ray_nodes.WorkerProcess)
        actor = kind.options(
            num_cpus=self._options.cpus_per_worker,
            num_gpus=self._options.gpus_per_worker,
            max_concurrency=2,  # `stop` is called while `run` waits
            **where,
        )
        try:
            place.handle = actor.remote()
        except ray.exceptions.RayError as error:  # its head restarts right now; `ended` will say so
            raise LaunchError(f"Ray starts no actor: {error}") from None
        # Other users' actors may have reserved the accelerators of the node.
        reserves = worker.device != AUTO or self._options.gpus_per_worker
        labels = merged(worker.labels, self._options.place)
        worker = replace(worker, place=0, labels=labels, device=worker.device if reserves else CPU)
        words = [*worker.arguments(), "--log", str(log)]
        given = {**environment, **worker.credentials.to_environment()}
        place.where = place.handle.node.remote()
        place.running = place.handle.run.remote(words, given)

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers whose process, actor or node has ended."""
        import ray

        self._give_up_lost()
        running = {place.running: name for name, place in self._running().items()}
        if not running:
            return {}
        over, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
        self._refuse_forgotten(when=over)
        found = {}
        for reference in over:
            name = running[reference]
            found[name] = _end_of(reference)
            self._places[name].running = None
            self._end(self._places[name], keep_group=found[name].status != 0)
        return found

    def stop(self, name: str) -> None:
        """Tell a worker to leave."""
        self._places[name].handle.stop.remote()

    def close(self) -> None:
        """Tell all workers to leave, and release everything that Ray has reserved."""
        import ray

        if not self._connected:
            return
        left = self._running().values()
        for place in left:
            place.handle.stop.remote()
        if left:
            ray.wait(
                [place.running for place in left], num_returns=len(left), timeout=_LEAVING_SECONDS
            )
        for place in self._places.values():
            self._end(place, keep_group=False)
        self._nodes.close()
        ray.shutdown()
        self._connected = False

    def _running(self) -> dict[str, _Place]:
        return {name: place for name, place in self._places.items() if place.running is not None}

    def _give_up_lost(self) -> None:
        """End the actors of nodes that are gone, which also ends their `run`."""
        import ray

        unknown = [place for place in self._running().values() if place.where is not None]
        for place in unknown:
            if ray.wait([place.where], timeout=0)[0]:
                with suppress(ray.exceptions.RayError):  # `run` reports it, too
                    place.node = ray.get(place.where)
                place.where = None
        new = {place.node for place in unknown} - self._nodes.watched - {""}
        self._refuse_forgotten(when=new)
        if new:
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
            self._nodes.watch(node for node in nodes if node["NodeID"] in new)
        lost = self._nodes.look()
        self._refuse_forgotten(when=lost)
        for place in self._places.values():
            if place.node in lost:
                self._end(place, keep_group=False)

    def _end(self, place: _Place, *, keep_group: bool) -> None:
        """End a worker's actor, and release its reservation unless `keep_group` is true."""
        import ray
        from ray.util import remove_placement_group

        if place.handle is not None:
            ray.kill(place.handle)
        if place.group is not None and not keep_group:
            with suppress(ray.exceptions.RayError):  # a head that has restarted reserves nothing
                remove_placement_group(place.group)
            place.group = None

    def _refuse_forgotten(self, when: Collection[object]) -> None:
        """If there is news, check that Ray still knows this run; the check costs a request."""
        try:
            if when:
                ray_nodes.refuse_forgotten()
        except ConnectionError as error:
            raise LaunchError(f"ray_address = {self._options.ray_address!r}: {error}") from None

    def _connect(self) -> None:
        import ray

        address = self._options.ray_address
        try:
            if address != _LOCAL:
                ray_nodes.reach(address)
            with kept_handlers():  # or SIGTERM would end the command with 15 and a stack trace
                ray.init(
                    address=None if address == _LOCAL else address,
                    namespace="downpour",
                    log_to_driver=False,
                    configure_logging=False,
                    include_dashboard=None if address != _LOCAL else False,
                )
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise LaunchError(f"ray_address = {address!r}: {reason}", asked_wrongly=True) from None
        self._connected = True
        self.manager_host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def _reserve_all(self, plan: LaunchPlan) -> None:
        """Reserve a place for each of the plan's workers; an error says how many Ray has."""
        from ray.util import placement_group_table

        for number in range(1, plan.workers + 1) if self._bundle else ():
            self._places[plan.worker(number, "").name] = _Place(self._reserve())
        place = self._options.place
        deadline = time.monotonic() + self._options.ray_wait_seconds
        waiting = [place.group for place in self._places.values()]
        # We look ourselves, because Ray can only wait for whole seconds.
        while waiting := [
            group for group in waiting if placement_group_table(group)["state"] != "CREATED"
        ]:
            if time.monotonic() >= deadline:
                wants = (f"{n * plan.workers:g} {kind}" for kind, n in self._bundle.items())
                where = f" on nodes with {' and '.join(place)}" if place else ""
                there = f"Ray has room for {plan.workers - len(waiting)} of them"
                reason = f"{plan.workers} workers need {', '.join(wants)}{where}; {there}"
                raise LaunchError(reason, asked_wrongly=True)
            time.sleep(_LOOK_SECONDS)

    def _reserve(self) -> Any:
        """Ask for a worker's place; Ray takes it where the largest share is free."""
        from ray.util import placement_group

        return placement_group([self._bundle], bundle_label_selector=[self._allowed()])

    def _allowed(self) -> dict[str, str]:
        """Return which nodes Ray may choose: by the user's labels, without nodes that are gone."""
        labels = dict(label.split("=", 1) for label in self._options.place)
        # Until Ray knows that a node is gone, it would choose that node, too.
        gone = ",".join(sorted(self._nodes.gone))
        return labels | ({"ray.io/node-id": f"!in({gone})"} if gone else {})


def _end_of(reference: Any) -> Ended:
    import ray

    try:
        status, last_line = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Ended(None, str(error).strip().partition("\n")[0])
    return Ended(status, last_line)


KIND = LauncherKind(
    title="Ray", options=RayOptions, make=on_ray, labels=lambda options: [options.place]
)
