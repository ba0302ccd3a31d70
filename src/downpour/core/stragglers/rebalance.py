"""`rebalance`: cut shards in proportion to forecast speed, so that all end together (after S2C2).

The policy recuts the round before it begins, and gives the k-th largest shard to the k-th fastest
worker. So the examples in a shard depend on the workers' speeds, and so does the model. With fewer
workers than shards, equal shards balance on their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from downpour.core.stragglers.base import Action, Option, Policy, Resize, RoundView
from downpour.core.stragglers.outlook import number
from downpour.core.stragglers.pairing import pair

OPTIONS: Mapping[str, Option] = {"bound": 4.0, "least": 0.05}


def _rebalance(view: RoundView) -> list[Action]:
    speeds = _speeds(view)
    order = sorted(view.idle, key=lambda name: -speeds.get(name, 0.0))
    sizes = _sizes(view, [speeds[name] for name in order]) if speeds else None
    now = tuple(task.samples for task in view.pending)
    if sizes is None or not _pays(view, now, sizes):
        return [*_pair_by_size(view, order)]
    tasks = zip(view.pending, sizes, strict=True)
    # Immediate assignments must use the recut shards, which the view does not show.
    cut = tuple(replace(task, samples=samples) for task, samples in tasks)
    reason = f"cut by forecast speed: from {min(sizes)} to {max(sizes)} samples a shard"
    resize = Resize(samples=sizes, reason=reason)
    return [resize, *_pair_by_size(replace(view, pending=cut), order)]


def _pair_by_size(view: RoundView, order: Sequence[str]) -> list[Action]:
    biggest = tuple(sorted(view.pending, key=lambda task: (-task.samples, task.shard)))
    return [*pair(replace(view, pending=biggest), order)]


def _speeds(view: RoundView) -> dict[str, float]:
    """Return each idle worker's forecast speed over the median; empty without forecasts.

    A worker without a forecast counts as the median one.
    """
    paces = [view.paces[name].q50 for name in view.idle if name in view.paces]
    usual = median(paces) if paces else 0.0
    if usual <= 0:
        return {}
    # A forecast is one guess for a whole round. The bound limits the cost of a wrong guess.
    bound = max(number(view, OPTIONS, "bound"), 1.0)
    relative = {
        name: usual / max(view.paces[name].q50, usual * 1e-9) if name in view.paces else 1.0
        for name in view.idle
    }
    return {name: min(max(speed, 1 / bound), bound) for name, speed in relative.items()}


def _sizes(view: RoundView, speeds: Sequence[float]) -> tuple[int, ...] | None:
    """Return sizes in proportion to the fastest workers' speeds, by largest remainder.

    None if the round cannot be recut, or has more shards than idle workers.
    """
    total = sum(task.samples for task in view.pending)
    count = len(view.pending)
    # The pending shards in a view may be only the first few; a recut needs all of them.
    whole = count == view.shards > 0 and total >= count
    if view.begun or not whole or len(speeds) - view.standbys < count:
        return None
    chosen = speeds[:count]
    # Each shard gets one sample before we divide the rest, because none may be empty.
    exact = [(total - count) * speed / sum(chosen) for speed in chosen]
    sizes = [1 + int(share) for share in exact]
    by_remainder = sorted(range(count), key=lambda place: (int(exact[place]) - exact[place], place))
    for place in by_remainder[: total - sum(sizes)]:
        sizes[place] += 1
    return tuple(sizes)


def _pays(view: RoundView, now: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether the sizes differ enough from the present ones for a recut.

    We compare both in order of size, because recut shards are interchangeable.
    """
    least = number(view, OPTIONS, "least")
    pairs = zip(sorted(now), sorted(sizes), strict=True)
    return any(abs(there - wanted) > least * max(there, 1) for there, wanted in pairs)


REBALANCE = Policy(
    decide=_rebalance,
    watches=True,
    preserves_bytes=False,
    cuts_rounds=True,
    options=OPTIONS,
)
