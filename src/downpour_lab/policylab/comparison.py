"""Runs every policy under the same conditions, on the real scheduler and simulated processes.

The network, the directory and the aggregation take no time, so that only the conditions and the
policies make a difference. With `wait`, a round takes exactly as long as its slowest task. To
publish a state takes a share of a task, and so does continuing from it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.names import checked_call
from downpour.base.states import Evaluation
from downpour.core.spec_fields import Option
from downpour.core.stragglers.base import POLICIES, Policy
from downpour.predictor import Predictor, pretrained
from downpour_lab.policylab.conditions import Conditions, GivenMachines, Unequal
from downpour_lab.policylab.ledger import CODES, Ledger, Reference, RoundOutcome, reference
from downpour_lab.simulated.disk import DiskTimings
from downpour_lab.simulated.environment import Timings
from downpour_lab.trials.plan import RETRIES_ENOUGH, Plan, plain_spec
from downpour_lab.trials.striking import Cluster

ORACLES: dict[str, Callable[[Reference], float]] = {
    "oracle-best-hosts": lambda seconds: seconds.best_hosts,
    "oracle-whole-shards": lambda seconds: seconds.whole_shards,
    "oracle-divided": lambda seconds: seconds.divided,
}
"""The seconds of each round that perfect knowledge of it would allow."""

BASELINE = "wait"

_STUCK_FACTOR = 1000.0
# A round takes only what conditions and `Settings` say; the references know no other costs.
FREE = Timings(
    patience=1.0,
    network_seconds=0.0,
    deadline_seconds=None,
    event_seconds=0.0,
    prepare_seconds=5.0,  # longer than all workers need to join
    aggregate_seconds=0.0,
    update_seconds=0.0,
    recover_seconds=0.0,
    disk=DiskTimings(read_seconds=0.0, write_seconds=0.0, sync_seconds=0.0),
)

Show = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A policy, a code or an oracle, with its number of standbys and its options.

    With `snapshots`, a worker continues another's shard from the last snapshot. Without them, it
    starts from the beginning, as in the papers that describe most of the policies.
    """

    name: str
    standbys: int
    snapshots: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The costs of moves, as shares of the median task, and the interval of heartbeats.

    `saving` is the cost of publishing a worker's state, `moving` the whole cost of handing over.
    With snapshots, each worker publishes one after every `snapshot_every` of a task. A task has
    `steps`; a worker hands it over, and reports its progress, only between two of them. The share
    `audit` of the tasks is audited.
    """

    saving: float = 0.002
    moving: float = 0.01
    snapshot_every: float = 0.25
    heartbeat_seconds: float = 1.0
    steps: int = 100
    audit: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """A contender's result in one job, with the `evaluation` of the model if we trained one."""

    contender: Contender
    job: str
    scenario: str
    hosts: int
    rounds: tuple[RoundOutcome, ...]
    references: tuple[Reference, ...]
    evaluation: Evaluation | None = None

    @property
    def nodes(self) -> int:
        """The number of machines, standbys included."""
        return self.hosts + self.contender.standbys

    @cached_property
    def seconds(self) -> float:
        """The seconds of all rounds."""
        return sum(each.seconds for each in self.rounds)

    @property
    def mitigation(self) -> float:
        """The share of the stragglers' delay that was saved; 1 if all took the median time."""
        return self._saved([each.ideal for each in self.references])

    @property
    def kind_mitigation(self) -> float:
        """The same, where 1 stands for the slowest task that is no straggler."""
        return self._saved([each.kind_ideal for each in self.references])

    def _saved(self, ideals: list[float]) -> float:
        wait = sum(each.wait for each in self.references)
        lost = wait - sum(ideals)
        return (wait - self.seconds) / lost if lost > 0 else 0.0

    @cached_property
    def over_ideal(self) -> tuple[float, ...]:
        """The rounds' seconds over their ideals, in rising order."""
        pairs = zip(self.rounds, self.references, strict=True)
        return tuple(sorted(outcome.seconds / ideal.ideal for outcome, ideal in pairs))

    @property
    def mean_over_ideal(self) -> float:
        """The mean of a round's seconds over its ideal."""
        return sum(self.over_ideal) / len(self.over_ideal)

    @property
    def p99_over_ideal(self) -> float:
        """The 99th percentile of a round's seconds over its ideal."""
        return self.over_ideal[-1 - len(self.over_ideal) // 100]

    @property
    def extra_work(self) -> float:
        """Workers' time on work that did not count, over their time on work that did."""
        useful = sum(each.useful_seconds for each in self.rounds)
        return sum(each.busy_seconds for each in self.rounds) / useful - 1.0 if useful else 0.0

    @property
    def lost(self) -> float:
        """The share of all samples that the policy dropped, or left out of shorter tasks."""
        return sum(each.lost for each in self.rounds) / len(self.rounds)

    @property
    def accuracy(self) -> float | None:
        """The trained model's accuracy, in 0..1; None if its task has no metric of that name."""
        return self.evaluation.metrics.get("accuracy") if self.evaluation is not None else None

    @property
    def loss(self) -> float | None:
        """The trained model's loss on the test examples."""
        return self.evaluation.loss if self.evaluation is not None else None

    @property
    def worst_class_accuracy(self) -> float | None:
        """The accuracy of the worst class; None if there are no classes."""
        by_class = self.evaluation.class_accuracy if self.evaluation is not None else ()
        return min(by_class, default=None)

    @property
    def trainable(self) -> bool:
        """Whether we can train a model from counted updates: only policies count any."""
        return self.contender.name in POLICIES

    @property
    def moves(self) -> float:
        """How often a shard changed workers per round."""
        return sum(each.moves for each in self.rounds) / len(self.rounds)

    @property
    def published(self) -> float:
        """How many models' worth of files a round writes; a snapshot has momentum as well."""
        written = sum(each.updates + 2 * each.snapshots for each in self.rounds)
        return written / len(self.rounds)


def contenders() -> list[str]:
    """Return the names of all policies, codes and oracles."""
    return [*POLICIES, *CODES, *ORACLES]


def contender_of(
    name: str, standbys: int, own: int | None = None, *, snapshots: bool = False
) -> Contender:
    """Return a contender with `standbys`, or `own` if given; with none if it cannot use any.

    It continues from snapshots if it hands shards over; otherwise only if `snapshots` is true.
    """
    alone = name == BASELINE or name in CODES
    goes_on = snapshots or (name in POLICIES and POLICIES[name].hands_over)
    count = own if own is not None else 0 if alone else standbys
    return Contender(name=name, standbys=count, snapshots=goes_on)


def run_trial(
    contender: Contender,
    conditions: Conditions,
    settings: Settings,
    predictor: Callable[[], Predictor] | None = None,
    show: Show = lambda _: None,
    policies: Mapping[str, Policy] = POLICIES,
) -> Trial:
    """Run one contender in one job.

    The contender is one of `contenders`, with at most as many standbys as the conditions have.
    `predictor` makes a new predictor; without it, managers don't forecast. `show` gets the number
    of finished rounds, from time to time.
    """
    numbers = range(conditions.rounds)
    references = tuple(reference(conditions, n, contender.standbys) for n in numbers)
    if contender.name in ORACLES:
        seconds_of = ORACLES[contender.name]
        rounds = tuple(RoundOutcome(seconds=seconds_of(each)) for each in references)
    elif contender.name in CODES:
        rounds = tuple(CODES[contender.name](conditions, number) for number in numbers)
    else:
        machines = conditions.hosts + contender.standbys
        rounds = rounds_on(machines, contender, conditions, settings, predictor, show, policies)
    show(conditions.rounds)
    return Trial(
        contender, conditions.name, conditions.scenario, conditions.hosts, rounds, references
    )


def rounds_on(
    machines: int,
    contender: Contender,
    conditions: Conditions,
    settings: Settings,
    predictor: Callable[[], Predictor] | None = None,
    show: Show = lambda _: None,
    policies: Mapping[str, Policy] = POLICIES,
) -> tuple[RoundOutcome, ...]:
    """Simulate a policy on the first of the conditions' machines, with a shard for each host.

    There may be fewer machines than hosts, or more. The other arguments are as in `run_trial`.
    """
    names = tuple(f"host-{n}" for n in range(machines))
    plan = replace(_plan(contender, conditions, settings, names), policies=policies)
    ledger = Ledger(plan.timings, conditions.hosts)
    watches = plan.policies[contender.name].watches
    cluster = Cluster(
        plan,
        lambda _: ledger,
        lambda _: None,
        machines=GivenMachines(conditions, plan.workers),
        predictor=predictor if watches else None,
    )
    stuck_at = conditions.rounds * conditions.task_seconds * _STUCK_FACTOR

    def look() -> None:
        if cluster.clock.now_seconds > stuck_at:
            raise AssertionError(f"{contender.name} does not end")
        show(ledger.done)

    cluster.run(lambda: ledger.ended, look)
    if ledger.failure:
        raise AssertionError(f"{contender.name}: {ledger.failure}")
    return ledger.rounds()


def _plan(
    contender: Contender, conditions: Conditions, settings: Settings, names: tuple[str, ...]
) -> Plan:
    task = conditions.task_seconds
    timings = replace(
        FREE,
        heartbeat_seconds=settings.heartbeat_seconds,
        snapshot_seconds=settings.snapshot_every * task * contender.snapshots,
        saving_seconds=settings.saving * task,
        resuming_seconds=max(0.0, settings.moving - settings.saving) * task,
        shard_samples=conditions.samples,
        shard_steps=settings.steps,
    )
    spec = plain_spec(
        policy=contender.name,
        policy_options=dict(contender.options),
        shards=conditions.hosts,
        epochs=conditions.rounds,
        standbys=contender.standbys,
        audit=settings.audit,
        retries=RETRIES_ENOUGH,
        evaluate_every=0,
    )
    return Plan(
        seed=settings.seed,
        specs=(("compared", spec),),
        managers=("manager",),
        workers=names,
        timings=timings,
        faults=(),
        in_order=True,
    )


_ROUNDS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """A policy's gains and costs, on the same machines as the other policies.

    `round_seconds` is the mean of all rounds. `extra_work` is the machines' time on work that did
    not count, over their time on work that did: copies, restarts, shards that the policy left out.
    `lost` is the share of the examples that the policy left out. `moves` is how often a shard
    changed machines per round.
    """

    policy: str
    round_seconds: float
    extra_work: float
    lost: float
    moves: float


@checked_call()
def compare_policies(
    speeds: Sequence[float],
    *,
    standbys: int = 0,
    policies: Sequence[str] = (),
    rounds: int = 10,
    task_seconds: float = 10.0,
    seed: int = 0,
) -> list[PolicyOutcome]:
    """Simulate straggler policies on machines of these speeds, and return each one's outcome.

    The simulation trains no model. It uses a cluster's scheduler and policies, with the pretrained
    forecasts. The network and the folder take no time, and a hand-over takes a hundredth of a task.

    Args:
        speeds: How fast each machine is, as a share of the usual: `[1, 1, 1, 0.25]`. Times vary by
            five percent from round to round.
        standbys: This many of the last machines start without a shard, and help when the policy
            wants it. `wait` does without them.
        policies: Names of policies; all of them by default.
        rounds: Rounds to simulate.
        task_seconds: Seconds that a machine of speed 1 takes for a shard.
        seed: The seed of the variation.

    Raises:
        SpecError: an argument is invalid; the message names it and the values it accepts.
    """
    _check(speeds, standbys, policies, rounds, task_seconds)
    hosts = len(speeds) - standbys
    job = Unequal(
        speeds=tuple(map(float, speeds)),
        hosts=hosts,
        seed=seed,
        rounds=rounds,
        task_seconds=float(task_seconds),
    )
    outcomes = []
    for name in policies or POLICIES:
        contender = contender_of(name, standbys)
        trial = run_trial(contender, job, Settings(), pretrained)
        outcomes.append(
            PolicyOutcome(
                policy=name,
                round_seconds=trial.seconds / rounds,
                extra_work=trial.extra_work,
                lost=trial.lost,
                moves=trial.moves,
            )
        )
    return outcomes


def _check(
    speeds: Sequence[float], standbys: int, policies: Sequence[str], rounds: int, seconds: float
) -> None:
    if not isinstance(speeds, Sequence) or not speeds or not all(map(_is_positive, speeds)):
        raise SpecError("speeds", speeds, "must be a list of numbers above 0, such as [1, 0.25]")
    if not _is_whole(standbys) or not 0 <= standbys < len(speeds):
        accepted = f"must be a whole number from 0 to {len(speeds) - 1}; there are {len(speeds)} "
        raise SpecError("standbys", standbys, accepted + "speeds")
    if isinstance(policies, str) or not isinstance(policies, Sequence):
        raise SpecError("policies", policies, "must be a list, such as ['wait', 'handoff']")
    for name in policies:
        if name not in POLICIES:
            accepted = f"must be of {', '.join(POLICIES)}"
            raise SpecError("policies", name, accepted + did_you_mean(str(name), POLICIES))
    if not _is_whole(rounds) or not 1 <= rounds <= _ROUNDS_MAX:
        raise SpecError("rounds", rounds, f"must be a whole number from 1 to {_ROUNDS_MAX}")
    if not _is_positive(seconds):
        raise SpecError("task_seconds", seconds, "must be a number above 0")


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
