"""Refuses a spec whose policy cannot work as requested with the available workers."""

from __future__ import annotations

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.core.stragglers.base import Policy


def check_policy(spec: Spec, policy: Policy, workers: int) -> None:
    """Refuse options, standbys, splits and optimizer states that a policy cannot work with.

    Args:
        spec: the spec to run.
        policy: the policy that the spec names.
        workers: the number of workers.

    Raises:
        SpecError: the policy has no such option, or the option's value has the wrong type. Or the
            spec has as many standbys as workers, or standbys that the policy never uses. Or the
            policy recuts the shards, but the spec's shards differ in their data or states, or meet
            several times.
    """
    for name, value in spec.policy_options.items():
        _check_option(spec.policy, policy, name, value)
    # At least one worker must be free to train.
    if spec.standbys >= workers:
        accepted = f"must be less than the number of workers, {workers}"
        raise SpecError("standbys", spec.standbys, accepted)
    if spec.standbys and not policy.watches:
        accepted = (
            f"must be 0, because policy '{spec.policy}' never uses standbys; or use another policy"
        )
        raise SpecError("standbys", spec.standbys, accepted)
    # In other splits, a shard stands for a class or a mixture of classes. A recut would lose that.
    if policy.cuts_rounds and spec.split not in {"random", "equal"}:
        accepted = f"must be random or equal, because policy '{spec.policy}' recuts the shards"
        raise SpecError("split", spec.split, accepted)
    if policy.cuts_rounds and spec.optimizer_state == "keep":
        accepted = (
            f"must be reset, because policy '{spec.policy}' recuts the shards and states "
            "belong to a shard"
        )
        raise SpecError("optimizer_state", spec.optimizer_state, accepted)
    if policy.cuts_rounds and spec.hands_on:
        accepted = f"keeps a residual per shard, but policy '{spec.policy}' recuts the shards"
        raise SpecError("compression", spec.compression, accepted)
    if policy.cuts_rounds and spec.shard_needs:
        accepted = (
            f"must be empty, because policy '{spec.policy}' recuts the shards and their data change"
        )
        raise SpecError("shard_needs", spec.shard_needs, accepted)
    # The parts of a shard would not form one epoch if the policy recut it between them.
    if policy.cuts_rounds and spec.meet != 1:
        accepted = f"must be 1, because policy '{spec.policy}' recuts the shards once per epoch"
        raise SpecError("meet", spec.meet, accepted)


def _check_option(named: str, policy: Policy, name: str, value: object) -> None:
    field = f"policy_options.{name}"
    if name not in policy.options:
        known = ", ".join(policy.options) or "none"
        raise SpecError(field, value, f"policy '{named}' has no such option; it has: {known}")
    usual = policy.options[name]
    # A whole number may replace a fraction. True may replace neither, although bool is an int.
    numbers = isinstance(usual, int | float) and isinstance(value, int | float)
    alike = isinstance(value, bool) == isinstance(usual, bool)
    if not alike or not (numbers or isinstance(value, type(usual))):
        raise SpecError(field, value, f"must have the type of its default, {usual!r}")
    if numbers and not isinstance(value, bool) and value < 0:  # type: ignore[operator]
        raise SpecError(field, value, "must not be negative")
    if numbers and name in policy.largest and value > policy.largest[name]:  # type: ignore[operator]
        raise SpecError(field, value, f"must be at most {policy.largest[name]}")
