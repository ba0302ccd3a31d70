"""Each worker's contribution to the active experiment, in its policy's forecast."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from downpour.core.scheduler.round_view import view_of
from downpour.core.scheduler.state import SchedulerState
from downpour.core.stragglers import Saving

WORKERS_MAX, SHARDS_MAX = 128, 1024
"""Among more, one worker hardly matters, and the time for the answer would: for each worker that is
asked for it grows with the number of all. At these limits, forty workers take up to 0.09 s."""


def contributions(state: SchedulerState, names: Collection[str]) -> Mapping[str, Saving]:
    """Return what some workers contribute to the current round; empty if nothing can be said.

    That holds between rounds, with too many workers, and with a policy that gives no forecast. It
    also holds if a round does not wait for all shards, or overlaps with the next one.
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
