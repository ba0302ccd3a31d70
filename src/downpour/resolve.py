"""What was asked for, and the workers that there are → what will run."""

from __future__ import annotations

from collections.abc import Mapping

from downpour.errors import SpecError
from downpour.spec import ResolvedSpec, Spec
from downpour.stragglers import POLICIES, Policy, check_policy


def resolve(
    spec: Spec, workers: int | None, policies: Mapping[str, Policy] = POLICIES
) -> ResolvedSpec:
    """Say how many shards there are: those that the spec names, else one for each worker.

    Standbys are for those that fall behind, so they have none of their own.

    Args:
        spec: what was asked for.
        workers: how many there are; None where that is not known yet.
        policies: those that a spec can name.

    Raises:
        SpecError: the policy cannot do with these workers, or there is nothing to count.
    """
    # A policy judges standbys by the workers: those that are not known yet may be enough.
    check_policy(spec, policies[spec.policy], workers or spec.standbys + 1)
    if spec.shards is None and not workers:
        raise SpecError("shards", None, "no worker is there to count; name a number of shards")
    shards = spec.shards or (workers or 0) - spec.standbys
    return ResolvedSpec.make({**spec.model_dump(), "shards": shards})
