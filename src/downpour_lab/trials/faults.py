"""The faults of a simulated cluster: their kinds, and how strongly a seed mixes them."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from downpour.base.errors import SpecError
from downpour.base.states import FailureKind
from downpour.core import families
from downpour.core.modes import check_aggregate
from downpour.core.spec import ResolvedSpec
from downpour.core.stragglers.base import POLICIES
from downpour_lab.simulated.disk import DAMAGES, ERRORS, OPERATIONS, DiskTimings
from downpour_lab.simulated.environment import Timings, labels_of
from downpour_lab.simulated.manager import DEATH_POINTS
from downpour_lab.simulated.threads import DIRECTIONS
from downpour_lab.simulated.training import ALIKE, PHASES, WRONG
from downpour_lab.simulated.work import ASKED_WRONGLY


class FaultKind(StrEnum):
    """A kind of fault; the value is its text in a story."""

    MANAGER_DIES = "the manager dies"
    MANAGER_DIES_AT = "the manager dies at its next decision"
    MANAGER_MACHINE_DIES = "the manager's machine dies"
    MANAGER_STANDS_STILL = "the manager stands still"
    MANAGER_STOPS = "the manager is stopped"
    MANAGER_CUT_OFF = "the manager is cut off from all others"
    MANAGER_HALF_CUT_OFF = "the manager is cut off in one direction"
    MANAGER_WITHOUT_FOLDER = "the manager is cut off from the shared directory"
    MANAGER_ISOLATED = "the manager is cut off from all others and the shared directory"
    MANAGER_FLAPS = "the manager's network comes and goes"
    LINK_CUT = "the manager and one worker are cut off from each other"
    DAMAGED_MEANWHILE = "the manager dies, and something is damaged before the next one begins"
    CLOCK_JUMPS = "the manager's clock jumps"
    LOCK_LOST = "the manager's lock is lost without its knowing"
    PREPARATION_FAILS = "the manager cannot prepare an experiment"
    WORKER_DIES = "a worker dies"
    WORKER_DIES_AT = "a worker dies at its next task"
    WORKER_MACHINE_DIES = "a worker's machine dies"
    WORKER_STANDS_STILL = "a worker stands still"
    WORKER_LEAVES = "a worker leaves"
    WORKER_DRAINS = "a worker ends what it has, and leaves"
    WORKER_WRONG = "a worker computes wrong from now on"
    WORKER_DOUBLED = "another worker of the same name begins"
    WORKER_CUT_OFF = "a worker is cut off from the manager"
    WORKER_HALF_CUT_OFF = "a worker is cut off in one direction"
    WORKER_WITHOUT_FOLDER = "a worker is cut off from the shared directory"
    WORKER_ISOLATED = "a worker is cut off from the manager and the shared directory"
    WORKER_FLAPS = "a worker's network comes and goes"
    CONNECTIONS_END = "a worker's connections end"
    HOST_FAR = "a host's messages take long"
    HOST_LOSES = "a host loses messages"
    HOST_THROTTLED = "a host reads and writes files slowly"
    MESSAGES_LOST = "messages are lost"
    MESSAGES_DOUBLED = "messages come twice"
    MESSAGES_HELD_UP = "messages are held up"
    DISK_SLOW = "the shared directory is slow"
    DISK_STALE = "the shared directory shows files late"
    DISK_AWAY = "the shared directory is away"
    DISK_REFUSES = "the shared directory refuses"
    DISK_REFUSES_ONCE = "the shared directory refuses once"
    UPDATE_DAMAGED = "an update is damaged"
    ATTEMPT_FAILS = "an attempt fails"
    CANCELLED = "an experiment is cancelled"
    PAUSED = "an experiment is paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan.

    `number` identifies it within its plan. It lasts for `seconds`; a dead process is back after
    that time. `share` is of messages. The meaning of `amount` depends on the kind: how many times
    slower, how many seconds later, or how many seconds a clock jumps. `detail` names the point
    where a process dies, the direction that is cut, the failing operation and its error, or the
    damaged thing.
    """

    number: int = 0
    at_seconds: float
    kind: FaultKind
    target: str = ""
    seconds: float = 0.0
    share: float = 0.0
    amount: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        about = [self.target, self.detail, f"{self.share:.0%}" if self.share else ""]
        about.append(f"{self.amount:.3g}" if self.amount else "")
        named = ", ".join(word for word in about if word)
        lasting = f", for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind}{f' ({named})' if named else ''}{lasting}"


def _named(*begins: str) -> frozenset[FaultKind]:
    """Return the kinds whose names begin like this; a name begins with the fault's target."""
    return frozenset(kind for kind in FaultKind if kind.name.startswith(begins))


def of_kind(*ends: str) -> frozenset[FaultKind]:
    """Return the kinds whose names end like this, for all targets."""
    return frozenset(kind for kind in FaultKind if kind.name.endswith(ends))


OF_MANAGERS = _named("MANAGER_", "LINK_", "CLOCK_", "DAMAGED_", "PREPARATION_")
OF_WORKERS = _named("WORKER_", "CONNECTIONS_", "UPDATE_", "ATTEMPT_")
OF_HOSTS = _named("HOST_")
DEATHS_OF_MANAGERS = frozenset(
    {
        FaultKind.MANAGER_DIES,
        FaultKind.MANAGER_DIES_AT,
        FaultKind.MANAGER_MACHINE_DIES,
        FaultKind.MANAGER_STOPS,
    }
)
SELDOM = frozenset({FaultKind.CANCELLED, FaultKind.PREPARATION_FAILS})
"""If an experiment ends early, later faults can't show anything in it."""
BY_THEMSELVES = frozenset({FaultKind.PAUSED, FaultKind.WORKER_WRONG})
"""Each has a generator, so that older faults stay as they were."""
IN_SWARMS_ALONE = OF_HOSTS | of_kind("_HALF_CUT_OFF", "_WITHOUT_FOLDER", "_ISOLATED", "_FLAPS")
IN_SWARMS_ALONE |= {FaultKind.LINK_CUT, FaultKind.PREPARATION_FAILS}
IN_SWARMS_ALONE |= BY_THEMSELVES | of_kind("WORKER_MACHINE_DIES", "WORKER_DRAINS")
"""Seeds that draw from all kinds alike leave these out, so that their stories stay the same."""
EVERYWHERE = [kind for kind in FaultKind if kind not in IN_SWARMS_ALONE]
SLOW_FILES = frozenset({FaultKind.DISK_SLOW, FaultKind.HOST_THROTTLED})
VARIANTS: Mapping[FaultKind, Sequence[str]] = {
    FaultKind.MANAGER_DIES_AT: DEATH_POINTS,
    FaultKind.WORKER_DIES_AT: PHASES,
    FaultKind.WORKER_WRONG: WRONG,
    FaultKind.DAMAGED_MEANWHILE: DAMAGES,
    FaultKind.MANAGER_HALF_CUT_OFF: DIRECTIONS,
    FaultKind.WORKER_HALF_CUT_OFF: DIRECTIONS,
    FaultKind.DISK_REFUSES: [f"{error} {each}" for error in ERRORS for each in OPERATIONS],
}
"""The ways in which a fault of a kind strikes; runs must show all of them."""


DISK_PATIENCE_SECONDS = 12.0
UNSEEN_SECONDS = 0.8 * DISK_PATIENCE_SECONDS
"""If a file stays unseen for longer than patience lasts, its reader believes it is missing."""
TRANSFER_SECONDS_MAX = 150.0
"""No file takes longer, however slow the directory is, because a run must end."""

_FAULTS_MAX = 24
_FAULTS_MEAN = 6.0
_KINDS_SHARES = 0.05, 0.15, 0.4, 0.8
_SECONDS_MAX = 180.0
_SHARP_SHARE = 0.25
"""The share of swarms whose faults all strike within seconds of each other."""
_SHARP_SECONDS = 3.0
_SELDOM_SHARE = 0.04
_CLOCK_AHEAD_SECONDS = 3600.0
_CLOCK_BACK_SECONDS = 15.0
_FAILURES = (
    *[FailureKind.NON_FINITE] * 4,
    *[FailureKind.OUT_OF_MEMORY] * 3,
    *[FailureKind.TASK] * 3,
    *[FailureKind.OTHER_CODE] * 2,
    FailureKind.SPEC,
)
_FLAPPING = {FaultKind.MANAGER_FLAPS, FaultKind.WORKER_FLAPS}
_OF_MESSAGES = {
    FaultKind.MESSAGES_LOST,
    FaultKind.MESSAGES_DOUBLED,
    FaultKind.MESSAGES_HELD_UP,
    FaultKind.HOST_LOSES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The limits for faults: their end, the processes, and the experiment that may lose files."""

    until_seconds: float
    managers: tuple[str, ...]
    workers: tuple[str, ...]
    unlucky: str
    slowest_factor: float = 1.0
    """How many times slower the directory may become."""


def slowest_factor(timings: Timings, shards_max: int) -> float:
    """Return how many times slower the directory may become without a transfer that never ends."""
    aggregating = timings.aggregate_seconds + timings.update_seconds * shards_max
    disk = timings.disk.read_seconds, timings.disk.write_seconds, timings.disk.sync_seconds
    managers = timings.prepare_seconds, timings.recover_seconds, timings.evaluate_seconds
    # A transfer takes up to one and a half times its usual time.
    return TRANSFER_SECONDS_MAX / (1.5 * max(aggregating, *disk, *managers))


def swarm_of(random: Random, stage: Stage, *, managers_alone: bool) -> list[Fault]:
    """Draw the faults of a run.

    A run that draws from all kinds alike has a little of each, and some kinds hide others: while
    the directory is away, no worker hangs in a step. So a swarm leaves out most kinds, at random,
    and has more of the others (Groce et al., "Swarm Testing", ISSTA 2012). It draws durations as
    well.
    """
    among = [kind for kind in FaultKind if kind not in {*SELDOM, *BY_THEMSELVES}]
    if managers_alone:
        among = [kind for kind in among if kind in DEATHS_OF_MANAGERS]
    share = random.choice(_KINDS_SHARES)
    chosen = [kind for kind in among if random.random() < share] or [random.choice(among)]
    weights = [random.expovariate(1.0) for _ in chosen]
    many = min(_FAULTS_MAX, 1 + int(random.expovariate(1 / _FAULTS_MEAN)))
    kinds = random.choices(chosen, weights, k=many)
    if not managers_alone:
        kinds += [kind for kind in sorted(SELDOM) if random.random() < _SELDOM_SHARE]
    typical = log_uniform(random, 0.3, 60.0)
    when = _moments(random, stage.until_seconds, len(kinds))
    return [_drawn(random, kind, stage, at, typical) for kind, at in zip(kinds, when, strict=True)]


def log_uniform(random: Random, least: float, most: float) -> float:
    """Draw a number whose logarithm is uniformly distributed."""
    return math.exp(random.uniform(math.log(least), math.log(most)))


def _moments(random: Random, until_seconds: float, many: int) -> list[float]:
    """Draw when faults strike: at any time, or all of them within seconds."""
    if random.random() >= _SHARP_SHARE:
        return [random.uniform(0.0, until_seconds) for _ in range(many)]
    middle = random.uniform(0.0, until_seconds)
    return [max(0.0, random.gauss(middle, _SHARP_SECONDS)) for _ in range(many)]


def _drawn(
    random: Random, kind: FaultKind, stage: Stage, at_seconds: float, typical_seconds: float
) -> Fault:
    target = target_of(random, kind, stage)
    detail = detail_of(random, kind, target, stage)
    seconds = min(_SECONDS_MAX, typical_seconds * random.lognormvariate(0.0, 0.5))
    if kind is FaultKind.DISK_STALE or "ENOENT" in detail:
        seconds = min(seconds, UNSEEN_SECONDS)
    return Fault(
        at_seconds=at_seconds,
        kind=kind,
        target=target,
        seconds=seconds,
        share=random.uniform(0.02, 0.9) if kind in _OF_MESSAGES | _FLAPPING else 0.0,
        amount=_amount(random, kind, stage),
        detail=detail,
    )


def target_of(random: Random, kind: FaultKind, stage: Stage) -> str:
    """Draw the process that a fault strikes, or its host; empty if it strikes all."""
    if kind in OF_MANAGERS:
        return random.choice(stage.managers)
    if kind in OF_WORKERS:
        return random.choice(stage.workers)
    return random.choice((*stage.managers, *stage.workers)) if kind in OF_HOSTS else ""


def _amount(random: Random, kind: FaultKind, stage: Stage) -> float:
    """Draw a fault's `amount`, whose meaning depends on the kind; 0 if a kind has none."""
    if kind in SLOW_FILES:
        return log_uniform(random, 2.0, max(3.0, stage.slowest_factor))
    if kind in _FLAPPING:
        return log_uniform(random, 0.2, 10.0)
    if kind is FaultKind.HOST_FAR:
        return log_uniform(random, 0.01, 20.0)
    if kind is FaultKind.CLOCK_JUMPS:
        back = random.random() < 0.5
        most = _CLOCK_BACK_SECONDS if back else _CLOCK_AHEAD_SECONDS
        return log_uniform(random, 0.1, most) * (-1 if back else 1)
    return 0.0


def detail_of(random: Random, kind: FaultKind, target: str, stage: Stage) -> str:
    """Draw where a process dies, what fails and how, or which host a link leads to."""
    match kind:
        case FaultKind.DISK_REFUSES | FaultKind.DISK_REFUSES_ONCE:
            host = random.choice(("", "", *stage.managers, *stage.workers))
            return f"{random.choice(ERRORS)} {random.choice(OPERATIONS)} {host}".rstrip()
        case FaultKind.DAMAGED_MEANWHILE:
            return f"{random.choice(DAMAGES)} of {stage.unlucky}"
        case FaultKind.LINK_CUT:
            return random.choice(stage.workers)
        case FaultKind.PREPARATION_FAILS:
            return random.choice((ASKED_WRONGLY, "for another reason"))
        case FaultKind.ATTEMPT_FAILS:
            return _failure(random, target, stage.workers)
        case _:
            return random.choice(VARIANTS[kind]) if kind in VARIANTS else ""


def _failure(random: Random, target: str, workers: Sequence[str]) -> str:
    """Draw how an attempt fails; at least one worker has the right code."""
    if random.random() < _SELDOM_SHARE:
        return ALIKE
    how = random.choice(_FAILURES)
    fits = how is not FailureKind.OTHER_CODE or (len(workers) > 1 and target == workers[0])
    return how if fits else FailureKind.TASK


# Durations and specs


def swarm_timings(random: Random, task_seconds: float) -> Timings:
    """Draw how long everything takes."""
    return Timings(
        task_seconds=task_seconds,
        spread=random.choice((0.0, 0.1, 0.3, 0.6)),
        worker_spread=random.choice((0.0, 0.3, 0.6)),
        network_seconds=log_uniform(random, 0.0005, 0.2),
        event_seconds=log_uniform(random, 1e-5, 0.005),
        prepare_seconds=log_uniform(random, 0.05, 3.0),
        aggregate_seconds=log_uniform(random, 0.01, 1.0),
        update_seconds=log_uniform(random, 1e-4, 0.05),
        evaluate_seconds=log_uniform(random, 0.05, 3.0),
        recover_seconds=log_uniform(random, 0.05, 2.0),
        restart_seconds=log_uniform(random, 0.2, 10.0),
        heartbeat_seconds=random.choice((0.5, 1.0)),
        snapshot_seconds=random.choice((0.0, 0.3, 1.0, 3.0)),
        saving_seconds=random.choice((0.0, 0.02, 0.2)),
        resuming_seconds=random.choice((0.0, 0.2, 1.0)),
        checkpoint_rounds=random.choice((1, 1, 2, 5, 50)),
        disk=DiskTimings(
            read_seconds=log_uniform(random, 0.001, 0.1),
            write_seconds=log_uniform(random, 0.002, 0.2),
            sync_seconds=log_uniform(random, 0.0005, 0.05),
            patience_seconds=DISK_PATIENCE_SECONDS,
        ),
    )


def swarm_spec(random: Random, spec: ResolvedSpec) -> ResolvedSpec:
    """Draw the fields that a plan of all kinds leaves at their defaults."""
    compression = spec.compression
    if spec.optimizer_state == "reset" and compression == "none":
        compression = random.choice(("none", *families.CODECS.built_in))
    return spec.replace(
        compression=compression,
        split=_split(random),
        aggregate=_aggregate(random, spec),
        repeatable=random.random() < 0.85 or spec.audit > 0,
        keep_models=random.randint(1, 4),
        **_needs(random, spec),
    )


def _needs(random: Random, spec: ResolvedSpec) -> dict[str, Any]:
    """Draw the labels that shards need; the first worker has all of them, so one always can."""
    if POLICIES[spec.policy].cuts_rounds or random.random() < 0.6:
        return {}
    first, second = labels_of("worker-1")
    drawn = random.sample(range(spec.shards), random.randint(1, spec.shards))
    return {
        "needs": random.choice(((), (), (first,), ("site",))),
        "prefers": random.choice(((), (second,))),
        "shard_needs": {str(shard): (random.choice((first, "site")),) for shard in drawn},
    }


def _aggregate(random: Random, spec: ResolvedSpec) -> str:
    name = random.choice(families.AGGREGATORS.built_in)
    name = "trimmed-mean(0.2)" if name == "trimmed-mean" else name
    with suppress(SpecError):
        check_aggregate(spec.replace(aggregate=name))
        return name
    return "average"


def _split(random: Random) -> str:
    name = random.choice(families.SPLITTERS.built_in)
    return f"dirichlet({random.choice((0.1, 0.5))})" if name == "dirichlet" else name
