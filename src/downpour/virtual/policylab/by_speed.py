"""Compares every straggler policy on machines of given speeds, for a call from Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from downpour.base.arguments import checked_call
from downpour.base.errors import SpecError, did_you_mean
from downpour.core.stragglers import POLICIES
from downpour.predictor import make, read_trained
from downpour.virtual.policylab.comparison import Settings, contender_of, run_trial
from downpour.virtual.policylab.conditions import Unequal

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
    trained = read_trained()
    outcomes = []
    for name in policies or POLICIES:
        contender = contender_of(name, standbys)
        trial = run_trial(contender, job, Settings(), lambda: make("selector", trained))
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
