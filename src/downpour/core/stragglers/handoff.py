"""`handoff`: hand a shard that would be late, as it stands, to a worker that ends it sooner.

A shard that would end late goes to an idle worker. If no worker is idle, two busy ones exchange
their shards. Another worker continues a stalled one's shard from the last snapshot, beside it.
docs/reference/policies.md ("How `handoff` works") has the rules and the options.

A worker's *contribution* compares a round's predicted seconds with all workers, and without it.
`Lineup.plan` predicts both. The biggest shard goes first to the worker that is free first, or to
the fastest of several; then shards move as they do under `handoff`. The prediction uses the
scheduler's own speeds, and leaves out loading, publishing and chance.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf, sqrt
from operator import attrgetter
from typing import Self

from downpour.core.stragglers.base import (
    Action,
    Assignment,
    Handoff,
    Policy,
    RoundView,
    RunningTask,
    Saving,
    Waiting,
)
from downpour.core.stragglers.outlook import Outlook, expected
from downpour.core.stragglers.pairing import SLOW, Prospects, hindrances, pair, waiting_shards

# Each exchange waits for a step and a move. We simulated two, four and eight workers next to a slow
# one. In each case, a round's exchanges took as long as three in a row.
_EXCHANGES = 3
_NOTHING = 1e-9
_SPEED = attrgetter("speed")


@dataclass(frozen=True, slots=True)
class _Member:
    """A worker: its speed in samples per second, and how long one step takes."""

    name: str
    speed: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class _PlannedRound:
    """The seconds of a round, and the workers that begin a shard in it."""

    seconds: float
    begin: frozenset[str]


@dataclass(frozen=True)
class Lineup:
    """The workers of a round, and the sizes of its shards in samples.

    The `standbys` slowest workers stay free. A move takes `move_seconds`.
    """

    sizes: Sequence[int]
    members: Sequence[_Member]
    standbys: int
    move_seconds: float

    @classmethod
    def of(cls, view: RoundView, sizes: Sequence[int]) -> Self | None:
        """Return the lineup of a view; None if it has only one worker, or too little is known.

        It is also None if shards have their own needs: a plan gives any shard to any worker.
        """
        if len(view.workers) < 2 or not sizes or view.barred:
            return None
        measured = {name for name, speed in view.speeds.items() if not speed.at_most}
        if any(task.worker not in measured for task in view.running):
            return None
        outlook = Outlook(view)
        members = [
            _Member(name, speed, outlook.step_seconds(name))
            for name in view.workers
            if (speed := outlook.speed(name)) and speed < inf
        ]
        if len(members) < len(view.workers):
            return None
        return cls(sizes, members, view.standbys, outlook.move_seconds)

    def plan(self, must: str = "") -> _PlannedRound:
        """Predict the round; the worker named by `must` begins a shard instead of standing by."""
        order = self._fastest_first
        free = [(0.0, place) for place in range(max(len(order) - self.standbys, 1))]
        waiting = sorted(self.sizes)
        ends: dict[_Member, float] = {}
        now = 0.0
        while waiting and free:
            at, place = heappop(free)
            member = order[place]
            if member.name != must and self._hinders(member, at, waiting, ends):
                continue
            now = at
            ends[member] = at + waiting.pop() / member.speed
            heappush(free, (ends[member], place))
        seconds = now + self._levelled_seconds({one: end - now for one, end in ends.items()})
        return _PlannedRound(seconds, frozenset(member.name for member in ends))

    @cached_property
    def _fastest_first(self) -> list[_Member]:
        return sorted(self.members, key=_SPEED, reverse=True)

    def _hinders(
        self, member: _Member, at: float, waiting: Sequence[int], ends: dict[_Member, float]
    ) -> bool:
        """Whether the round ends no sooner if a worker begins the next shard."""
        fastest = self._fastest_first[0].speed
        fast = SLOW * fastest
        if member.speed >= fast:
            return False
        # The fastest worker began first, and no fast worker stops while shards wait.
        free_in = tuple(end - at for one, end in ends.items() if one.speed >= fast)
        prospects = Prospects(fastest, free_in, len(waiting), self.move_seconds)
        return prospects.loss(waiting[-1], member.speed, member.step_seconds) >= 0

    def _levelled_seconds(self, left: dict[_Member, float]) -> float:
        """Return the seconds until the end of all training, once no shard waits for a worker.

        `left` has the seconds that each busy worker needs for the rest of its shard.
        """
        ends = {member: seconds for member, seconds in left.items() if seconds > 0}
        work = {member: seconds * member.speed for member, seconds in ends.items()}
        level = self._level(work.values())
        idle = [member for member in self._fastest_first if member not in ends]
        exchanges = 0.0
        for member in sorted((one for one in ends if ends[one] > level + _NOTHING), key=_SPEED):
            cost = member.step_seconds + self.move_seconds
            if idle and idle[0].speed > member.speed:
                helper = idle.pop(0)
                ends[member] = work[member] / helper.speed + cost
                work[member] += cost * helper.speed
            else:
                exchanges = max(exchanges, _EXCHANGES * cost)
        alone = max(ends.values(), default=0.0)
        return min(alone, self._level(work.values()) + exchanges) if exchanges else alone

    def _level(self, work: Collection[float]) -> float:
        """Return the seconds that balanced work takes if only one worker trains each shard.

        The k largest remainders take at least as long as the k fastest workers need for them. An
        optimal schedule reaches that bound (Horvath, Lam and Sethi 1977).
        """
        seconds = samples = speeds = 0.0
        for one, member in zip(sorted(work, reverse=True), self._fastest_first, strict=False):
            samples, speeds = samples + one, speeds + member.speed
            seconds = max(seconds, samples / speeds)
        return seconds


def contributions(
    view: RoundView, sizes: Sequence[int], names: Collection[str]
) -> dict[str, Saving]:
    """Return what workers contribute to a round of shards of these sizes.

    A worker has no contribution before we have measured two intervals between its reports. If any
    worker's speed is unknown, or a busy worker's speed is unmeasured, no worker has a contribution.
    """
    lineup = Lineup.of(view, sizes)
    if lineup is None:
        return {}
    whole = lineup.plan()
    measured = {name for name, speed in view.speeds.items() if speed.variance is not None}
    present = {member.name for member in lineup.members}
    told = [name for name in names if name in measured & present]
    return {name: _contribution(lineup, whole, name) for name in told}


def _contribution(lineup: Lineup, whole: _PlannedRound, name: str) -> Saving:
    stands_by = name not in whole.begin
    joined = lineup.plan(must=name) if stands_by else whole
    others = [member for member in lineup.members if member.name != name]
    without = replace(lineup, members=others).plan().seconds
    return Saving(share=1 - joined.seconds / without, stands_by=stands_by)


# The policy compares each late shard only with the shards that end first. If it compared all of
# them, the work would grow with the square of the workers.
PARTNERS_MAX = 64

_HALF_A_PERCENT = 0.005


class _Moves:
    """The moves of one decision; each worker takes part in one of them at most."""

    def __init__(self, view: RoundView, outlook: Outlook, taken: set[str]) -> None:
        self.view = view
        self.outlook = outlook
        self.typical = self.outlook.typical_seconds or 0.0
        self.cost = max(self.share("cost"), self.outlook.move_seconds)
        # The gain grows with the cost, because a move after a wrong forecast then costs more, too.
        # As a result, short rounds see few moves.
        dearer = self.cost / self.share("cost") if self.share("cost") > 0 else 1.0
        self.gain = self.share("gain") * dearer
        # Each of n shards may stay with the slow worker for an n-th of the round. A gap of half of
        # that keeps exchanges rare enough; each of them makes a fast worker wait for a step of the
        # slow one. A gap twice as wide would be worse: four workers with randomly changing speeds
        # would recover 60 % instead of 70 % of their loss with `wait`.
        self.gap = max(view.number("progress_gap"), 0.5 / max(len(view.running), 1))
        self.patience = _patience_seconds(view, self.typical)
        self.taken = taken | {task.meant_for for task in view.running if task.meant_for}
        self.actions: list[Action] = []

    def share(self, name: str) -> float:
        """Return an option that is a share of a usual task, in seconds."""
        return self.view.number(name) * self.typical

    def free(self) -> list[str]:
        """Return the idle workers that have no part in a move yet, fastest first."""
        idle = (name for name in self.view.idle if name not in self.taken)
        return self.outlook.fastest_first(idle)

    def movable(self) -> list[tuple[float, RunningTask]]:
        """Return the attempts that may move, with the seconds each has left, last to end first.

        A shard that two workers train stays with them, because the first update counts anyway. A
        shard also stays if it will end before another worker could continue it.
        """
        settle = self.view.number("settle")
        return [
            (left, task)
            for left, task in self.outlook.latest_first(self.view.running)
            if self.outlook.may_pay(left) and task.copies == 1 and task.worker not in self.taken
            if task.began_at == 0 or task.done - task.began_at >= settle
        ]

    def pays(self, sooner: float, *expected: tuple[str, float]) -> bool:
        """Whether a move gains enough: more than it costs, and more than chance could show.

        We computed `sooner` from the seconds that we expect of some workers, each in `expected`.
        """
        errors = (
            seconds * self.outlook.error(worker) for worker, seconds in expected if seconds < inf
        )
        chance = sqrt(sum(error**2 for error in errors))
        return sooner > max(self.gain, self.view.number("doubt") * chance)

    def wait_for(self, task: RunningTask, total: float, why: str) -> None:
        """Say why a late shard stays where it is; only the first call counts.

        The first call is about the last of these shards to end, for which the round waits.
        """
        if any(isinstance(action, Waiting) for action in self.actions):
            return
        reason = f"{expected(total)}{self.band(task)}, {task.elapsed_seconds:.1f} s elapsed; {why}"
        self.actions.append(Waiting(shard=task.shard, worker=task.worker, reason=reason))

    def band(self, task: RunningTask) -> str:
        """Return the 80 % interval of an attempt's duration, counted from its assignment."""
        ahead = self.outlook.left_between(task)
        if ahead is None:
            return ""
        first, last = (task.elapsed_seconds + seconds for seconds in ahead)
        return f" ({first:.1f}–{last:.1f})"

    def stalled(self, task: RunningTask) -> bool:
        """Whether a worker has made no step, or not handed over on request, for too long."""
        silent = max(task.still_seconds, task.leaving_seconds)
        return not task.is_starting and silent > self.patience


def _handoff(view: RoundView) -> list[Action]:
    outlook = Outlook(view)
    view = _without_dead_ends(view, outlook)
    hindering = hindrances(view, outlook, pairs := _pairs(view, outlook))
    assignments = [choice for choice in pairs if choice.worker not in hindering]
    # Without a spare worker, only an exchange is possible, and only once no shard waits.
    waits = view.pending or len(view.running) + len(view.published) < view.shards
    if waits and len(assignments) == len(view.idle):
        return [*assignments]
    moves = _Moves(view, outlook, {choice.worker for choice in assignments})
    if moves.typical > 0:
        _go_on_beside_stalled(moves)
        # A shard that waits for a worker gets the next idle one, which no move may take away.
        if not view.pending:
            _to_idle(moves)
            if not waiting_shards(view):
                _exchange(moves)
    return [*assignments, *moves.actions]


def _pairs(view: RoundView, outlook: Outlook) -> list[Assignment]:
    """Pair the largest shards with the fastest workers: the round ends with the last shard."""
    biggest = sorted(view.pending, key=lambda task: -task.samples)
    return pair(view, outlook.fastest_first(view.idle), biggest)


def _standing_by(view: RoundView) -> dict[str, str]:
    outlook = Outlook(view)
    view = _without_dead_ends(view, outlook)
    return {
        name: f"{name} stands by: at its speed, a shard there would {_cost(loss)}"
        for name, loss in hindrances(view, outlook, _pairs(view, outlook)).items()
    }


def _cost(share: float) -> str:
    """Say what a shard on a slow worker would cost, rounded to whole percents."""
    return f"cost {share:.0%} of the time" if share >= _HALF_A_PERCENT else "end no sooner"


def _patience_seconds(view: RoundView, typical_seconds: float) -> float:
    """Return how long a worker may go without a step before it counts as stalled."""
    share = view.number("stalled") * typical_seconds
    return max(share, view.number("stalled_seconds"))


def _without_dead_ends(view: RoundView, outlook: Outlook) -> RoundView:
    """Forget a shard's intended worker if the hand-over stalls, or that worker is busy elsewhere.

    In an exchange, one worker may stall or fail after the other has already stopped.
    """
    if not view.moving and all(task.meant_for is None for task in view.pending):
        return view
    patience = _patience_seconds(view, outlook.typical_seconds or 0.0)
    coming = set(view.idle)
    running = []
    for task in view.running:
        stuck = task.leaving_seconds > patience
        # As soon as this worker has handed over its own shard, it is free for one meant for it.
        if task.meant_for is not None and not stuck:
            coming.add(task.worker)
        running.append(replace(task, meant_for=None) if stuck else task)
    pending = tuple(
        task if task.meant_for in coming else replace(task, meant_for=None) for task in view.pending
    )
    return replace(view, pending=pending, running=tuple(running))


def _go_on_beside_stalled(moves: _Moves) -> None:
    """Let idle workers continue the shards of stalled workers from the last snapshots."""
    stalled = [task for task in moves.view.running if task.copies == 1 and moves.stalled(task)]
    for task in stalled:
        worker = moves.view.first_fit(task.shard, moves.free())
        if worker is None:
            continue
        moves.taken |= {task.worker, worker}
        silent = max(task.still_seconds, task.leaving_seconds)
        what = "makes no step" if task.done < 1 else "publishes nothing"
        if task.leaving_seconds > task.still_seconds:
            what = "does not hand over"
        reason = (
            f"{task.worker} {what}, for {silent:.1f} s now; "
            f"goes on beside it, after {task.saved:.0%}"
        )
        moves.actions.append(Assignment(shard=task.shard, worker=worker, reason=reason))


def _to_idle(moves: _Moves) -> None:
    """Hand the latest shards to the fastest idle workers, if that saves more than it costs."""
    late, free = moves.share("late"), moves.free()
    for left, task in moves.movable() if free else ():
        total = task.elapsed_seconds + left
        # An attempt that continued from a snapshot has less to do, so it counts as late sooner. A
        # stalled worker would not publish its state.
        if total <= late * (1 - task.began_at) or moves.stalled(task):
            continue
        worker = moves.view.first_fit(task.shard, free)
        if worker is None:
            continue
        there = moves.outlook.seconds_for((1 - task.done) * task.samples, worker) + moves.cost
        if not moves.pays(left - there, (task.worker, left), (worker, there)):
            moves.wait_for(task, total, f"{worker} {_no_sooner(left - there, moves.gain)}")
            continue
        free.remove(worker)
        moves.taken |= {task.worker, worker}
        reason = (
            f"{expected(total)}, median {moves.typical:.1f} s; "
            f"{worker} would end {_sooner(left - there)}"
        )
        moves.actions.append(
            Handoff(shard=task.shard, worker=task.worker, meant_for=worker, reason=reason)
        )
        if not free:
            return


def _exchange(moves: _Moves) -> None:
    """Exchange the shards of two busy workers if the later of the two would end sooner."""
    level = _level_seconds(moves)
    movable = [(left, task) for left, task in moves.movable() if not moves.stalled(task)]
    while movable:
        left, late = movable.pop(0)
        # No exchange can end the round before `level`, and all other shards end before this one.
        if left <= level + moves.gain:
            return
        first = max(len(movable) - PARTNERS_MAX, 0)
        after = [
            (_after_seconds(moves, late, other), place)
            for place, (_, other) in enumerate(movable[first:], first)
            if _differ(moves, late, other)
            # Each of the two workers must have what the other's shard needs.
            and moves.view.may_train(late.worker, other.shard)
            and moves.view.may_train(other.worker, late.shard)
        ]
        ends, place = min(after, default=(inf, 0))
        if ends == inf:
            continue
        other = movable[place][1]
        if not moves.pays(left - ends, (late.worker, left), (other.worker, ends)):
            continue
        movable.pop(place)
        who = f"{late.worker} ({expected(left)}) and {other.worker}"
        reason = f"{who} exchange: both would end {_sooner(left - ends)}"
        for task, to in ((late, other.worker), (other, late.worker)):
            moves.actions.append(
                Handoff(shard=task.shard, worker=task.worker, meant_for=to, reason=reason)
            )


def _level_seconds(moves: _Moves) -> float:
    """Return the seconds to the round's end if the busy workers could share all remaining work."""
    samples = speeds = 0.0
    for task in moves.view.running:
        speed = moves.outlook.speeds.get(task.worker, 0.0)
        left = moves.outlook.left_seconds(task)
        speeds += speed
        # If a worker makes no step, we can't rely on its work, so we count its whole shard.
        samples += speed * left if left is not None and left < inf else task.samples
    return samples / speeds if speeds > 0 else 0.0


def _after_seconds(moves: _Moves, late: RunningTask, other: RunningTask) -> float:
    """Return the seconds until both shards have their updates if they are exchanged."""
    mine = moves.outlook.seconds_for((1 - late.done) * late.samples, other.worker)
    yours = moves.outlook.seconds_for((1 - other.done) * other.samples, late.worker)
    # Each worker waits for the other's next step.
    wait = max(moves.outlook.step_seconds(task.worker) for task in (late, other))
    return max(mine, yours) + wait + moves.cost


def _differ(moves: _Moves, late: RunningTask, other: RunningTask) -> bool:
    """Whether two workers differ enough in speed, and their shards in remaining work."""
    slow, fast = (moves.outlook.speeds[task.worker] for task in (late, other))
    gap = (1 - late.done) * late.samples - (1 - other.done) * other.samples
    return fast > slow * moves.view.number("speed_gap") and gap >= moves.gap * late.samples


def _no_sooner(saved_seconds: float, gain_seconds: float) -> str:
    """Say why a hand-over that saves this much beyond its cost does not pay."""
    if saved_seconds <= 0:
        return "would end no sooner"
    asked = f"a move must save {gain_seconds:.1f} s"
    why = asked if saved_seconds <= gain_seconds else "speeds are less certain than that"
    return f"would end {_sooner(saved_seconds)}, but {why}"


def _sooner(seconds: float) -> str:
    return f"{seconds:.1f} s sooner" if seconds < inf else "sooner"


HANDOFF = Policy(
    between=pair,
    decide=_handoff,
    watches=True,
    hands_over=True,
    standing_by=_standing_by,
    contributions=contributions,
    # Most are shares of a usual task, so that they mean the same for tasks of seconds and of hours.
    # We found them by simulating 16 workers and one standby on recorded traces. There, moves to
    # idle workers alone saved 77 % of the time that stragglers cost. Exchanges raised that to 89 %,
    # with about 20 moves per round. `docs/results/policies.md` measures the finished policy.
    options={
        "cost": 0.012,  # in that simulation: 0.01 for handing over, 0.002 for publishing the state
        "gain": 0.02,  # a move must save this beyond its cost: forecasts err, and moves cost
        "doubt": 2.0,  # standard errors: by chance, one in 40 comparisons exceeds them
        "late": 1.1,  # times the median, because tasks of equal workers differ by a few percent
        "speed_gap": 1.15,  # with less, equal workers would exchange shards because of noise
        "progress_gap": 0.12,  # a wider gap means fewer moves; half as many save nearly as much
        "settle": 0.02,  # only after its first steps do we know a shard's pace at its new worker
        "stalled": 0.3,
        "stalled_seconds": 3.0,  # at long tasks a worker reports once a second: less says nothing
    },
)
