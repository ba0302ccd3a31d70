"""`rebalance`: shards in proportion to predicted speed, so that all end together (after S2C2).

The round is cut anew before it begins, and the k-th largest shard goes to the k-th fastest worker.
Which examples a worker trains then depends on how fast it is, and so does the model. Where there
are fewer workers than shards, equal shards balance by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from downpour.stragglers.base import Action, Option, Policy, Resize, RoundView
from downpour.stragglers.outlook import number
from downpour.stragglers.pairing import pair

OPTIONS: Mapping[str, Option] = {"bound": 4.0, "least": 0.05}


def _rebalance(view: RoundView) -> list[Action]:
    speeds = _speeds(view)
    order = sorted(view.idle, key=lambda name: -speeds.get(name, 0.0))
    sizes = _sizes(view, [speeds[name] for name in order]) if speeds else None
    now = tuple(task.samples for task in view.pending)
    if sizes is None or not _pays(view, now, sizes):
        return [*_pair_by_size(view, order)]
    tasks = zip(view.pending, sizes, strict=True)
    cut = tuple(replace(task, samples=samples) for task, samples in tasks)
    reason = f"cut by predicted speed: from {min(sizes)} to {max(sizes)} samples a shard"
    resize = Resize(samples=sizes, reason=reason)
    return [resize, *_pair_by_size(replace(view, pending=cut), order)]


def _pair_by_size(view: RoundView, order: Sequence[str]) -> list[Action]:
    biggest = tuple(sorted(view.pending, key=lambda task: (-task.samples, task.shard)))
    return [*pair(replace(view, pending=biggest), order)]


def _speeds(view: RoundView) -> dict[str, float]:
    """Return the predicted speed of each idle worker, bounded; none where nothing is predicted.

    A worker that nothing is predicted for counts as the middle one.
    """
    paces = [view.paces[name].q50 for name in view.idle if name in view.paces]
    usual = median(paces) if paces else 0.0
    if usual <= 0:
        return {}
    bound = max(number(view, OPTIONS, "bound"), 1.0)
    relative = {
        name: usual / max(view.paces[name].q50, usual * 1e-9) if name in view.paces else 1.0
        for name in view.idle
    }
    return {name: min(max(speed, 1 / bound), bound) for name, speed in relative.items()}


def _sizes(view: RoundView, speeds: Sequence[float]) -> tuple[int, ...] | None:
    """Return sizes in proportion to the fastest workers' speeds, by largest remainder."""
    total = sum(task.samples for task in view.pending)
    count = len(view.pending)
    whole = count == view.shards > 0 and total >= count
    if view.begun or not whole or len(speeds) - view.standbys < count:
        return None
    chosen = speeds[:count]
    # One sample is everybody's, so that no shard is empty.
    exact = [(total - count) * speed / sum(chosen) for speed in chosen]
    sizes = [1 + int(share) for share in exact]
    by_remainder = sorted(range(count), key=lambda place: (int(exact[place]) - exact[place], place))
    for place in by_remainder[: total - sum(sizes)]:
        sizes[place] += 1
    return tuple(sizes)


def _pays(view: RoundView, now: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether the sizes differ enough from those there are, whichever shard has which."""
    least = number(view, OPTIONS, "least")
    pairs = zip(sorted(now), sorted(sizes), strict=True)
    return any(abs(there - wanted) > least * max(there, 1) for there, wanted in pairs)


REBALANCE = Policy(
    decide=_rebalance,
    watches=True,
    preserves_bytes=False,
    cuts_rounds=True,
    options=OPTIONS,
    summary="shards in proportion to predicted speed",
)
