"""Who trains what: the pairing that all policies share, and the policies that only pair.

A shard goes to its home, the worker that trained it last, if that is idle. The other shards go, in
order, to the worker that has been idle longest (docs/internals/architecture.md, "Policies"). If a
shard failed on a worker, it goes to another one, and waits while the others are busy. So if
everything fails at once on one worker, each shard loses one attempt, but the experiment continues.
A handed-over shard goes to its intended worker, which takes no other shard before. Standbys stay
idle until a shard fails; then they take it over.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, inf
from statistics import median

from downpour.core.modes import count_of
from downpour.core.stragglers.base import (
    ROUNDS_REMEMBERED,
    Action,
    Assignment,
    Close,
    PendingTask,
    Policy,
    RoundView,
)
from downpour.core.stragglers.outlook import Outlook, quantile


def pair(
    view: RoundView,
    order: Sequence[str] | None = None,
    pending: Sequence[PendingTask] | None = None,
) -> list[Assignment]:
    """Assign pending shards to idle workers: failed ones first, then in order.

    `order` has the idle workers to choose from, best first; None stands for all of them. It matters
    more than a shard's home if the shards differ in size. `pending` has the pending shards in
    another order than the view's.
    """
    # A worker that will continue a handed-over shard must be idle when that shard is pending.
    promised = _promised(view)
    idle = deque(name for name in (view.idle if order is None else order) if name not in promised)
    room = _room(view)
    assignments: list[Assignment] = []
    offered = view.pending if pending is None else pending
    homes = _at_home(view, offered, [*idle][:room], any_size=order is None)
    for task in sorted(offered, key=lambda task: _urgency(task, homes)):
        # If its intended worker has gone, or came back with other labels, any worker may continue
        # from the snapshot.
        meant = task.meant_for
        if meant is not None and meant in view.workers and view.may_train(meant, task.shard):
            if meant in view.idle and all(choice.worker != meant for choice in assignments):
                why = f"handed over after {task.saved:.0%}: goes on from there"
                assignments.append(Assignment(shard=task.shard, worker=meant, reason=why))
            continue
        if not idle:
            break
        if len(assignments) >= room and not task.failed_on:
            continue
        home = homes.get(task.shard)
        worker = home if home in idle else _choose(view, task, idle)
        if worker is not None:
            idle.remove(worker)
            assignments.append(
                Assignment(shard=task.shard, worker=worker, reason=_reason(task, worker))
            )
    return assignments


def pair_among(view: RoundView, order: Sequence[str], reason: str = "") -> list[Assignment]:
    """Assign pending shards to some idle workers, or to any if otherwise no worker would train.

    `order` has the idle workers to choose from, best first. `reason` says why the policy leaves the
    others out; each assignment's reason ends with it.
    """
    chosen = pair(view, order)
    if not chosen and len(view.idle) == len(view.workers):
        return pair(view)
    if not reason:
        return chosen
    return [replace(choice, reason=f"{choice.reason}; {reason}") for choice in chosen]


def left_idle(view: RoundView, assignments: Sequence[Assignment]) -> list[str]:
    """Return the idle workers that get no new shard and await no hand-over."""
    taken = _promised(view) | {choice.worker for choice in assignments}
    return [name for name in view.idle if name not in taken]


def _room(view: RoundView) -> int:
    """Return how many idle workers may get a shard that has not failed before.

    If all workers are idle, at least one may: a worker may have left, so that only standbys remain.
    """
    all_are_idle = len(view.idle) == len(view.workers)
    return max(len(view.idle) - view.standbys, int(all_are_idle))


# Shards of a random split differ by one example, which is a few percent of a tiny shard.
_ALIKE = 1.05


def _at_home(
    view: RoundView, pending: Iterable[PendingTask], idle: Sequence[str], *, any_size: bool
) -> dict[int, str]:
    """Return the shards that go to their homes, at most one for each idle worker."""
    fresh = [task for task in pending if not task.failed_on and task.meant_for is None]
    sizes = [task.samples for task in fresh]
    if not fresh or not (any_size or max(sizes) <= _ALIKE * min(sizes)):
        return {}
    # With fewer shards than workers, the best workers train.
    chosen, found = {*idle[: len(fresh)]}, dict[int, str]()
    for task in fresh:
        if task.home in chosen and view.may_train(task.home, task.shard):
            chosen.remove(task.home)
            found[task.shard] = task.home
    return found


def _urgency(task: PendingTask, homes: Collection[int]) -> tuple[bool, bool, bool]:
    # False sorts first. A shard that failed has lost the time of an attempt, so it comes before
    # shards that have not begun.
    return task.meant_for is None, not task.failed_on, task.shard not in homes


def _promised(view: RoundView) -> set[str]:
    """Return the workers that will continue a shard whose hand-over has begun or ended."""
    meant = [(task.shard, task.meant_for) for task in view.pending]
    if view.moving:
        meant += ((task.shard, task.meant_for) for task in view.running)
    return {name for shard, name in meant if name is not None and view.may_train(name, shard)}


def _choose(view: RoundView, task: PendingTask, waiting: Iterable[str]) -> str | None:
    """Return the idle worker for a shard, or None if it should wait for a busy worker."""
    untried = (name for name in waiting if name not in task.failed_on)
    first = view.first_fit(task.shard, untried)
    if first is not None:
        return first
    idle = [name for name in waiting if view.may_train(name, task.shard)]
    back = next((name for name in idle if name in task.lost_on), None)
    if back is not None:
        return back
    able = (name for name in view.workers if view.may_train(name, task.shard))
    return idle[0] if idle and all(name in task.failed_on for name in able) else None


def _reason(task: PendingTask, worker: str) -> str:
    if not task.failed_on and worker == task.home:
        return "its shard of the round before"
    if not task.failed_on:
        return "next shard in order for the worker idle longest"
    tried = ", ".join(dict.fromkeys(task.failed_on))
    if worker in task.lost_on:
        return f"tried again on {worker}, which is back after it was lost"
    if worker in task.failed_on:
        return f"tried again, although it failed on all workers here ({tried})"
    return f"tried again elsewhere: failed on {tried}"


# Slow workers have less than this share of the fastest worker's speed. We assume that a faster
# worker is useful: two of its shards take no longer than a shard that waits for its turn.
SLOW = 0.5


@dataclass(frozen=True)
class Prospects:
    """How the round continues without a slow worker.

    `free_in` has the seconds until each fast worker is free, and `waiting` shards wait for one. A
    move takes `move_seconds`; speeds are in samples per second.
    """

    fastest: float
    free_in: tuple[float, ...]
    waiting: int
    move_seconds: float

    @cached_property
    def soon(self) -> float:
        """The seconds until the first fast worker is free."""
        return min(self.free_in)

    def loss(self, samples: int, speed: float, step_seconds: float) -> float:
        """Return how much later the round ends if a slow worker begins a shard now.

        The loss is a share of the seconds until the shard would end without that worker. If the
        slow worker helps, it is below zero.
        """
        alone = samples / speed
        quick = samples / self.fastest
        without = self.soon + quick
        if alone <= without:
            return alone / without - 1
        cost = step_seconds + self.move_seconds
        share = quick / alone
        if self.waiting > 1:
            return (cost - self.soon * share) / without
        # No other shard waits, so the busy workers will exchange their shards and end together. No
        # shard ends sooner than a fast worker would train it.
        level = (quick + sum(self.free_in)) / (len(self.free_in) + share)
        end = max(without, *self.free_in)
        return (max(level, quick, *self.free_in) + cost) / end - 1


def waiting_shards(view: RoundView) -> int:
    """Return how many shards have no worker; `pending` is empty while no worker is idle."""
    return view.shards - len({task.shard for task in view.running}) - len(view.published)


def hindrances(
    view: RoundView, outlook: Outlook, assignments: Sequence[Assignment]
) -> dict[str, float]:
    """Return the slow workers that make the round end no sooner, with the share of time lost.

    A shard stays assigned if it failed, was handed over, or may train on no fast worker.

    A shard on a slow worker moves to a fast worker as soon as one is idle. The fast worker waits
    for the slow worker's next step, and for the move. If the slow worker trains less by then than
    this wait costs, the round ends sooner if the shard waits for a fast worker. Without a measured
    speed, as in the first round, a worker gets a shard like any other.
    """
    if not assignments:
        return {}
    speeds = {name: speed for name in view.speeds if (speed := outlook.speed(name))}
    fastest = max((speed for speed in speeds.values() if speed < inf), default=0.0)
    fast = {name for name, speed in speeds.items() if speed >= SLOW * fastest}
    slow = [choice for choice in assignments if choice.worker in speeds.keys() - fast]
    if not slow:
        return {}
    offers = {task.shard: task for task in view.pending}
    busy = [outlook.left_seconds(task) for task in view.running if task.worker in fast]
    busy += [
        outlook.seconds_for(offers[choice.shard].samples, choice.worker)
        for choice in assignments
        if choice.worker in fast
    ]
    free_in = tuple(seconds for seconds in busy if seconds is not None)
    if not free_in:
        return {}
    waiting = waiting_shards(view) - len(assignments) + len(slow)
    prospects = Prospects(fastest, free_in, waiting, outlook.move_seconds)
    losses = {
        choice.worker: prospects.loss(
            offers[choice.shard].samples, speeds[choice.worker], outlook.step_seconds(choice.worker)
        )
        for choice in slow
        if _may_wait(view, offers[choice.shard], fast)
    }
    return {name: loss for name, loss in losses.items() if loss >= 0}


def _may_wait(view: RoundView, task: PendingTask, fast: set[str]) -> bool:
    fresh = not task.failed_on and task.meant_for is None
    return fresh and any(view.may_train(name, task.shard) for name in fast)


WAIT = Policy(decide=lambda view: [*pair(view)])


def _drop(view: RoundView) -> list[Action]:
    """End the round with the fastest k of n shards (k-sync, Dutta et al. 2018).

    The scheduler tells late workers to stop. The gradient of their shards is lost for this round.
    """
    needed = count_of(view.number("k"), view.shards)
    if needed <= len(view.published) < view.shards:
        late = view.shards - len(view.published)
        reason = f"{len(view.published)} of {view.shards} updates are there; {late} dropped"
        return [Close(reason=reason)]
    return [*pair(view)]


DROP = Policy(decide=_drop, watches=True, preserves_bytes=False, options={"k": 0.9})


def _blacklist(view: RoundView) -> list[Action]:
    """Give no shards to workers that were slow in the last rounds.

    The policy leaves out only the slowest workers, and at most a share of all workers, so that the
    others can do the work. Slow workers still get shards if no other worker is present. Once left
    out, a worker stays out: it trains nothing that could show that it has recovered.
    """
    out = _left_out(view)
    fit = [name for name in view.idle if name not in out]
    why = ", ".join(f"{name} {out[name]:.1f} times the median" for name in sorted(out))
    return [*pair_among(view, fit, f"left out for being slow: {why}" if why else "")]


def _left_out(view: RoundView) -> dict[str, float]:
    """Return the workers to leave out, slowest first, and the median slowness of each."""
    rounds = max(int(view.number("rounds")), 1)
    limit = view.number("slowness")
    slow: dict[str, float] = {}
    for name in view.workers:
        history = view.history.get(name)
        latest = history.slowness[-rounds:] if history is not None else ()
        # We use the median of all these rounds, because one slow round doesn't make a slow worker.
        if len(latest) == rounds and median(latest) > limit:
            slow[name] = median(latest)
    room = int(view.number("at_most") * len(view.workers))
    # If two are equally slow, names decide: a policy must not depend on a dictionary's order.
    return dict(sorted(slow.items(), key=lambda entry: (-entry[1], entry[0]))[:room])


BLACKLIST = Policy(
    decide=_blacklist,
    watches=True,
    options={"slowness": 1.5, "rounds": 5, "at_most": 0.34},
    # The scheduler remembers no more rounds, so with a larger value, no worker would be left out.
    largest={"rounds": ROUNDS_REMEMBERED},
)


_REFERENCE = 0.9
_PARTS = 1000  # rounds a share, so that it is short in writing


def _dylu(view: RoundView) -> list[Action]:
    """Let a slow worker train fewer steps of its shard, so that all end together.

    Dynamic local updates (Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling",
    sec. 5): of H steps, a worker of speed v trains floor(H v / v_ref). In the paper, v_ref is the
    speed of the fastest worker. Here it is the 90th percentile of the speeds, and no worker trains
    more than H steps. So one wrong measurement does not shorten the tasks of all other workers. No
    worker trains the omitted steps in that round. Each epoch omits other examples, because it has
    its own order.

    Speeds combine the forecast and the last heartbeats (`Outlook.speed`).
    """
    shares = _shares(view)
    actions: list[Action] = []
    for choice in pair(view):
        share = shares[choice.worker]
        why = "" if share == 1 else f"; {share:.0%} of its steps, by its speed"
        actions.append(replace(choice, share=share, reason=f"{choice.reason}{why}"))
    return actions


def _shares(view: RoundView) -> dict[str, float]:
    """Return each idle worker's share of a task; the whole task if its speed is unknown."""
    outlook = Outlook(view)
    known = {name: outlook.speed(name) for name in view.workers}
    speeds = {name: speed for name, speed in known.items() if speed}
    reference, least = quantile(speeds.values(), _REFERENCE), view.number("least")
    return {
        name: min(max(floor(_PARTS * speeds[name] / reference) / _PARTS, least, 1 / _PARTS), 1.0)
        if name in speeds
        else 1.0
        for name in view.idle
    }


DYLU = Policy(
    decide=_dylu, watches=True, preserves_bytes=False, shortens=True, options={"least": 0.1}
)
