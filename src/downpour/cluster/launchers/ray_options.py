"""Options for Ray: the cluster, and the resources to reserve for a worker."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from downpour.base.arguments import checked_calls
from downpour.base.errors import SpecError
from downpour.cluster.launchers.kinds import checked_place, option, place


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The Ray cluster, and the resources that it reserves for a worker.

    `ray_address` is HOST:PORT, `auto` (the one that runs here, or that RAY_ADDRESS names) or
    `local` (one that ends with the call). Ray has `ray_wait_seconds` to find places for the
    workers, so it has time to add machines if it scales automatically. Workers run only on nodes
    with the labels that `place` names, KEY=VALUE each.

    Raises:
        SpecError: a number is negative, or a place is invalid.
    """

    ray_address: str = option(
        "auto",
        "The Ray cluster; auto: the one that runs here, or the one that RAY_ADDRESS "
        "names; local: start one for this command.",
        "HOST:PORT|auto|local",
    )
    cpus_per_worker: float = option(1.0, "Processors that Ray reserves for a worker.", "X")
    gpus_per_worker: float = option(0.0, "Accelerators that Ray reserves for a worker.", "X")
    ray_wait_seconds: float = option(
        5.0, "How long to wait until Ray has room for the workers.", "X"
    )

    place: tuple[str, ...] = place()

    def __post_init__(self) -> None:
        """Refuse invalid options before the first request to Ray."""
        for name in ("cpus_per_worker", "gpus_per_worker", "ray_wait_seconds"):
            if not 0 <= getattr(self, name) < inf:
                raise SpecError(name, getattr(self, name), "must be a number, at least 0")
        checked_place(self.place)
        if self.place and not (self.cpus_per_worker or self.gpus_per_worker):
            # Without a reservation, Ray does not report an actor that fits on no node.
            accepted = "needs cpus_per_worker or gpus_per_worker above 0, or Ray reserves nothing"
            raise SpecError("place", self.place[0], accepted)
