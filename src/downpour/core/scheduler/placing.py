"""Decides which workers may train, by the labels that a spec and its shards need.

A worker without a label that the spec `needs` gets no task of the experiment. A worker without a
label that a shard needs (`shard_needs`) is barred only from that shard. Among idle workers, the
ones with most of the labels that the spec `prefers` come first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from downpour.base.labels import missing
from downpour.core.scheduler import queue
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import Round
from downpour.core.scheduler.state import SchedulerState

_NAMED = 4
# A worker that can train the experiment may be starting, which takes seconds.
_UNFIT_SECONDS = 30.0


def set_aside(state: SchedulerState, experiment: Experiment) -> None:
    """Exclude idle workers from the experiment if they lack a label that all shards need."""
    needs = experiment.spec.needs
    for name in list(state.workers.idle) if needs else ():
        worker = state.workers.get(name)
        if worker is not None and (lacking := missing(worker.labels, needs)):
            state.exclude(name, experiment, f"it has no label {' and no '.join(lacking)}")


def may_train(state: SchedulerState, experiment: Experiment, name: str, shard: int) -> bool:
    """Say whether a worker has the labels that a shard needs."""
    needs, worker = experiment.spec.shard_needs.get(str(shard)), state.workers.get(name)
    return not needs or worker is None or not missing(worker.labels, needs)


def barred(state: SchedulerState, experiment: Experiment) -> dict[int, frozenset[str]]:
    """Return the workers that may not train a shard, for each shard that has needs."""
    return {
        int(shard): frozenset(w.name for w in state.workers if missing(w.labels, needs))
        for shard, needs in experiment.spec.shard_needs.items()
    }


def by_preference(state: SchedulerState, experiment: Experiment) -> Collection[str]:
    """Return the idle workers; the ones with most of the preferred labels come first."""
    idle, prefers = state.workers.idle, experiment.spec.prefers
    if not prefers:
        return idle
    workers = filter(None, map(state.workers.get, idle))
    lacking = {worker.name: len(missing(worker.labels, prefers)) for worker in workers}
    return dict.fromkeys(sorted(lacking, key=lambda name: lacking[name])).keys()


def tell(state: SchedulerState, experiment: Experiment) -> None:
    """Log one line about shards that wait for an absent worker, until that changes.

    If no worker has ever trained the experiment, and all of them tried and cannot, it fails soon,
    so that the next experiment begins.
    """
    spec, all_unfit = experiment.spec, state.workers.all_unfit
    unfit = _tried(state, experiment) if all_unfit else ""
    waits = unfit
    if not unfit and (spec.needs or spec.shard_needs):
        waits = next(
            filter(None, (_waits(state, experiment, one) for one in experiment.rounds)), ""
        )
    if waits and waits != experiment.told_waits:
        state.log(waits)
    experiment.told_waits = waits
    _fail_if_unfit(state, experiment, unfit)


def _tried(state: SchedulerState, experiment: Experiment) -> str:
    """Say why the workers with all needed labels are unfit; empty if there are none."""
    needs = experiment.spec.needs
    tried = [worker for worker in state.workers if not missing(worker.labels, needs)]
    if not tried:
        return ""
    reason = tried[0].unfit_because
    alike = [worker.name for worker in tried if worker.unfit_because == reason]
    more = f"; {len(tried) - len(alike)} more for other reasons" if len(alike) < len(tried) else ""
    return f"no worker here can train it: {reason} ({_few(alike)}{more})"


def _fail_if_unfit(state: SchedulerState, experiment: Experiment, unfit: str) -> None:
    if not unfit or experiment.has_progress:
        experiment.unfit_since_seconds = None
        return
    if experiment.unfit_since_seconds is None:
        experiment.unfit_since_seconds = state.now_seconds
    waited = state.now_seconds - experiment.unfit_since_seconds
    if waited >= _UNFIT_SECONDS * state.options.patience:
        queue.fail(state, experiment, unfit)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _waits(state: SchedulerState, experiment: Experiment, current: Round) -> str:
    spec, able = experiment.spec, state.workers.able
    if spec.needs and not able:
        return f"all shards wait for a worker with {' and '.join(spec.needs)}: none is here"
    out = barred(state, experiment)
    pending = (shard for shard in out if current.is_pending(shard))
    lonely = [shard for shard in pending if out[shard].issuperset(able)]
    words = (f"shard {shard} for {' and '.join(spec.shard_needs[str(shard)])}" for shard in lonely)
    named = ", ".join(islice(words, _NAMED))
    more = f" and {len(lonely) - _NAMED} more" if len(lonely) > _NAMED else ""
    return f"shards wait for a worker that is not here: {named}{more}" if lonely else ""
