"""Makes a plan from a seed: the experiments, the processes and the faults of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from downpour.base.states import FailureKind
from downpour.core import families
from downpour.core.modes import APART, OVERLAPPING
from downpour.core.spec import ResolvedSpec
from downpour.core.spec_fields import Option
from downpour.core.stragglers.base import POLICIES, Policy
from downpour_lab.simulated.disk import DiskTimings
from downpour_lab.simulated.environment import Timings
from downpour_lab.simulated.training import ALIKE
from downpour_lab.trials.faults import (
    DEATHS_OF_MANAGERS,
    DISK_PATIENCE_SECONDS,
    EVERYWHERE,
    SELDOM,
    SLOW_FILES,
    TRANSFER_SECONDS_MAX,
    UNSEEN_SECONDS,
    Fault,
    FaultKind,
    Stage,
    detail_of,
    log_uniform,
    slowest_factor,
    swarm_of,
    swarm_spec,
    swarm_timings,
    target_of,
)

# More retries than all faults of a run can use up, so such an experiment must finish.
RETRIES_ENOUGH = 1000
_FEW_RETRIES = 3
_FAULTS_MAX = 8
_LARGE_SHARE = 0.05
_WORKERS_MAX = 16
_SHARDS_MAX = 24
_MANAGERS_ALONE_SHARE = 0.15
_STEPS_SHARE = 0.3
_BEGINNING_SECONDS = 3.0
_SWARM_SHARE = 0.75
_CANCELLED_SHARE = 0.1
_PAUSED_SHARE = 0.2
_MANAGERS = ("manager-a", "manager-b")
_SHARES = {
    FaultKind.MESSAGES_LOST: 0.5,
    FaultKind.MESSAGES_DOUBLED: 1.0,
    FaultKind.MESSAGES_HELD_UP: 0.5,
}
# Kinds with many variants, such as the points at which a process dies.
_OFTEN = {
    FaultKind.MANAGER_DIES_AT: 4,
    FaultKind.MANAGER_MACHINE_DIES: 3,
    FaultKind.WORKER_DIES_AT: 2,
    FaultKind.DISK_REFUSES: 2,
}
_KINDS = [kind for kind in EVERYWHERE if kind not in SELDOM for _ in range(_OFTEN.get(kind, 1))]
_OPTIONS: dict[str, Callable[[Random], dict[str, Option]]] = {
    "drop": lambda random: {"k": random.choice((1, 0.5, 0.7))},
    "backup": lambda random: {"backups": random.randint(0, 2)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that decides a run; equal plans have equal stories.

    With `in_order`, workers start in the order of their names. `policies` are all policies that a
    spec can name.
    """

    seed: int
    specs: tuple[tuple[str, ResolvedSpec], ...]
    managers: tuple[str, ...]
    workers: tuple[str, ...]
    timings: Timings
    faults: tuple[Fault, ...]
    in_order: bool = False
    policies: Mapping[str, Policy] = field(
        default_factory=lambda: POLICIES, repr=False, compare=False
    )

    def with_faults(self, numbers: set[int]) -> Plan:
        """Return the same plan with only some of its faults."""
        return replace(self, faults=tuple(f for f in self.faults if f.number in numbers))

    @property
    def calm_at_seconds(self) -> float:
        """When the last fault, and any slowness that it causes, is over."""
        return max(map(_over_at_seconds, self.faults), default=0.0)

    @property
    def only_managers_end(self) -> bool:
        """Whether every fault ends a manager, which costs no shard a retry."""
        return all(fault.kind in DEATHS_OF_MANAGERS for fault in self.faults)

    @property
    def may_fail(self) -> set[str]:
        """The experiments that need not finish: cancelled, short of retries or with bad specs."""
        if any(map(_fails_experiments, self.faults)):
            return {name for name, _ in self.specs}
        short = () if self.only_managers_end else self.specs
        few = {name for name, spec in short if spec.retries < RETRIES_ENOUGH}
        cancelled = any(fault.kind is FaultKind.CANCELLED for fault in self.faults)
        return few | ({self.specs[0][0]} if cancelled else set())

    @property
    def tasks(self) -> int:
        """The number of tasks of all experiments."""
        return sum(spec.shards * spec.rounds for _, spec in self.specs)


def plan_of(seed: int, *, swarm: bool | None = None) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: decides all draws.
        swarm: True draws a few kinds of faults, and all durations. False draws from all kinds alike
            that existed before swarms did. None makes most seeds swarms.
    """
    random = Random(f"swarm of {seed}")
    by_chance = random.random() < _SWARM_SHARE
    plan = _plan_of_all_kinds(seed)
    return _as_swarm(plan, random) if (by_chance if swarm is None else swarm) else plan


def _as_swarm(plan: Plan, random: Random) -> Plan:
    timings = swarm_timings(random, plan.timings.task_seconds)
    specs = tuple((name, swarm_spec(random, spec)) for name, spec in plan.specs)
    unlucky = random.choice(specs)[0]
    stage = Stage(
        until_seconds=_until_seconds(plan.tasks, timings.task_seconds, plan.workers),
        managers=plan.managers,
        workers=plan.workers,
        unlucky=unlucky,
        slowest_factor=slowest_factor(timings, max(spec.shards for _, spec in specs)),
    )
    faults = swarm_of(random, stage, managers_alone=plan.only_managers_end)
    if not plan.only_managers_end:
        faults += _pauses(plan.seed, stage)
        faults += _wrong_workers(plan.seed, stage, specs)
    if any(spec.needs or spec.shard_needs for _, spec in specs):
        # The only worker with the needed labels must not have other code.
        other = FailureKind.OTHER_CODE
        faults = [replace(f, detail=FailureKind.TASK) if f.detail == other else f for f in faults]
    if any(fault.kind is FaultKind.DAMAGED_MEANWHILE for fault in faults):
        specs = _with_an_unlucky_one(specs, unlucky)
    return replace(
        plan, specs=specs, timings=timings, faults=_numbered(faults), in_order=random.random() < 0.5
    )


def _pauses(seed: int, stage: Stage) -> list[Fault]:
    """Draw pauses of the first experiment, by themselves: they came later than all other faults."""
    random = Random(f"pauses of {seed}")
    many = random.randint(1, 3) if random.random() < _PAUSED_SHARE else 0
    return [
        Fault(
            at_seconds=random.uniform(0.0, stage.until_seconds),
            kind=FaultKind.PAUSED,
            seconds=log_uniform(random, 0.3, 60.0),
        )
        for _ in range(many)
    ]


def _wrong_workers(
    seed: int, stage: Stage, specs: Sequence[tuple[str, ResolvedSpec]]
) -> list[Fault]:
    """Draw workers that compute wrong, by themselves, for plans that audit."""
    random = Random(f"wrong workers of {seed}")
    many = random.choice((0, 1, 1, 2)) if any(spec.audit for _, spec in specs) else 0
    if any(spec.needs or spec.shard_needs for _, spec in specs):
        # Only the first worker has all labels; in quarantine, it would be missing to the end.
        stage = replace(stage, workers=stage.workers[1:])
        many = many if stage.workers else 0
    kind = FaultKind.WORKER_WRONG
    return [
        Fault(
            at_seconds=random.uniform(0.0, stage.until_seconds / 2),
            kind=kind,
            target=(target := target_of(random, kind, stage)),
            detail=detail_of(random, kind, target, stage),
        )
        for _ in range(many)
    ]


def _plan_of_all_kinds(seed: int) -> Plan:
    random = Random(seed)
    large, managers_alone = random.random() < _LARGE_SHARE, random.random() < _MANAGERS_ALONE_SHARE
    many = random.randint(5, _WORKERS_MAX) if large else random.randint(1, 4)
    workers = tuple(f"worker-{n + 1}" for n in range(many))
    managers = _MANAGERS[: random.choice((1, 1, 2))]
    experiments = random.choice((1, 1, 1, 1, 2, 2, 3, 4))
    specs = tuple(
        (f"e{n + 1}", _spec(random, large=large, few_retries=managers_alone))
        for n in range(experiments)
    )
    for what, changed in _CHANGES.items():
        # It has its own generator, so that everything else about a seed stays the same.
        own = Random(f"{what} of {seed}")
        specs = tuple((name, changed(spec, own)) for name, spec in specs)
    task_seconds = random.uniform(0.5, 4.0)
    tasks = sum(spec.shards * spec.rounds for _, spec in specs)
    until = _until_seconds(tasks, task_seconds, workers)
    among = [kind for kind in _KINDS if kind in DEATHS_OF_MANAGERS] if managers_alone else _KINDS
    kinds = random.choices(among, k=random.randint(1, _FAULTS_MAX))
    kinds += [FaultKind.CANCELLED] if random.random() < _CANCELLED_SHARE else []
    if not managers_alone and any(not POLICIES[spec.policy].preserves_bytes for _, spec in specs):
        kinds += random.choices((FaultKind.UPDATE_DAMAGED, FaultKind.MANAGER_DIES), k=2)
    unlucky = random.choice(specs)[0] if FaultKind.DAMAGED_MEANWHILE in kinds else ""
    specs = _with_an_unlucky_one(specs, unlucky)
    stage = Stage(until_seconds=until, managers=managers, workers=workers, unlucky=unlucky)
    faults = [_fault(random, kind, stage) for kind in kinds]
    return Plan(
        seed=seed,
        specs=specs,
        managers=managers,
        workers=workers,
        timings=Timings(
            task_seconds=task_seconds,
            checkpoint_rounds=random.choice((1, 1, 2, 50)),
            disk=DiskTimings(patience_seconds=DISK_PATIENCE_SECONDS),
            snapshot_seconds=random.choice((0.0, 0.3, 1.0)),
        ),
        faults=_numbered(faults),
    )


def _numbered(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Number faults in the order in which they strike."""
    in_order = sorted(faults, key=lambda fault: fault.at_seconds)
    return tuple(replace(fault, number=n + 1) for n, fault in enumerate(in_order))


def _over_at_seconds(fault: Fault) -> float:
    slows_down = fault.kind in SLOW_FILES and fault.amount
    return fault.at_seconds + fault.seconds + (TRANSFER_SECONDS_MAX if slows_down else 0.0)


def _fails_experiments(fault: Fault) -> bool:
    """Whether an experiment may end without a result if this fault strikes it."""
    if fault.kind is FaultKind.ATTEMPT_FAILS:
        return fault.detail in {FailureKind.SPEC, ALIKE}
    # All workers that are here may be in quarantine.
    return fault.kind in {FaultKind.PREPARATION_FAILS, FaultKind.WORKER_WRONG}


def _until_seconds(tasks: int, task_seconds: float, workers: Sequence[str]) -> float:
    # Twice the time of a run without faults, so that the last faults strike delayed work too.
    return _BEGINNING_SECONDS + 2 * tasks * task_seconds / len(workers)


def _with_an_unlucky_one(
    specs: tuple[tuple[str, ResolvedSpec], ...], unlucky: str
) -> tuple[tuple[str, ResolvedSpec], ...]:
    """Give the experiment that loses files few retries, so that it doesn't wait for lost files."""
    return tuple(
        (name, spec.replace(retries=_FEW_RETRIES) if name == unlucky else spec)
        for name, spec in specs
    )


def plain_spec(**fields: Any) -> ResolvedSpec:
    """Return a spec with the plainest values of fields that a resolved spec must state."""
    plain = {"meet": 1, "last_batch": "rest", "optimizer_state": "reset", "outer": "none"}
    return ResolvedSpec.make({**plain, "device": "cpu", **fields})


def _spec(random: Random, *, large: bool, few_retries: bool) -> ResolvedSpec:
    few = random.randint(0, _FEW_RETRIES)
    # We don't call `resolve`: specs that it refuses, such as idle standbys, must lose nothing
    # either.
    spec = plain_spec(
        seed=random.randint(0, 999),
        shards=random.randint(1, _SHARDS_MAX if large else 5),
        epochs=random.randint(1, 3),
        # Usually more than faults can use up, because an experiment that fails early checks less.
        retries=few if few_retries else random.choice((*[RETRIES_ENOUGH] * 9, few)),
        optimizer_state=random.choice(("reset", "keep")),
        evaluate_every=random.randint(0, 2),
        keep_models=random.randint(1, 2),
    )
    if spec.optimizer_state == "keep" and spec.seed % 2:
        # Error feedback is the other state that a shard's task hands on to the next.
        spec = spec.replace(optimizer_state="reset", compression="topk")
    policy = random.choice(families.POLICIES.built_in)
    options = _OPTIONS[policy](random) if policy in _OPTIONS else {}
    standbys = 0 if policy == "wait" else random.randint(0, 1)
    return spec.replace(policy=policy, policy_options=options, standbys=standbys)


def _with_goal(spec: ResolvedSpec, random: Random) -> ResolvedSpec:
    """Let some keep their best model, end when none gets better, or set examples apart."""
    if not spec.evaluate_every:
        return spec
    keep_best = random.choice((None, "loss", "max:loss"))
    stop_after = random.choice((None, 1, 2))
    epochs = spec.epochs + random.randint(0, 3) if stop_after else spec.epochs
    validation = random.choice((0.0, 0.25))
    return spec.replace(
        keep_best=keep_best, stop_after=stop_after, epochs=epochs, validation=validation
    )


def _with_meetings(spec: ResolvedSpec, random: Random) -> ResolvedSpec:
    """Let some meet several times per epoch, and give some an outer optimizer."""
    meet = 1 if POLICIES[spec.policy].cuts_rounds else random.choice((1, 1, 2, 3))
    # About as many rounds as before, because they decide how long a seed takes.
    epochs = max(1, spec.epochs // meet)
    outer = {"optimizer": random.choice(("none", "delayed-nesterov", "nesterov"))}
    return spec.replace(meet=meet, epochs=epochs, outer=outer)


def _with_mode(spec: ResolvedSpec, random: Random) -> ResolvedSpec:
    """Let the shards of some be out of step, if their policy allows that."""
    mode = random.choice(("sync", "sync", *families.MODES.built_in))
    if mode == "sync" or spec.policy not in APART or spec.standbys:
        return spec
    few, grace = random.randint(1, 3), random.choice((0.0, 0.5, 5.0))
    options: dict[str, dict[str, Option]] = {
        "ssp": {"bound": few - 1},
        "fedbuff": {"k": few},
        "k-sync": {"k": few},
        "quorum": {"quorum": few, "grace_seconds": grace},
    }
    return spec.replace(mode=mode, mode_options=options.get(mode, {}), stop_after=None)


def _with_overlap(spec: ResolvedSpec, random: Random) -> ResolvedSpec:
    """Let the rounds of some overlap, if mode, policy and goal allow that."""
    can = spec.mode == "sync" and spec.policy in OVERLAPPING and spec.stop_after is None
    return spec.replace(overlap=random.choice((0, 1))) if can else spec


def _with_steps(spec: ResolvedSpec, random: Random) -> ResolvedSpec:
    """Publish the versions of some as steps, if their mode allows that."""
    can = spec.mode != "easgd" and random.random() < _STEPS_SHARE
    return spec.replace(model_compression="int8") if can else spec


def _with_audits(spec: ResolvedSpec, random: Random) -> ResolvedSpec:
    """Let a second worker train some tasks of some as well, or all of them."""
    share = random.choice((0.0, 0.0, 0.0, 0.3, 1.0))
    stops = share > 0 and not spec.overlap and random.random() < 0.5
    return spec.replace(audit=share, stop_if_wrong=stops)


_CHANGES = {
    "goals": _with_goal,
    "rounds": _with_meetings,
    "modes": _with_mode,
    "overlaps": _with_overlap,
    "steps": _with_steps,
    "audits": _with_audits,
}


def _fault(random: Random, kind: FaultKind, stage: Stage) -> Fault:
    target = target_of(random, kind, stage)
    # Here, all attempts fail in the same way.
    varies = kind is not FaultKind.ATTEMPT_FAILS
    detail = detail_of(random, kind, target, stage) if varies else ""
    seconds = random.choice((0.5, 2.0, 5.0, 10.0)) * random.uniform(0.5, 1.5)
    return Fault(
        at_seconds=random.uniform(0.0, stage.until_seconds),
        kind=kind,
        target=target,
        seconds=min(seconds, UNSEEN_SECONDS) if "ENOENT" in detail else seconds,
        share=_SHARES.get(kind, 0.0) * random.random(),
        detail=detail,
    )
