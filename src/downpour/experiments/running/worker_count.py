"""Chooses the number of workers if the user gave none.

On this machine, we start one for each shard, but no more than one for each accelerator, or, without
any, than its cores can run at once. Further workers would wait for each other, and each takes the
memory of a process with torch. If the spec
has no number of shards, each worker gets one. `docs/results/more-workers.md` has the measured
seconds behind this rule. Elsewhere Downpour does not know the cores, and users should ask for a
hundred jobs themselves.
"""

from __future__ import annotations

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.host.cores import usable_cores
from downpour.learning.devices import devices_for

_ELSEWHERE_MAX = 4


def workers_for(spec: Spec, workers: int | None = None, *, is_here: bool = True) -> int:
    """Return how many workers to start: `workers`, or a default that fits spec and machine.

    Raises:
        SpecError: `workers` is not a whole number of at least 1.
    """
    if workers is None:
        room = _room_here(spec) if is_here else _ELSEWHERE_MAX
        return (room if spec.shards is None else min(spec.shards, room)) + spec.standbys
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise SpecError("workers", workers, "must be a whole number, at least 1")
    return workers


def explained(spec: Spec, *, is_here: bool) -> str:
    """Say how many workers start if the user names no number, and why."""
    workers = workers_for(spec, is_here=is_here)
    if workers - spec.standbys == spec.shards:
        why = "one a shard"
    else:
        why = f"for {_found(spec)}" if is_here else "the default"
    also = f", {spec.standbys} of them on standby" if spec.standbys else ""
    return f"{workers} worker{'s' * (workers != 1)}, {why}{also}; --workers takes another number"


def _room_here(spec: Spec) -> int:
    """Return how many workers this machine's accelerators or cores can run at once.

    We measure `inside = "auto"` later, for the cores that a worker has.
    """
    return _cards(spec) or max(1, usable_cores() // (spec.threads * spec.inside.processes))


def _cards(spec: Spec) -> int:
    """Return how many accelerators serve the spec; processes that share a batch need cores."""
    shares_batches = spec.inside.processes > 1
    return 0 if shares_batches else devices_for(spec.device).cards(spec.device)


def _found(spec: Spec) -> str:
    if cards := _cards(spec):
        return "one accelerator" if cards == 1 else f"{cards} accelerators"
    cores = usable_cores()
    return "one core" if cores == 1 else f"{cores} cores"
