"""Reruns a recorded run in virtual time: under its own policy and mode, or under others.

Each machine is as fast as its worker was at that moment of the run. So a policy that finishes
earlier never meets the run's later troubles, and a policy that moves a shard pays for loading
again.

A simulation leaves out what it does not know. So the remarks say how far its result for the run's
own tactic is off, which shows how far to trust the others. We don't scale the times by that error:
on runs whose true times we knew, scaling made most of them worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from typing import Any

from rich import box
from rich.table import Table

from downpour.base.errors import SpecError
from downpour.base.states import ExperimentState
from downpour.base.values import AttemptId
from downpour.core.families import MODES, POLICIES
from downpour.core.modes import check_mode
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from downpour.core.spec_fields import Option
from downpour.core.stragglers.base import check_policy
from downpour.predictor import Predictor
from downpour_lab.policylab.comparison import BASELINE, FREE, Show
from downpour_lab.policylab.conditions import Stretch
from downpour_lab.policylab.recorded import RecordedRun, RecordedWorker
from downpour_lab.simulated.environment import Course, Machines, Observation, Observer
from downpour_lab.trials.faults import Fault, FaultKind
from downpour_lab.trials.plan import RETRIES_ENOUGH, Plan, plain_spec
from downpour_lab.trials.striking import Cluster

PREPARED_AT_SECONDS = 0.3 + FREE.prepare_seconds
"""About when a rerun's first task is assigned: the client submits at 0.3 s."""
_AWAY_AT_SECONDS = 2.0
_NEVER_SECONDS = 1e9
_STUCK_FACTOR = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tactic:
    """A policy in a mode, with their options; missing options have their defaults."""

    policy: str
    mode: str
    policy_options: Mapping[str, Option] = field(default_factory=dict)
    mode_options: Mapping[str, Option] = field(default_factory=dict)
    overlap: int = 0

    @classmethod
    def of(cls, spec: ResolvedSpec) -> Tactic:
        """Return the tactic of a run."""
        return cls(**{each.name: getattr(spec, each.name) for each in fields(cls)})

    @property
    def name(self) -> str:
        """The tactic's name."""
        overlap = f", overlap {self.overlap}" if self.overlap else ""
        return f"{self.policy}, {self.mode}{overlap}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A tactic's result: `seconds` from the first assignment to the last version.

    `counted` is the share of all examples that contributed to the model.
    """

    tactic: Tactic
    seconds: float
    counted: float


def tactics_for(run: RecordedRun, names: tuple[str, ...] = ()) -> list[Tactic]:
    """Return the tactics that a run could have used, its own tactic first.

    These are the policies in the run's mode, and the other modes with the policy `wait`; if there
    are `names`, only those. We leave out tactics that the spec does not allow. If the user names
    such a tactic, we refuse it.
    """
    own = Tactic.of(run.spec)
    tactics = [(name, Tactic(policy=name, mode=own.mode, overlap=own.overlap)) for name in POLICIES]
    tactics += [(name, Tactic(policy=BASELINE, mode=name)) for name in MODES]
    found = [own]
    for name, tactic in tactics:
        mine = (tactic.policy, tactic.mode, tactic.overlap) == (own.policy, own.mode, own.overlap)
        if mine or tactic in found or (names and name not in names):
            continue
        try:
            asked = run.spec.replace(**asdict(tactic))
            check_policy(asked, POLICIES[tactic.policy], len(run.workers))
            check_mode(asked)
        except SpecError:
            if name in names:
                raise
            continue
        found.append(tactic)
    return found


def rerun(
    run: RecordedRun,
    tactic: Tactic,
    predictor: Callable[[], Predictor] | None = None,
    show: Show = lambda _: None,
    seed: int = 0,
    plan: Plan | None = None,
) -> Rerun:
    """Simulate a run under a tactic, one of `tactics_for`; see `run_trial` for the arguments.

    The seed decides random choices, such as the order in which workers join. The `plan` is by
    default `plan_of_rerun`.
    """
    watch = RerunWatch(run)
    cluster = Cluster(
        plan or plan_of_rerun(run, tactic, seed),
        lambda _: watch,
        lambda _: None,
        machines=RecordedMachines(run),
        predictor=predictor if POLICIES[tactic.policy].watches else None,
    )

    def look() -> None:
        if cluster.clock.now_seconds > _STUCK_FACTOR * (run.seconds + FREE.prepare_seconds):
            raise AssertionError(f"{tactic.name} does not end")
        show(int(watch.counted * run.rounds))

    cluster.run(lambda: watch.ended, look)
    if watch.failure:
        raise AssertionError(f"{tactic.name}: {watch.failure}")
    return Rerun(tactic=tactic, seconds=watch.seconds, counted=watch.counted)


class RecordedMachines(Machines):
    """Machines that are as fast as a run's workers were; time begins with the first task.

    They report the state of idle ones, because a record doesn't say enough about it.
    """

    def __init__(self, run: RecordedRun) -> None:
        self._workers = {worker.name: worker for worker in run.workers}
        self._sizes = run.sizes
        self._began_at: float | None = None
        self._loaded: dict[str, AttemptId] = {}

    def course(self, machine: str, attempt: AttemptId, at_seconds: float, work: float) -> Course:
        """Return the course of a training that begins now; an attempt's first also loads."""
        if self._began_at is None:
            self._began_at = at_seconds
        worker = self._workers[machine]
        before = self._loaded.get(machine)
        load = 0.0
        if before != attempt:
            load = worker.load_seconds if before is not None else worker.first_load_seconds
        self._loaded[machine] = attempt
        begun = at_seconds - self._began_at + load
        stretch = Stretch(worker.curve, begun, work * self._sizes[attempt.shard])
        return _Loaded(stretch, load, worker.finish_seconds)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A stretch of a curve, with the seconds before a task's first step and after its last."""

    stretch: Stretch
    load_seconds: float
    finish_seconds: float

    def share(self, seconds: float) -> float:
        if not self.stretch.work:  # a policy left no work for it
            return 1.0
        return self.stretch.share(max(0.0, seconds - self.load_seconds))

    def when(self, share: float) -> float:
        finish = self.finish_seconds if share >= 1.0 else 0.0
        return self.load_seconds + self.stretch.when(share) + finish


class RerunWatch(Observer):
    """Times the run's only experiment, and counts its tasks."""

    def __init__(self, run: RecordedRun) -> None:
        self.seconds = 0.0
        self.ended = False
        self.failure = ""
        self._sizes = run.sizes
        self._tasks = sum(run.sizes) * run.rounds
        self._shares: dict[tuple[int, int], float] = {}
        self._counted: dict[tuple[int, int], float] = {}
        self._began_at: float | None = None

    @property
    def counted(self) -> float:
        """The share of all examples that have counted so far."""
        return sum(self._counted.values()) / self._tasks

    def acting(self, step: Observation) -> None:
        """Follow an event and its facts."""
        now = step.core.state.now_seconds
        if isinstance(step.event, on.Aggregated) and self._began_at is not None:
            self.seconds = now - self._began_at
        for fact in step.output.facts:
            match fact:
                case out.Assigned():
                    if self._began_at is None:
                        self._began_at = now
                    self._shares[fact.attempt.round, fact.attempt.shard] = fact.share
                case out.Accepted():
                    key = fact.attempt.round, fact.attempt.shard
                    self._counted[key] = self._shares.get(key, 1.0) * self._sizes[key[1]]
                case out.Concluded():
                    self.ended = True
                    if fact.ending is not ExperimentState.FINISHED:
                        self.failure = fact.reason


def plan_of_rerun(run: RecordedRun, tactic: Tactic, seed: int) -> Plan:
    """Return the plan of a simulation: the run's workers, which come and go as they did."""
    timings = replace(
        FREE,
        aggregate_seconds=run.between_seconds,
        snapshot_seconds=run.spec.snapshot_every,
        saving_seconds=run.saving_seconds,
    )
    spec = plain_spec(
        **asdict(tactic),
        shards=run.spec.shards,
        epochs=run.rounds,
        standbys=run.spec.standbys if POLICIES[tactic.policy].watches else 0,
        retries=RETRIES_ENOUGH,
        evaluate_every=0,
    )
    return Plan(
        seed=seed,
        specs=(("recorded", spec),),
        managers=("manager",),
        workers=tuple(worker.name for worker in run.workers),
        timings=timings,
        faults=_faults(run.workers),
        in_order=True,
    )


def _faults(workers: tuple[RecordedWorker, ...]) -> tuple[Fault, ...]:
    """Return the absences as faults: workers that leave and may come back later."""
    found: list[Fault] = []
    for worker in workers:
        for absence in worker.absences:
            at = max(_AWAY_AT_SECONDS, PREPARED_AT_SECONDS + absence.from_seconds)
            until = PREPARED_AT_SECONDS + absence.until_seconds
            found.append(
                Fault(
                    number=len(found),
                    at_seconds=at,
                    kind=FaultKind.WORKER_DIES if absence.lost else FaultKind.WORKER_LEAVES,
                    target=worker.name,
                    seconds=until - at if until < inf else _NEVER_SECONDS,
                )
            )
    return tuple(found)


_DOUBTFUL = 0.1


def rerun_rows(run: RecordedRun, reruns: Sequence[Rerun]) -> list[dict[str, Any]]:
    """Return a row for each rerun, fastest first; the first rerun has the run's own tactic.

    That row has the time that the run really took. `saves` is the share of this time that another
    tactic saves; it is negative if that tactic takes longer.
    """
    rows = []
    for one in reruns:
        used = one is reruns[0]
        seconds = run.seconds if used else one.seconds
        rows.append(
            {
                "policy": one.tactic.policy,
                "mode": one.tactic.mode,
                "overlap": one.tactic.overlap,
                "used": used,
                "seconds": round(seconds, 3),
                "saves": round(1.0 - seconds / run.seconds, 4),
                "examples": round(one.counted, 4),
            }
        )
    return sorted(rows, key=lambda row: (row["seconds"], not row["used"]))


def rerun_table(run: RecordedRun, rows: Sequence[dict[str, Any]]) -> Table:
    """Make the table that people read."""
    title = (
        f"{run.experiment}: {run.rounds} rounds of {run.spec.shards} shards "
        f"on {len(run.workers)} workers"
    )
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for header in ("policy", "mode"):
        table.add_column(header)
    for header in ("would have\ntaken, s", "saves\n%", "examples\n%"):
        table.add_column(header, justify="right")
    for row in rows:
        overlap = f", overlap {row['overlap']}" if row["overlap"] else ""
        table.add_row(
            row["policy"],
            row["mode"] + overlap,
            f"{row['seconds']:,.1f}",
            "used" if row["used"] else f"{100 * row['saves']:.1f}",
            f"{100 * row['examples']:.0f}",
            style="bold" if row["used"] else "",
        )
    return table


def rerun_remarks(run: RecordedRun, own: Rerun) -> list[str]:
    """Say how far the simulation can be trusted, a sentence each."""
    error = own.seconds / run.seconds - 1.0
    took = (
        f"The run took {run.seconds:.1f} s. Simulated with its own settings, it takes "
        f"{own.seconds:.1f} s ({error:+.1%}); smaller differences in the table mean nothing."
    )
    compared = (
        "Each worker is as fast as it was at that moment of the run, and after the run's "
        "end as fast as in its last task. The table only compares times: another mode, "
        "or fewer examples, trains another model."
    )
    remarks = [took, compared]
    if abs(error) > _DOUBTFUL:
        remarks.append("The simulation is far from the real run, so take the table only as a hint.")
    if run.failed:
        remarks.append(
            f"{run.failed} attempts failed; the simulation does not include failed tasks."
        )
    return remarks
