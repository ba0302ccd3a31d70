"""Policies that start a copy of a late task, or keep a worker that would be late from one."""

from collections.abc import Callable, Collection
from dataclasses import replace
from math import ceil, expm1, inf, log, log1p
from statistics import median

from downpour.core.stragglers.base import (
    Action,
    Assignment,
    Close,
    Policy,
    RoundView,
    RunningTask,
    Withdrawal,
)
from downpour.core.stragglers.outlook import Outlook, chance_above, in_words, quantile
from downpour.core.stragglers.pairing import left_idle, pair, pair_among


def _backup(view: RoundView) -> list[Action]:
    """Train n + b shards, and count the first n updates (Chen, Pan et al. 2016).

    The policy lets late workers finish. Such an update names an old round, and the manager discards
    it on arrival. So no message has to reach a straggler in time.
    """
    # `check_policy` accepts a fraction even if the default is a whole number.
    backups = int(view.number("backups"))
    # We need at least one update, because the scheduler does not close a round without one.
    needed = max(view.shards - backups, 1)
    if needed <= len(view.published) < view.shards:
        late = view.shards - len(view.published)
        reason = f"{len(view.published)} of {view.shards} updates are there; {late} not waited for"
        return [Close(reason=reason, leave_running=True)]
    return [*pair(view)]


BACKUP = Policy(decide=_backup, watches=True, preserves_bytes=False, options={"backups": 1})


def _late(view: RoundView) -> list[Action]:
    """Copy the shards that will end last (LATE, Zaharia et al. 2008).

    An idle worker that is not slow itself gets a copy of the shard with the longest time left. The
    policy copies a shard if it advances more slowly than three quarters of all shards, is old
    enough and has no copy yet. The first update counts. The paper's minimum age of a minute suits
    tasks of minutes. Here it is a share of a shard's usual time, so that it fits tasks of seconds
    as well.
    """
    assignments = pair(view)
    # While shards wait for a worker, a copy would take one from them.
    if len(view.pending) > len(assignments):
        return [*assignments]
    outlook = Outlook(view)
    # We allow at least one copy, because a tenth of fewer than ten workers rounds down to none.
    copied = len(view.running) - len({task.shard for task in view.running})
    cap = max(int(view.number("cap") * len(view.workers)), 1) - copied
    slow = view.number("slow")
    fit = _not_slow(view, outlook, left_idle(view, assignments))
    copies: list[Assignment] = []
    for left, task in _slow_tasks(view, outlook):
        worker = view.first_fit(task.shard, fit)
        if worker is not None and len(copies) < cap:
            fit.remove(worker)
            reason = f"copied: {in_words(left)} on {task.worker}, among the slowest {slow:.0%}"
            copies.append(Assignment(shard=task.shard, worker=worker, reason=reason))
    return [*assignments, *copies]


def _not_slow(view: RoundView, outlook: Outlook, idle: Collection[str]) -> list[str]:
    """Return the idle workers that are not among the slowest."""
    speeds = {name: outlook.speed(name) for name in view.workers}
    known = [speed for speed in speeds.values() if speed is not None]
    limit = quantile(known, view.number("slow"))
    # A worker of unknown speed may get a copy, because nothing shows that it is slow.
    return [name for name in idle if (speeds[name] or inf) >= limit]


def _slow_tasks(view: RoundView, outlook: Outlook) -> list[tuple[float, RunningTask]]:
    """Return the shards that may be copied, with the seconds that each has left, latest first."""
    # The round's published shards count as well. Without them, we would compare the last few shards
    # only with each other, and a quarter of them would always be slow.
    rates = [1 / seconds for seconds in view.published.seconds if seconds > 0]
    rates += [task.rate for task in view.running]
    limit = quantile(rates, view.number("slow"))
    old = view.number("min_age") * (outlook.typical_seconds or inf)
    return [
        (left, task)
        for left, task in outlook.latest_first(view.running)
        if task.copies == 1 and outlook.may_pay(left)
        if task.elapsed_seconds >= old and task.rate < limit
    ]


LATE = Policy(decide=_late, watches=True, options={"cap": 0.1, "slow": 0.25, "min_age": 0.5})


# Without this limit, the number of copies would grow without bound as the chance of straggling
# approaches one.
COPIES_MAX = 16


def _clone(view: RoundView) -> list[Action]:
    """Train every shard several times from the start (Dolly, Ananthanarayanan 2013).

    The number of copies follows from the chance that a worker straggles, and from the accepted risk
    of a late round. The budget limits the share of the workers that train clones; standbys may be
    among them. A worker that becomes idle later begins no clone, because that would be speculation.
    """
    assignments = pair(view)
    spare = left_idle(view, assignments)
    budget = int(view.number("budget") * len(view.workers))
    affordable = 1 + min(len(spare), budget) // max(len(assignments), 1)
    copies = min(_wanted(view), affordable)
    # The policy clones all shards or none, as in the paper. The round waits for its last shard, so
    # one shard without a clone would make the others' clones useless.
    if len(view.pending) > len(assignments) or copies < 2:
        return [*assignments]
    reason = f"{copies} copies of each shard from the start"
    shards = [choice.shard for choice in assignments] * (copies - 1)
    clones = []
    for shard in shards:
        worker = view.first_fit(shard, spare)
        if worker is not None:
            spare.remove(worker)
            clones.append(Assignment(shard=shard, worker=worker, reason=reason))
    return [*assignments, *clones]


def _wanted(view: RoundView) -> int:
    """Return the smallest c with 1 - (1 - p^c)^n at most the risk."""
    straggling = view.number("straggling")
    risk = view.number("risk")
    if not (0 < straggling < 1 and 0 < risk < 1) or view.shards < 1:
        return 1
    # All copies of one shard may straggle with the chance 1 - (1 - risk)^(1/n). With many shards,
    # this formula loses its digits, because the power is nearly one.
    each = -expm1(log1p(-risk) / view.shards)
    return min(ceil(log(each) / log(straggling)), COPIES_MAX)


CLONE = Policy(
    decide=_clone,
    watches=True,
    options={"straggling": 0.1, "risk": 0.05, "budget": 0.7},
    largest={"budget": 1},
)


def _grass(view: RoundView) -> list[Action]:
    """Copy to save resources first, and greedily near the end (GRASS, 2014).

    In the resource-aware phase, a shard gets one more copy only if all its attempts together then
    take less time. In the greedy phase, it gets one as soon as the copy would end sooner than the
    running attempts. In the paper's terms, a round that waits for all shards has an error bound of
    zero. The shard with the longest time left then goes first. The paper learns when to become
    greedy; here that is an option.
    """
    assignments = pair(view)
    # While shards wait for a worker, a copy would take one from them.
    if len(view.pending) > len(assignments):
        return [*assignments]
    outlook = Outlook(view)
    soonest = _soonest(view, outlook, view.number("copies"))
    soonest.sort(key=lambda entry: (-entry[0], entry[1].shard))
    spare = left_idle(view, assignments)
    return [*assignments, *_copies(view, outlook, spare, soonest, _pays, "copied")]


def _copies(
    view: RoundView,
    outlook: Outlook,
    spare: Collection[str],
    attempts: list[tuple[float, RunningTask]],
    pays: Callable[[RoundView, RunningTask, float, float], bool],
    what: str,
) -> list[Assignment]:
    """Copy the first attempts that are worth it to the spare workers, the fastest first."""
    copies = []
    for worker in outlook.fastest_first(spare):
        for place, (left, task) in enumerate(attempts):
            # A copy continues from the last snapshot, which holds the share `saved`.
            new = outlook.seconds_for((1 - task.saved) * task.samples, worker)
            if view.may_train(worker, task.shard) and pays(view, task, left, new):
                del attempts[place]
                reason = f"{what}: {in_words(left)} on {task.worker}, {new:.1f} s on {worker}"
                copies.append(Assignment(shard=task.shard, worker=worker, reason=reason))
                break
        else:
            break  # if no copy pays on this worker, none pays on a slower one
    return copies


def _pays(view: RoundView, task: RunningTask, left: float, new: float) -> bool:
    greedy = len(view.published) >= view.number("greedy_after") * view.shards
    if greedy:
        return new < left
    # All attempts' time together: each takes `left` without one more copy, and `new` with it.
    return task.copies * left > (task.copies + 1) * new


GRASS = Policy(decide=_grass, watches=True, options={"greedy_after": 0.8, "copies": 3})


def _mantri(view: RoundView) -> list[Action]:
    """Restart or duplicate a shard that would take longer than a new attempt (Mantri, 2010).

    While shards wait for workers, the policy ends an attempt that has clearly more time left than a
    new one would take, and restarts the shard elsewhere. Once no shard waits, it duplicates a shard
    if the duplicate probably ends sooner and saves resources. It stops a duplicate that no longer
    helps.
    """
    outlook = Outlook(view)
    restart = _restart(view, outlook)
    if restart:
        withdrawal, assignment = restart
        rest = [name for name in view.idle if name != assignment.worker]
        return [withdrawal, assignment, *pair(replace(view, idle=rest))]
    assignments = pair(view)
    # While shards wait for a worker, a duplicate would take one from them.
    if len(view.pending) > len(assignments):
        return [*assignments]
    soonest = _soonest(view, outlook, view.number("copies"))
    spare = left_idle(view, assignments)
    duplicates = _copies(view, outlook, spare, soonest, _helps, "duplicated")
    return [*assignments, *duplicates, *_needless(view, outlook)]


def _restart(view: RoundView, outlook: Outlook) -> tuple[Withdrawal, Assignment] | None:
    """While shards wait for workers, end the latest attempt and restart its shard elsewhere."""
    spare = left_idle(view, [])
    # Otherwise a duplicate is better: it ends no attempt that may still come first.
    crowded = len(view.pending) > len(view.idle) - view.standbys
    if not view.pending or not spare or not crowded:
        return None
    margin = view.number("margin")
    for left, task in outlook.latest_first(view.running):
        worker = view.first_fit(task.shard, spare)
        if worker is None:
            continue
        new = outlook.seconds_for((1 - task.saved) * task.samples, worker)
        # Without a limit, the policy would forever restart a shard that is slow on every worker.
        few = task.attempt + 1 < view.number("copies")
        if not outlook.may_pay(left):
            return None  # the attempts after this one have less time left
        if task.copies == 1 and few and left > (1 + margin) * new:
            reason = f"restarted: {in_words(left)} on {task.worker}, {new:.1f} s anew on {worker}"
            return (
                Withdrawal(shard=task.shard, worker=task.worker, reason=reason),
                Assignment(shard=task.shard, worker=worker, reason=reason),
            )
    return None


def _helps(view: RoundView, task: RunningTask, left: float, new: float) -> bool:
    """Whether a duplicate saves time and resources, with the chance that the options require."""
    # The paper's rule for c running attempts: t_left > t_new (c + 1) / c.
    least = new * (task.copies + 1) / task.copies
    if task.remaining is None:
        return left > least
    # The forecast counts seconds from the last report, and `least` counts from now.
    return chance_above(task.remaining, least + task.reported_seconds) > view.number("chance")


def _needless(view: RoundView, outlook: Outlook) -> list[Withdrawal]:
    """Stop attempts that would end clearly later than another attempt at the same shard."""
    margin = 1 + view.number("margin")
    soonest: dict[int, float] = {}
    for left, task in outlook.latest_first(view.running):
        soonest[task.shard] = left
    return [
        Withdrawal(
            shard=task.shard,
            worker=task.worker,
            reason=f"stopped: {in_words(left)}, another attempt {soonest[task.shard]:.1f} s",
        )
        for left, task in outlook.latest_first(view.running)
        if task.done > task.began_at and left > margin * soonest[task.shard]
    ]


def _soonest(view: RoundView, outlook: Outlook, most: float) -> list[tuple[float, RunningTask]]:
    """Return, for each shard that may have one more copy, the attempt that will end first."""
    soonest: dict[int, tuple[float, RunningTask]] = {}
    for left, task in outlook.latest_first(view.running):
        if task.copies < most:
            soonest[task.shard] = (left, task)  # a shard's last entry is its first attempt to end
    return [entry for entry in soonest.values() if outlook.may_pay(entry[0])]


MANTRI = Policy(decide=_mantri, watches=True, options={"margin": 0.5, "chance": 0.25, "copies": 3})


def _wrangler(view: RoundView) -> list[Action]:
    """Give no shard for a while to a worker that would probably straggle (Wrangler, 2014).

    The policy copies and moves no shard. It defers a worker if the forecast is above the limit with
    enough confidence. It does so only for a while, and not if all other workers are gone. The paper
    learns its confidence from the machine's counters. Here the confidence comes from the quantiles
    of a forecast, which also uses such counters.
    """
    typical = Outlook(view).typical_seconds
    patience = view.number("patience") * (typical or 0.0)
    deferred = _stragglers(view)
    # Don't wait forever: a shard that waits too long ends later than it would on the slow worker.
    if not deferred or view.elapsed_seconds > patience:
        return [*pair(view)]
    fit = [name for name in view.idle if name not in deferred]
    why = ", ".join(f"{name} straggles at {deferred[name]:.0%}" for name in sorted(deferred))
    return [*pair_among(view, fit, f"deferred: {why}")]


def _stragglers(view: RoundView) -> dict[str, float]:
    """Return the idle workers that will straggle with enough confidence, and the confidence."""
    # The median of one forecast is that forecast, so we have nothing to compare it with.
    if len(view.paces) < 2:
        return {}
    usual = median(pace.q50 for pace in view.paces.values())
    limit = view.number("slowness") * usual
    chances = {
        name: chance_above(view.paces[name], limit) for name in view.idle if name in view.paces
    }
    confidence = view.number("confidence")
    return {name: chance for name, chance in chances.items() if chance > confidence}


WRANGLER = Policy(
    decide=_wrangler, watches=True, options={"slowness": 1.3, "confidence": 0.7, "patience": 0.25}
)
