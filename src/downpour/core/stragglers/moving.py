"""Policies that move work by forecasts: between shards, or to standbys."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import median

from downpour.core.stragglers.base import (
    Action,
    Assignment,
    Policy,
    Resize,
    RoundView,
    RunningTask,
    Withdrawal,
    WorkerRequest,
)
from downpour.core.stragglers.outlook import Outlook, expected, in_words
from downpour.core.stragglers.pairing import left_idle, pair


def _rebalance(view: RoundView) -> list[Action]:
    """Cut shards in proportion to forecast speed, so that all end together (after S2C2).

    The policy recuts the round before it begins, and gives the k-th largest shard to the k-th
    fastest worker. So the examples in a shard depend on the workers' speeds, and so does the model.
    With fewer workers than shards, equal shards balance on their own.
    """
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
    bound = max(view.number("bound"), 1.0)
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
    whole = count == view.shards and total >= count
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
    least = view.number("least")
    pairs = zip(sorted(now), sorted(sizes), strict=True)
    return any(abs(there - wanted) > least * there for there, wanted in pairs)


REBALANCE = Policy(
    decide=_rebalance,
    watches=True,
    preserves_bytes=False,
    cuts_rounds=True,
    options={"bound": 4.0, "least": 0.05},
)


def _replace(view: RoundView) -> list[Action]:
    """Pass over forecast stragglers, and replace them with standbys (DPro-SM).

    At assignment, a worker with a slow forecast comes last, so that it is the one that stands by.
    During the round, a shard that will be late goes to a standby that would train all of it sooner.
    Its former worker then stands by. If no standby is left, the policy requests one more worker.
    """
    slow = _forecast_stragglers(view)
    order = sorted(view.idle, key=lambda name: slow.get(name, 0.0))
    assignments = pair(view, order)
    # A slow worker gets a shard only if no other one is left.
    used = [choice.worker for choice in assignments if choice.worker in slow]
    if used:
        name = used[0]
        reason = f"no standby for {name}, forecast {slow[name]:.1f} times the median"
        return [*assignments, *_ask(view, reason)]
    if len(view.pending) > len(assignments):
        return [*assignments]
    return [*assignments, *_replacements(view, left_idle(view, assignments))]


def _forecast_stragglers(view: RoundView) -> dict[str, float]:
    """Return each straggler's forecast, divided by the median forecast."""
    usual = median(pace.q50 for pace in view.paces.values()) if view.paces else 0.0
    if usual <= 0:
        return {}
    limit = view.number("slowness")
    times = {name: pace.q50 / usual for name, pace in view.paces.items()}
    return {name: slowness for name, slowness in times.items() if slowness > limit}


def _replacements(view: RoundView, standbys: list[str]) -> list[Action]:
    """Withdraw late shards, the latest first, and assign them to standbys, from their beginning."""
    outlook = Outlook(view)
    typical = outlook.typical_seconds or inf
    free = outlook.fastest_first(standbys)
    actions: list[Action] = []
    for left, task in _late(view, outlook, typical):
        standby = view.first_fit(task.shard, free)
        if standby is None:
            total = expected(task.elapsed_seconds + left)
            reason = f"no standby: {task.worker} {total}, median {typical:.1f} s"
            return [*actions, *_ask(view, reason)]
        # We count the whole shard, as in the paper, but the new worker uses any snapshot.
        anew = outlook.seconds_for(task.samples, standby)
        if anew < left:
            reason = (
                f"{task.worker} {expected(task.elapsed_seconds + left)}, median {typical:.1f} s; "
                f"{standby} takes {anew:.1f} s, {in_words(left)}"
            )
            free.remove(standby)
            actions += [
                Withdrawal(shard=task.shard, worker=task.worker, reason=reason),
                Assignment(shard=task.shard, worker=standby, reason=reason),
            ]
    return actions


def _late(
    view: RoundView, outlook: Outlook, typical_seconds: float
) -> list[tuple[float, RunningTask]]:
    """Return the attempts that will take too long, with the seconds left, the latest first.

    After `tries` attempts, the policy leaves a shard alone. Such a shard is slow on every worker:
    the policy would take it from all of them, and it would never end.
    """
    limit = view.number("slowness") * typical_seconds
    tries = view.number("tries")
    return [
        (left, task)
        for left, task in outlook.latest_first(view.running)
        if task.copies == 1 and task.attempt + 1 < tries
        if outlook.may_pay(left) and task.elapsed_seconds + left > limit
    ]


def _ask(view: RoundView, reason: str) -> list[WorkerRequest]:
    # We request one worker at a time: it takes seconds to start, and may be enough.
    return [] if view.requested else [WorkerRequest(reason=reason)]


REPLACE = Policy(decide=_replace, watches=True, options={"slowness": 1.5, "tries": 3})
