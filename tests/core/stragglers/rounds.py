"""Rounds in a few words, for the stories that policies are tested with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from downpour.base.values import Forecast
from downpour.core.spec_fields import Option
from downpour.core.stragglers.base import (
    Action,
    PendingTask,
    Policy,
    RoundView,
    RunningTask,
    UpdateTimes,
    WorkerHistory,
)


def sure(seconds: float) -> Forecast:
    """Return a forecast that leaves little open."""
    return Forecast(q10=seconds * 0.95, q50=seconds, q90=seconds * 1.05, q98=seconds * 1.1)


def running(
    worker: str, shard: int, done: float, seconds: float = 5.0, **more: float | str
) -> RunningTask:
    """Return a shard of a hundred samples that a worker has trained for so long."""
    task = RunningTask(shard=shard, samples=100, worker=worker, elapsed_seconds=seconds, done=done)
    return with_(task, more)


def with_(task: RunningTask, more: Mapping[str, float | str]) -> RunningTask:
    """Return the same attempt, seen otherwise."""
    known = {name: getattr(task, name) for name in RunningTask.__slots__}
    return RunningTask(**{**known, **more})


# Four alike take ten seconds for a shard; dot would take twenty-five.
LATE = [
    *(running(worker, shard, 0.5) for shard, worker in enumerate(("ann", "bob", "cid"))),
    running("dot", 3, 0.2),
]
FAST = dict.fromkeys(("ann", "bob", "cid", "eve"), 10.0)


def round_of(
    tasks: Sequence[RunningTask] = (),
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
) -> RoundView:
    """Return a round: what runs, who is idle, what took how long, and how long who will take."""
    free = tuple(idle.split())
    first = max((task.shard for task in tasks), default=-1) + 1
    return RoundView(
        round=3,
        at_seconds=100.0,
        pending=tuple(PendingTask(shard=first + n, samples=100) for n in range(pending)),
        idle=free,
        workers=(*(task.worker for task in tasks), *free),
        shards=len({task.shard for task in tasks}) + pending + len(published),
        begun=begun,
        running=tuple(tasks),
        published=UpdateTimes((100, seconds) for seconds in published),
        paces={name: sure(seconds / 100) for name, seconds in (paces or {}).items()},
        history={
            name: WorkerHistory(slowness=(times,) * 8) for name, times in (slowness or {}).items()
        },
        standbys=standbys,
        elapsed_seconds=elapsed,
        requested=requested,
        options=options or {},
    )


def actions_of(policy: Policy, view: RoundView) -> list[str]:
    """Return what a policy asks for, in a few words each, without the reasons."""
    return [_words(action) for action in policy.decide(view)]


def _words(action: Action) -> str:
    shard, worker = getattr(action, "shard", ""), getattr(action, "worker", "")
    meant_for = getattr(action, "meant_for", "")
    return " ".join(str(w) for w in (type(action).__name__, shard, worker, meant_for) if w != "")
