"""Rounds in a few words, for the stories that policies are tested with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from downpour.base.values import Forecast
from downpour.core.spec_fields import Option
from downpour.core.stragglers import base


def sure(seconds: float) -> Forecast:
    """Return a forecast that leaves little open."""
    return Forecast(q10=seconds * 0.95, q50=seconds, q90=seconds * 1.05, q98=seconds * 1.1)


def running(
    worker: str, shard: int, done: float, seconds: float = 5.0, **more: Any
) -> base.RunningTask:
    """Return a shard of a hundred samples that a worker has trained for so long."""
    task = base.RunningTask(
        shard=shard, samples=100, worker=worker, elapsed_seconds=seconds, done=done
    )
    return replace(task, **more)


def measured(seconds: float, steps: int = 100) -> base.Speed:
    """Return the speed of a worker that takes so long for a shard of a hundred samples."""
    return base.Speed(
        samples_per_second=100 / seconds, share=1.0, variance=0.0, step_seconds=seconds / steps
    )


# Four alike take ten seconds for a shard; dot would take twenty-five.
LATE = [
    *(running(worker, shard, 0.5) for shard, worker in enumerate(("ann", "bob", "cid"))),
    running("dot", 3, 0.2),
]
FAST = dict.fromkeys(("ann", "bob", "cid", "eve"), 10.0)


def round_of(
    tasks: Sequence[base.RunningTask] = (),
    *,
    idle: str = "",
    pending: int = 0,
    published: Sequence[float] = (),
    paces: Mapping[str, float] | None = None,
    slowness: Mapping[str, float] | None = None,
    standbys: int = 0,
    begun: bool = True,
    elapsed: float = 5.0,
    requested: int = 0,
    options: Mapping[str, Option] | None = None,
) -> base.RoundView:
    """Return a round: what runs, who is idle, what took how long, and how long who will take."""
    free = tuple(idle.split())
    first = max((task.shard for task in tasks), default=-1) + 1
    return base.RoundView(
        round=3,
        at_seconds=100.0,
        pending=tuple(base.PendingTask(shard=first + n, samples=100) for n in range(pending)),
        idle=free,
        workers=(*(task.worker for task in tasks), *free),
        shards=len({task.shard for task in tasks}) + pending + len(published),
        begun=begun,
        running=tuple(tasks),
        published=base.UpdateTimes((100, seconds) for seconds in published),
        paces={name: sure(seconds / 100) for name, seconds in (paces or {}).items()},
        history={
            name: base.WorkerHistory(slowness=(times,) * 8)
            for name, times in (slowness or {}).items()
        },
        standbys=standbys,
        elapsed_seconds=elapsed,
        requested=requested,
        options=options or {},
    )


def seen_by(policy: str, view: base.RoundView) -> base.RoundView:
    """Return a view with all options of a policy, as the scheduler shows it."""
    return replace(view, options={**base.POLICIES[policy].options, **view.options})


def decide(policy: str, view: base.RoundView) -> Sequence[base.Action]:
    """Return what a policy asks for."""
    return base.POLICIES[policy].decide(seen_by(policy, view))


def standing_by(view: base.RoundView) -> Mapping[str, str]:
    """Return what `handoff` says of the workers that stand by."""
    lines = base.POLICIES["handoff"].standing_by
    assert lines is not None
    return lines(seen_by("handoff", view))


def actions_of(policy: str, view: base.RoundView) -> list[str]:
    """Return what a policy asks for, in a few words each, without the reasons."""
    return [_words(action) for action in decide(policy, view)]


def _words(action: base.Action) -> str:
    shard, worker = getattr(action, "shard", ""), getattr(action, "worker", "")
    meant_for = getattr(action, "meant_for", "")
    return " ".join(str(w) for w in (type(action).__name__, shard, worker, meant_for) if w != "")
