"""A policy's view of a round, the moments at which it looks, and the workers barred from a shard.

A worker without a label that the spec `needs` gets no task of the experiment. A worker without a
label that a shard needs (`shard_needs`) is barred only from that shard. Among idle workers, the
ones with most of the labels that the spec `prefers` come first. If there are fewer pending shards
than idle workers, the homes of these shards come next.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from downpour.base.errors import listed
from downpour.base.states import TaskState
from downpour.base.values import AttemptId, missing
from downpour.core.scheduler import events as on
from downpour.core.scheduler import queue
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.outputs import Withheld
from downpour.core.scheduler.queue import SchedulerState
from downpour.core.scheduler.round import Round, ShardTask
from downpour.core.scheduler.workers import Worker
from downpour.core.stragglers import base
from downpour.core.stragglers.outlook import Outlook

_NAMED = 4
DECIDING_MAX = 2
"""If more workers than this each have another result, another worker cannot decide either."""
# A worker that can train the experiment may be starting, which takes seconds.
_UNFIT_SECONDS = 30.0


def set_aside(state: SchedulerState, experiment: Experiment) -> None:
    """Exclude idle workers that compute wrong, or lack a label that all shards need."""
    needs = experiment.spec.needs
    for name in list(state.workers.idle_for(experiment.name)) if needs or state.quarantined else ():
        worker = state.workers.get(name)
        if name in state.quarantined:
            state.exclude(name, experiment, state.quarantined[name].reason)
        elif worker is not None and (lacking := missing(worker.labels, needs)):
            state.exclude(name, experiment, f"it has no label {' and no '.join(lacking)}")


def may_train(state: SchedulerState, experiment: Experiment, task: ShardTask, name: str) -> bool:
    """Say whether a worker has the labels that a shard needs, and may audit an audited task."""
    if task.withheld and name not in auditors(state, experiment, task):
        return False
    return _is_labeled(state, experiment, task.shard, name)


def _is_labeled(state: SchedulerState, experiment: Experiment, shard: int, name: str) -> bool:
    needs, worker = experiment.spec.shard_needs.get(str(shard)), state.workers.get(name)
    return not needs or worker is None or not missing(worker.labels, needs)


def barred(
    state: SchedulerState, experiment: Experiment, current: Round
) -> dict[int, frozenset[str]]:
    """Return the workers that may not train a shard, for each shard that not all may train."""
    barred = {
        int(shard): frozenset(w.name for w in state.workers if missing(w.labels, needs))
        for shard, needs in experiment.spec.shard_needs.items()
    }
    strangers: dict[str, frozenset[str]] = {}
    for shard in current.audited:
        task = current.tasks[shard]
        its = task.withheld[0].numeric_class
        if len(task.withheld) > 1:
            others = frozenset(state.workers.names - set(auditors(state, experiment, task)))
        else:
            # The same as `auditors`, but its time does not grow with the workers. With 200 workers
            # and shards, an event took 16 ms before, and takes 1 ms with this.
            if its not in strangers:
                strangers[its] = _strangers(state, experiment, its)
            others = strangers[its] | _involved(task).union(task.offer.failed_on)
        barred[shard] = barred.get(shard, frozenset()) | others
    return barred


def _strangers(state: SchedulerState, experiment: Experiment, its: str) -> frozenset[str]:
    """Return the workers that can audit no task of a numeric class."""
    able, device = state.workers.able_for(experiment.name), experiment.spec.device
    return frozenset(
        each.name
        for each in state.workers
        if each.name not in able or each.name in state.quarantined or each.class_for(device) != its
    )


def _involved(task: ShardTask) -> set[str]:
    """Return the workers that trained any part of an audited task, and do not train it now."""
    return ({*task.assigned_to} - task.held_by.keys()) | {each.worker for each in task.withheld}


def agreed(withheld: Sequence[Withheld]) -> tuple[str, ...] | None:
    """Return the checksums on which two workers agree; None if no two do."""
    makers: dict[tuple[str, ...], set[str]] = {}
    for each in withheld:
        makers.setdefault(each.update.checksums, set()).add(each.worker)
    return next((sums for sums, workers in makers.items() if len(workers) > 1), None)


def repeats(withheld: Sequence[Withheld]) -> bool:
    """Whether a task may repeat its bytes: not if several workers have each another result."""
    return agreed(withheld) is not None or len({each.worker for each in withheld}) <= DECIDING_MAX


def auditors(state: SchedulerState, experiment: Experiment, task: ShardTask) -> Iterator[str]:
    """Yield the workers of which one should train an audited task next; none if it is settled.

    These have the class of its updates, and did not fail on it. A worker that trained any part of
    it comes only if no other is left.
    """
    withheld, right = task.withheld, agreed(task.withheld)
    tried = Counter(each.worker for each in withheld)
    if right is not None:
        wrong = {each.worker for each in withheld if each.update.checksums != right and each.whole}
        yield from _able(state, experiment, task, (n for n in wrong if tried[n] == 1))
        return
    if not repeats(withheld):
        return
    involved = _involved(task)
    able = state.workers.able_for(experiment.name)
    others = (name for name in able if name not in involved)
    found = False
    for name in _able(state, experiment, task, others):
        found = True
        yield name
    if not found and len(tried) > 1:
        yield from _able(state, experiment, task, (n for n in tried if tried[n] == 1))


def _able(
    state: SchedulerState, experiment: Experiment, task: ShardTask, names: Iterable[str]
) -> Iterator[str]:
    its, able = task.withheld[0].numeric_class, state.workers.able_for(experiment.name)
    for name in names:
        worker = state.workers.get(name)
        if worker is None or name not in able or name in task.offer.failed_on:
            continue
        # A worker that tried before, and has joined since, is another process.
        tries = (each.attempt.attempt for each in task.withheld if each.worker == name)
        began = [task.assigned_at_seconds[number] for number in tries]
        is_same = not began or worker.joined_at_seconds <= min(began)
        fits = worker.class_for(experiment.spec.device) == its and name not in state.quarantined
        if fits and is_same and _is_labeled(state, experiment, task.shard, name):
            yield name


def by_preference(
    state: SchedulerState, experiment: Experiment, pending: Sequence[base.PendingTask]
) -> Collection[str]:
    """Return the idle workers: first by preferred labels, then the homes of pending shards."""
    idle, prefers = state.idle_for(experiment), experiment.spec.prefers
    homes = {task.home for task in pending} - {None} if len(pending) < len(idle) else set()
    if not (prefers or homes):
        return idle
    workers = filter(None, map(state.workers.get, idle))
    rank = {one.name: (len(missing(one.labels, prefers)), one.name not in homes) for one in workers}
    return dict.fromkeys(sorted(rank, key=lambda name: rank[name])).keys()


def tell(state: SchedulerState, experiment: Experiment) -> None:
    """Log one line about shards that wait for an absent worker or the policy, until that changes.

    If no worker has ever trained the experiment, and all of them tried and cannot, it fails soon,
    so that the next experiment begins.
    """
    spec, excluded = experiment.spec, state.workers.unfit_for(experiment.name)
    unfit = _tried(state, experiment) if excluded and len(excluded) == len(state.workers) else ""
    waits = unfit
    if not unfit and (spec.needs or spec.shard_needs):
        waits = next(
            filter(None, (_waits(state, experiment, one) for one in experiment.rounds)), ""
        )
    waits = waits or left_idle(state, experiment)
    if waits and waits != experiment.told_waits:
        state.decided(experiment.name, waits)
    experiment.told_waits = waits
    _fail_if_unfit(state, experiment, unfit)


def _tried(state: SchedulerState, experiment: Experiment) -> str:
    """Say why the workers with all needed labels are unfit; empty if there are none."""
    needs = experiment.spec.needs
    tried = [worker.name for worker in state.workers if not missing(worker.labels, needs)]
    if not tried:
        return ""
    reasons = state.workers.unfit_for(experiment.name)
    reason = reasons[tried[0]]
    alike = [name for name in tried if reasons[name] == reason]
    more = f"; {len(tried) - len(alike)} more for other reasons" if len(alike) < len(tried) else ""
    return f"no worker here can train it: {reason} ({listed(alike, _NAMED)}{more})"


def _fail_if_unfit(state: SchedulerState, experiment: Experiment, unfit: str) -> None:
    if not unfit or experiment.has_progress:
        experiment.unfit_since_seconds = None
        return
    if experiment.unfit_since_seconds is None:
        experiment.unfit_since_seconds = state.now_seconds
    waited = state.now_seconds - experiment.unfit_since_seconds
    if waited >= _UNFIT_SECONDS * state.patience:
        queue.fail(state, experiment, unfit)


def _waits(state: SchedulerState, experiment: Experiment, current: Round) -> str:
    spec, able = experiment.spec, state.workers.able_for(experiment.name)
    if spec.needs and not able:
        return f"all shards wait for a worker with {' and '.join(spec.needs)}: none is here"
    out = barred(state, experiment, current)
    with_needs = (shard for shard in out if str(shard) in spec.shard_needs)
    pending = (n for n in with_needs if current.tasks[n].life.state is TaskState.PENDING)
    lonely = [shard for shard in pending if out[shard].issuperset(able)]
    words = [f"shard {shard} for {' and '.join(spec.shard_needs[str(shard)])}" for shard in lonely]
    return f"shards wait for a worker that is not here: {listed(words, _NAMED)}" if words else ""


def left_idle(state: SchedulerState, experiment: Experiment) -> str:
    """Say that a policy leaves all workers idle beside a shard that one of them may train."""
    idle, able = state.idle_for(experiment), state.workers.able_for(experiment.name)
    if not idle or len(idle) < len(able) or experiment.policy_error:
        return ""
    barred_in = [(current, barred(state, experiment, current)) for current in experiment.rounds]
    if all(
        out.get(task.shard, frozenset()).issuperset(idle)
        for current, out in barred_in
        for task in current.pending(len(current.tasks))
    ):
        return ""
    whose, are = f"policy '{experiment.spec.policy}'", "is" if len(idle) == 1 else "are"
    return f"{whose} assigns nothing although {listed(sorted(idle), _NAMED)} {are} idle"


# Events that change no task and no worker. Most events are heartbeats, and a decision costs far
# more than handling a heartbeat.
QUIET = on.HeartbeatReceived, on.Forecasts, on.Evaluated
_LOOKS_A_TASK = 20
_BETWEEN_LOOKS_SECONDS = 0.1, 0.5
# Measured: a decision takes at most 25 microseconds for each running task. So these decisions use
# no more than half a percent of a core.
_BETWEEN_LOOKS_SECONDS_A_TASK = 0.005
# Above this many running tasks, we don't decide after each event, because the cost grew with the
# square of their number. A round of 500 workers took 68 s of processor time; with this limit, it
# takes 15 s.
_CROWD = 64
_CROWDED_SECONDS_A_TASK = 0.0005


def may_have_news(
    state: SchedulerState, experiment: Experiment, event: on.Event | None, *, waiting: bool
) -> bool:
    """Whether an event may change the decision of a policy that watches.

    `waiting` says that a task is pending and a worker idle. These two need not fit: a task in a
    hand-over waits for a certain worker.
    """
    if is_crowded(state, experiment):
        return waiting and not isinstance(event, on.HeartbeatReceived)
    if waiting:
        return True
    if isinstance(event, on.HeartbeatReceived) and event.running:
        return state.now_seconds >= experiment.look_again_at_seconds
    return not isinstance(event, QUIET)


def is_crowded(state: SchedulerState, experiment: Experiment) -> bool:
    """Whether many tasks run, and the policy looked at them too recently to look again."""
    return state.now_seconds < experiment.crowded_until_seconds


def between_looks(view: base.RoundView) -> float:
    """Return the seconds until heartbeats lead to a decision again; fewer if tasks are short."""
    shortest, longest = _BETWEEN_LOOKS_SECONDS
    rising, running = view.published.seconds, len(view.running)
    least = max(shortest, _BETWEEN_LOOKS_SECONDS_A_TASK * running)
    # No forecast of the running tasks moves the median of all tasks beyond this place.
    place = (bisect_right(rising, 0.0) + len(rising) + running) // 2
    if place < len(rising) and rising[place] / _LOOKS_A_TASK <= least:
        return min(longest, least)
    usual = Outlook(view).typical_seconds or 0.0
    return min(longest, max(least, usual / _LOOKS_A_TASK))


def between_views(view: base.RoundView) -> float:
    """Return for how many seconds events lead to no decision; 0 if few tasks run."""
    tasks = len(view.running)
    return (
        min(_BETWEEN_LOOKS_SECONDS[1], _CROWDED_SECONDS_A_TASK * tasks) if tasks > _CROWD else 0.0
    )


def view_of(
    state: SchedulerState,
    experiment: Experiment,
    current: Round,
    policy: base.Policy,
    *,
    between: bool = False,
) -> base.RoundView:
    """Return a view of the current round; a policy that doesn't watch sees only the basic part.

    The rest takes time for every worker and running task, at every event that asks the policy. So
    `between` two decisions, a policy that watches sees only the basic part and the tasks in a
    hand-over.
    """
    workers, spec = state.workers, experiment.spec
    all_of_it = spec.shard_needs or current.audited
    idle = state.idle_for(experiment)
    enough = len(current.tasks) if all_of_it else current.enough_for(idle)
    pending = current.pending(enough, idle)
    if not policy.watches:
        more: dict[str, Any] = {}
    elif between:
        leaving = [task for task in current.held if task.leaving]
        more = {"running": _Running(state, experiment.startup_limit_seconds, leaving)}
    else:
        more = _watched(state, experiment, current, policy)
    return base.RoundView(
        round=current.number,
        at_seconds=state.now_seconds,
        pending=pending,
        idle=by_preference(state, experiment, pending),
        workers=workers.able_for(experiment.name),
        shards=len(current.tasks),
        begun=current.begun,
        standbys=spec.standbys,
        barred=barred(state, experiment, current),
        **more,
    )


def _watched(
    state: SchedulerState, experiment: Experiment, current: Round, policy: base.Policy
) -> dict[str, Any]:
    """Return the part of a view that only a policy that watches sees."""
    workers, now, held = state.workers, state.now_seconds, current.held
    return {
        "running": _Running(state, experiment.startup_limit_seconds, held),
        "moving": any(task.leaving for task in held),
        "published": current.times,
        "paces": {worker.name: worker.pace for worker in workers if worker.pace is not None},
        "speeds": {one.name: speed for one in workers if (speed := one.speed(now))},
        "elapsed_seconds": now - (current.started_at_seconds or now),
        # This round's overhead counts only while no earlier round has one, because a median over
        # all shards says more.
        "overhead_seconds": experiment.overhead_seconds or current.overhead_seconds,
        "requested": state.wanted_workers - state.joined_since,
        "history": {
            w.name: base.WorkerHistory(slowness=tuple(w.slowness)) for w in workers if w.slowness
        },
        "options": {**policy.options, **experiment.spec.policy_options},
    }


@dataclass(frozen=True, eq=False)
class _Running(Sequence[base.RunningTask]):
    """The attempts at some tasks; it describes them when a policy first looks at one.

    Most decisions only give the next shard to an idle worker, and need no other worker's progress.
    """

    state: SchedulerState
    startup_limit_seconds: float
    tasks: Sequence[ShardTask]

    def __len__(self) -> int:
        return sum(len(task.held_by) for task in self.tasks)

    def __iter__(self) -> Iterator[base.RunningTask]:
        return iter(self._described)

    def __getitem__(self, place: Any) -> Any:
        return self._described[place]

    @cached_property
    def _described(self) -> tuple[base.RunningTask, ...]:
        return tuple(
            _as_running(task, worker, attempt, self.state.now_seconds, self.startup_limit_seconds)
            for task in self.tasks
            for name, attempt in task.held_by.items()
            if (worker := self.state.workers.get(name)) is not None
        )


def _as_running(
    task: ShardTask, worker: Worker, attempt: AttemptId, now: float, startup_limit_seconds: float
) -> base.RunningTask:
    # We look this up by attempt, because copies of a shard may continue from different snapshots.
    began = task.began_at[attempt.attempt]
    progress, is_starting = worker.progress, worker.is_starting
    startup_seconds = worker.startup_seconds
    if is_starting:
        startup_seconds = min(now - worker.assigned_at_seconds, startup_limit_seconds)
    started = worker.assigned_at_seconds + startup_seconds
    meant_for, since = task.leaving.get(worker.name, (None, now))
    return base.RunningTask(
        shard=task.shard,
        samples=task.offer.samples,
        worker=worker.name,
        elapsed_seconds=now - task.assigned_at_seconds[attempt.attempt] - startup_seconds,
        began_at=began,
        done=max(began, progress.share) if progress is not None else began,  # 0 while it loads
        reported_seconds=now - worker.mentioned_at_seconds,
        remaining=worker.remaining,
        saved=task.offer.saved,
        copies=len(task.held_by),
        attempt=attempt.attempt,
        still_seconds=now - max(worker.active_at_seconds, started),
        meant_for=meant_for,
        leaving_seconds=now - since,
        is_starting=is_starting and now <= started,
    )


WORKERS_MAX, SHARDS_MAX = 128, 1024
"""Among more workers or shards, a single worker hardly matters, but the time to answer does: for
each worker in the question, it grows with the number of all workers. At these limits, a question
about forty workers takes up to 0.09 s."""


def contributions(state: SchedulerState, names: Collection[str]) -> Mapping[str, base.Saving]:
    """Return what some workers contribute to the current round; empty if we can't tell.

    We can't tell between rounds, with too many workers or shards, and with a policy that gives no
    forecast. The same holds if a round does not wait for all shards, or overlaps with the next one.
    """
    experiment = state.active
    if experiment is None or experiment.round is None:
        return {}
    if len(state.workers) > WORKERS_MAX or len(experiment.round.tasks) > SHARDS_MAX:
        return {}
    spec = experiment.spec
    policy = state.policies[spec.policy]
    if policy.contributions is None or spec.mode != "sync" or spec.overlap:
        return {}
    view = view_of(state, experiment, experiment.round, policy)
    sizes = [task.samples for task in experiment.round.tasks]
    return policy.contributions(view, sizes, names)
