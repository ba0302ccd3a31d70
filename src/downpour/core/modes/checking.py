"""Finds a spec's mode, or refuses a spec that its mode cannot serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from downpour.base.errors import SpecError
from downpour.core import families
from downpour.core.modes.base import Mode, ModeKind
from downpour.core.spec import ResolvedSpec, Spec

MODES: Mapping[str, ModeKind] = families.MODES

APART = ("handoff", "wait", "dylu")
"""The policies for modes whose shards are rounds apart. They neither close nor cut rounds."""

OVERLAPPING = ("handoff", "wait")
"""The policies for rounds that overlap. Every shard trains all its steps in each round."""


def mode_of(spec: ResolvedSpec) -> Mode:
    """Return the mode that a spec names, with the spec's options.

    Raises:
        SpecError: an option is out of its range.
    """
    kind = MODES[spec.mode]
    mode = kind.make({**kind.options, **spec.mode_options}, spec.shards)
    return replace(mode, ahead=spec.overlap, overlaps=True) if spec.overlap else mode


def check_mode(spec: Spec) -> None:
    """Refuse options that a mode does not have, and fields that need shards to be in step.

    Raises:
        SpecError: names the field, and the accepted values.
    """
    kind = MODES[spec.mode]
    for name, value in spec.mode_options.items():
        if name not in kind.options:
            known = ", ".join(kind.options) or "none"
            accepted = f"mode '{spec.mode}' has no such option; it has: {known}"
            raise SpecError(f"mode_options.{name}", value, accepted)
    if spec.overlap:
        _check_overlap(spec)
    if spec.in_step:
        return
    usual = kind.make(kind.options, 2)
    if usual.mixes and spec.compression != "none":
        accepted = f"must be none, because mode '{spec.mode}' moves toward whole updates"
        raise SpecError("compression", spec.compression, accepted)
    if usual.elastic and spec.publishes_steps:
        accepted = f"must be none, because mode '{spec.mode}' keeps a complete model for each shard"
        raise SpecError("model_compression", spec.model_compression, accepted)
    if usual.elastic and spec.outer.keeps_state:
        accepted = f"must be none, because mode '{spec.mode}' moves the model as far as the shard"
        raise SpecError("outer.optimizer", spec.outer.optimizer, accepted)
    no_rounds = f"mode '{spec.mode}' has no rounds"
    if spec.policy not in APART:
        raise SpecError(
            "policy", spec.policy, f"must be handoff, wait or dylu, because {no_rounds}"
        )
    if spec.stop_after is not None:
        raise SpecError("stop_after", spec.stop_after, f"needs mode 'sync', because {no_rounds}")


def _check_overlap(spec: Spec) -> None:
    """Refuse settings that end or shorten a round, because the next one has begun by then."""
    if spec.mode != "sync":
        accepted = (
            f"must be 0 unless mode is 'sync': mode '{spec.mode}' has its own way to avoid waits"
        )
        raise SpecError("overlap", spec.overlap, accepted)
    if spec.policy not in OVERLAPPING:
        accepted = (
            f"must be 0, because policy '{spec.policy}' acts on one round at a time; or use "
            "handoff or wait"
        )
        raise SpecError("overlap", spec.overlap, accepted)
    if spec.stop_after is not None:
        accepted = (
            "must be 0, because the next round begins before stop_after decides; or leave "
            "out stop_after"
        )
        raise SpecError("overlap", spec.overlap, accepted)
