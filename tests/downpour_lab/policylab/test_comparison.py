"""Policies are compared in the same conditions, and measured by what can be worked out by hand."""

from pathlib import Path

import pytest

from downpour.base.values import SystemState
from downpour.core.stragglers.base import (
    POLICIES,
    Action,
    Assignment,
    Close,
    Handoff,
    Policy,
    RoundView,
    Withdrawal,
)
from downpour.core.stragglers.pairing import pair
from downpour.predictor import MODELS, Trained, make
from downpour_lab.policylab.comparison import (
    ORACLES,
    Contender,
    Settings,
    Trial,
    contenders,
    rounds_on,
    run_trial,
)
from downpour_lab.policylab.conditions import (
    Conditions,
    Curve,
    Memoryless,
    OneStraggler,
    TracedJob,
    Unequal,
    read_recordings,
)
from downpour_lab.policylab.ledger import (
    CODES,
    Reference,
    RoundOutcome,
    gradient_coding,
    reference,
    stochastic_gradient_coding,
)

ROOT = Path(__file__).parents[3]
WAIT = Contender(name="wait", standbys=0)


class ByHand:
    """Hosts that take these seconds for a shard, in every round, and then for another."""

    name = "by hand"
    scenario = "by hand"
    samples = 100
    task_seconds = 10.0

    def __init__(self, *seconds: float, standbys: int = 0, rounds: int = 3) -> None:
        self._seconds = seconds
        self.hosts = len(seconds) - standbys
        self.rounds = rounds

    def curve(self, number: int, host: int) -> Curve:  # noqa: ARG002 - every round is the same
        """Return what a host would do."""
        return Curve((0.0, self._seconds[host]), (0.0, 1.0))

    def state(self, number: int, host: int, seconds: float) -> SystemState:  # noqa: ARG002
        return SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)


def as_policy(
    policy: Policy, conditions: Conditions, standbys: int = 1, *, snapshots: bool = False
) -> Trial:
    """Let a made-up policy do a job, by the name of one that exists."""
    contender = Contender(name="wait", standbys=standbys, snapshots=snapshots)
    return run_trial(contender, conditions, Settings(), policies={"wait": policy})


def hand_over(view: RoundView) -> list[Action]:
    """Hand a shard that is far behind to an idle worker, as it stands."""
    behind = sorted((t for t in view.running if t.meant_for is None), key=lambda t: t.done)
    idle = [name for name in view.idle if name not in {t.meant_for for t in view.running}]
    late = [t for t in behind if t.elapsed_seconds > 5.0 and t.rate < 0.05]
    moves = zip(late, idle, strict=False)
    return [
        *pair(view),
        *(
            Handoff(shard=t.shard, worker=t.worker, meant_for=name, reason="it is late")
            for t, name in moves
        ),
    ]


def copy_late(view: RoundView) -> list[Action]:
    """Have an idle worker begin a late shard as well."""
    late = [t for t in view.running if t.copies == 1 and t.elapsed_seconds > 12.0]
    asked = pair(view)
    idle = [name for name in view.idle if name not in {a.worker for a in asked}]
    copies = zip(late, idle, strict=False)
    return [*asked, *(Assignment(shard=t.shard, worker=n, reason="late") for t, n in copies)]


def begin_again(view: RoundView) -> list[Action]:
    """Withdraw a late shard, and have another worker train it from the beginning."""
    late = [t for t in view.running if t.elapsed_seconds > 12.0 and len(view.idle) > 1]
    return [*pair(view), *(Withdrawal(shard=t.shard, worker=t.worker, reason="") for t in late[:1])]


def close_early(view: RoundView) -> list[Action]:
    """Do without the last shard."""
    enough = len(view.published) == view.shards - 1
    return [*pair(view), *([Close(reason="enough")] if enough else [])]


def trace(job: int, rounds: int) -> TracedJob:
    """Return a job of the trace that the repository has; skips where it is missing."""
    places = [ROOT / "traces" / "traces.npz", ROOT.parent / "shared" / "traces" / "traces.npz"]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        pytest.skip("traces.npz is neither in traces/ nor in ../shared/traces/")
    recordings = read_recordings(path)
    others = [r for r in recordings if r.scenario == recordings[job].scenario and r.number != job]
    return TracedJob(recordings[job], others, rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("job", [0, 11])
def test_waiting_takes_exactly_what_the_slowest_task_of_each_round_took(job: int) -> None:
    """Nothing else takes time here, so whatever a policy gains or costs is its own."""
    conditions = trace(job, rounds=8)
    trial = run_trial(WAIT, conditions, Settings())
    slowest = [max(conditions.curve(r, h).when(1.0) for h in range(16)) for r in range(8)]
    assert [one.seconds for one in trial.rounds] == pytest.approx(slowest, abs=1e-6)
    assert trial.mitigation == pytest.approx(0.0, abs=1e-9)
    assert (trial.extra_work, trial.lost, trial.moves) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    assert trial.nodes == 16


@pytest.mark.parametrize("decide", [copy_late, begin_again])
@pytest.mark.parametrize("conditions", [OneStraggler(from_share=0.5, rounds=6), None])
def test_no_policy_of_whole_shards_does_better_than_the_oracle(
    decide: object, conditions: Conditions | None
) -> None:
    """It knows everything, and gives each shard to the worker that ends it first."""
    policy = Policy(decide=decide, watches=True)  # type: ignore[arg-type]
    trial = as_policy(policy, conditions or trace(18, rounds=6))
    for one, known in zip(trial.rounds, trial.references, strict=True):
        assert one.seconds >= known.whole_shards - 1e-6
        assert known.divided <= known.whole_shards <= known.best_hosts <= known.wait
    assert trial.extra_work > 0.0


def test_handing_over_costs_what_a_move_costs() -> None:
    """A slow host's shard goes to the standby where it stands; nothing is trained twice."""
    conditions = ByHand(10.0, 10.0, 40.0, 10.0, standbys=1, rounds=1)
    trial = as_policy(Policy(decide=hand_over, watches=True), conditions)
    (one,) = trial.rounds
    assert one.moves == 1
    # Seen between the fifth and the seventh second, and gone on with from there, at a tenth a
    # second; the move takes a hundredth of ten seconds.
    assert 5.0 + 8.5 < one.seconds < 7.0 + 8.5
    assert one.busy_seconds - one.useful_seconds == pytest.approx(0.1)
    assert trial.extra_work < 0.01
    assert 0.8 < trial.mitigation < 0.9


def test_copies_and_what_is_dropped_are_extra_work() -> None:
    """A copy that wins leaves the other's time; a closed round what was not counted."""
    conditions = ByHand(10.0, 10.0, 40.0, 10.0, standbys=1, rounds=1)
    trial = as_policy(Policy(decide=copy_late, watches=True), conditions)
    (one,) = trial.rounds
    assert 22.0 <= one.seconds <= 23.5
    assert one.busy_seconds - one.useful_seconds == pytest.approx(one.seconds, abs=0.2)
    assert one.lost == 0.0
    assert one.snapshots == 0
    trial = as_policy(Policy(decide=close_early, watches=True), conditions, 0)
    (one,) = trial.rounds
    assert (one.seconds, one.lost) == pytest.approx((10.0, 1 / 3))
    assert one.busy_seconds - one.useful_seconds == pytest.approx(10.0, abs=0.2)


def test_a_worker_that_continues_a_snapshot_saves_its_steps() -> None:
    """The copy begins after a quarter; what its first owner did until then counts."""
    conditions = ByHand(10.0, 10.0, 40.0, 10.0, standbys=1, rounds=1)
    policy = Policy(decide=copy_late, watches=True)
    (afresh,) = as_policy(policy, conditions).rounds
    (one,) = as_policy(policy, conditions, snapshots=True).rounds
    assert afresh.seconds - 2.8 < one.seconds < afresh.seconds - 2.2
    assert one.snapshots > 0
    assert one.busy_seconds - one.useful_seconds < afresh.seconds - 10.0


def test_references_by_hand() -> None:
    """Three hosts that train, one that stands by."""
    known = reference(ByHand(10.0, 12.0, 40.0, 30.0, standbys=1), 0, standbys=1)
    assert (known.wait, known.ideal, known.kind_ideal) == (40.0, 12.0, 12.0)
    assert (known.best_hosts, known.whole_shards) == (30.0, 20.0)
    assert known.divided == pytest.approx(3 / (1 / 10 + 1 / 12 + 1 / 40 + 1 / 30))


def test_codes_by_hand() -> None:
    """Every host does two shards; the round ends without the slowest, or the two slowest."""
    hosts = ByHand(10.0, 12.0, 14.0, 40.0)
    exact, stochastic = gradient_coding(hosts, 0), stochastic_gradient_coding(hosts, 0)
    assert (exact.seconds, exact.lost) == (28.0, 0.0)
    assert (stochastic.seconds, stochastic.lost) == pytest.approx((24.0, 1 / 6))
    assert exact.busy_seconds == pytest.approx(20.0 + 24.0 + 28.0 + 28.0)
    assert exact.useful_seconds == 76.0


def test_figures_of_a_trial_by_hand() -> None:
    """Mitigation is of sums over rounds, so long rounds count for more."""
    known = {"kind_ideal": 11.0, "best_hosts": 0.0, "whole_shards": 0.0, "divided": 0.0}
    references = (
        Reference(wait=20.0, ideal=10.0, **known),
        Reference(wait=40.0, ideal=10.0, **known),
    )
    rounds = (
        RoundOutcome(seconds=20.0, busy_seconds=110.0, useful_seconds=100.0, moves=2, updates=4),
        RoundOutcome(seconds=10.0, busy_seconds=100.0, useful_seconds=100.0, lost=0.5, snapshots=2),
    )
    trial = Trial(Contender(name="x", standbys=2), "job", "s", 4, rounds, references)
    assert trial.mitigation == pytest.approx(30 / 40)
    assert trial.kind_mitigation == pytest.approx(30 / 38)
    assert (trial.mean_over_ideal, trial.p99_over_ideal) == (1.5, 2.0)
    assert (trial.extra_work, trial.lost, trial.moves) == pytest.approx((0.05, 0.25, 1.0))
    assert (trial.nodes, trial.published) == (6, 4.0)


def test_each_comparable_policy_is_listed_once() -> None:
    """Policies, codes and oracles have no name in common."""
    assert len(set(contenders())) == len(contenders()) == len(POLICIES) + len(CODES) + len(ORACLES)
    for name in (*CODES, *ORACLES):
        trial = run_trial(Contender(name=name, standbys=0), Memoryless(rounds=2), Settings())
        assert len(trial.rounds) == 2


def test_forecasts_reach_a_policy_that_watches() -> None:
    """They come of what the simulated workers' heartbeats tell, with a predictor for each run."""
    seen: list[tuple[int, bool, bool]] = []

    def look(view: RoundView) -> list[Action]:
        is_forecast = any(task.remaining is not None for task in view.running)
        seen.append((view.round, bool(view.paces), is_forecast))
        return [*pair(view)]

    policies = {"wait": Policy(decide=look, watches=True)}
    trained = Trained(lstm={}, ridge={}, traces="")
    assert "ewma" in MODELS
    job = OneStraggler(from_share=0.0, rounds=2)
    run_trial(WAIT, job, Settings(), lambda: make("ewma", trained), policies=policies)
    later = [told for told in seen if told[0] == 1]
    assert all(paces for _, paces, _ in later)
    assert any(is_forecast for _, _, is_forecast in later)


@pytest.mark.slow
def test_a_policy_that_leaves_everything_undone_is_found_out() -> None:
    """Rather than waited for."""
    policy = Policy(decide=lambda _: [], watches=True)
    with pytest.raises(AssertionError, match="does not end"):
        as_policy(policy, ByHand(1.0, 1.0, rounds=1), standbys=0)


@pytest.mark.parametrize(("shards", "speed"), [(4, 1 / 2), (4, 1 / 30), (8, 1 / 4), (8, 1 / 30)])
def test_a_slow_machine_more_costs_nothing_once_it_is_known(shards: int, speed: float) -> None:
    """Four fast machines end the later rounds as soon as without it, but for five percent."""
    handoff = Contender(name="handoff", standbys=0, snapshots=True)

    def later(*speeds: float) -> float:
        job = Unequal(speeds=speeds, hosts=shards, rounds=6)
        rounds = rounds_on(len(speeds), handoff, job, Settings(heartbeat_seconds=0.5))
        return sum(one.seconds for one in rounds[1:])

    assert later(speed, 1.0, 1.0, 1.0, 1.0) <= 1.05 * later(1.0, 1.0, 1.0, 1.0)


@pytest.mark.slow
def test_a_worker_relieved_before_its_first_step_is_remembered() -> None:
    """At a thirtieth of the speed, a long step is not done by then; the machine is seldom tried."""
    handoff = Contender(name="handoff", standbys=0, snapshots=True)

    def later(*speeds: float) -> float:
        job = Unequal(speeds=speeds, hosts=6, rounds=10, task_seconds=1.6)
        settings = Settings(heartbeat_seconds=0.1, steps=20, moving=0.05)
        return sum(one.seconds for one in rounds_on(len(speeds), handoff, job, settings)[1:])

    assert later(1 / 30, 1.0, 1.0, 1.0, 1.0) <= 1.05 * later(1.0, 1.0, 1.0, 1.0)
