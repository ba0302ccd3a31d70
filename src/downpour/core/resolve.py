"""Turns a spec and the number of workers into the spec that will run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from downpour.base.errors import SpecError
from downpour.core.automatic import LocalOptimizer, decided
from downpour.core.modes import check_mode, mode_of
from downpour.core.spec import ResolvedSpec, Spec
from downpour.core.stragglers import POLICIES, Policy, check_policy


def resolve(
    spec: Spec,
    workers: int | None,
    policies: Mapping[str, Policy] = POLICIES,
    trainer: LocalOptimizer | None = None,
) -> ResolvedSpec:
    """Fix the number of shards: the spec's own, or else one for each worker that isn't a standby.

    Then decide the fields that are `auto` (`automatic.py`). That looks at the spec and not at the
    data, so the number of rounds follows from the resolved spec alone. If a training is not
    repeatable, no other worker can continue its tasks. So it takes no snapshots, and the policy
    `wait` replaces `handoff`.

    Args:
        spec: the spec as the user gave it.
        workers: the number of workers; None if it is not known yet.
        policies: the policies that a spec can name.
        trainer: the optimizer of the spec's task, if it brings its own.

    Raises:
        SpecError: the mode or the policy cannot serve the spec, or needs more workers; or both
            shards and workers are missing; or `inside` has not been measured yet.
    """
    # A policy checks that there are more workers than standbys. While we don't know their number,
    # we assume that it suffices.
    check_policy(spec, policies[spec.policy], workers or spec.standbys + 1)
    check_mode(spec)
    if spec.inside.how == "auto":
        accepted = "only a run on this machine can measure it; set processes and how"
        raise SpecError("inside.how", "auto", accepted)
    if spec.shards is None and not workers:
        raise SpecError("shards", None, "no worker is registered yet; set the number of shards")
    shards = spec.shards or (workers or 0) - spec.standbys
    open_ones = decided(spec, shards, policies[spec.policy], trainer)
    fields = {**spec.model_dump(), "shards": shards, **open_ones}
    if not spec.repeatable:
        fields["snapshot_every"] = 0.0
        fields["policy"] = "wait" if spec.policy == "handoff" else spec.policy
    resolved = ResolvedSpec.make(fields)
    mode = mode_of(resolved)  # refuses options that are out of their range
    if resolved.outer.optimizer == "delayed-nesterov" and not resolved.outer.every:
        every = ceil(shards / (mode.together or shards))
        return resolved.replace(outer={**resolved.outer.model_dump(), "every": every})
    return resolved


def oddities(spec: ResolvedSpec, examples: Sequence[int]) -> tuple[str, ...]:
    """Return a line for each setting that can't take full effect.

    `examples` are the numbers of examples of each shard.
    """
    lines, largest = [], max(examples, default=0)
    if spec.batch_size > largest:
        lines.append(
            f"batch_size {spec.batch_size:,} exceeds the {largest:,} examples of the largest "
            "shard: each step takes them all"
        )
    if spec.policy == "replace" and not spec.standbys:
        lines.append(
            "policy replace has no standbys: it can replace a straggler only while "
            "another worker is idle"
        )
    return tuple(lines)
