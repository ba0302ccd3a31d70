"""Fills in what a spec leaves open: what depends on the workers, and `auto`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from downpour.base.errors import SpecError
from downpour.base.names import AUTO, CPU
from downpour.core.families import AGGREGATORS, CODECS
from downpour.core.modes import MODES, check_aggregate, check_mode, mode_of
from downpour.core.spec import ResolvedSpec, Spec, batches_in
from downpour.core.stragglers.base import POLICIES, Policy, check_policy

SAID_BY_TASK = (
    "accumulate",
    "batch_size",
    "clip_norm",
    "device",
    "epochs",
    "evaluate_batch",
    "keep_best",
    "last_batch",
    "order",
    "precision",
    "seed",
)
"""The fields that a task of another library says, unless the spec names them."""
_MEETINGS = 4
_STEPS_MIN = 10
"""Shards meet more often than `_MEETINGS` only if each round has this many steps."""
_SHORTEST = 0.15
_OUTER_MOMENTUM_MAX = 0.8
_OUTER_MOMENTUM_MIN = 0.2
"""A momentum that lengthens a step by less than a quarter is not worth a file of state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptimizer:
    """The optimizer that trains: the momentum of sgd, or None if it is another one.

    The `settings` are fields that the task says for a spec that does not name them.
    """

    momentum: float | None
    settings: Mapping[str, Any] = field(default_factory=dict)


def decided(
    spec: Spec, shards: int, policy: Policy, trainer: LocalOptimizer | None = None
) -> dict[str, Any]:
    """Decide the fields of a spec that are `auto`; return them with their values.

    The `trainer` is that of a task with its own optimizer; None: the spec's.
    """
    of_spec = LocalOptimizer(momentum=spec.momentum if spec.optimizer == "sgd" else None)
    trainer = trainer or of_spec
    fields: dict[str, Any] = {}
    meet = 1 if spec.meet == AUTO and not _gains(spec, shards, policy, trainer) else spec.meet
    if spec.optimizer_state == "auto":
        fields["optimizer_state"] = _optimizer_state(spec, shards, policy, trainer)
    if spec.outer.optimizer == "auto":
        often = meet == AUTO or (isinstance(meet, int) and meet >= _MEETINGS)
        fields["outer"] = _outer(spec, shards, trainer, meets_often=often)
    if meet == 1:
        fields["meet"] = 1
    if spec.device == AUTO and spec.inside.processes > 1:  # which share the cores of a machine
        fields["device"] = CPU
    return fields


def decided_in(asked: Spec, known: ResolvedSpec) -> dict[str, Any]:
    """Return the values that an earlier decision gave to the fields that are `auto`."""
    fields = {"optimizer_state": known.optimizer_state, "meet": known.meet, "device": known.device}
    was_open = {name: value for name, value in fields.items() if getattr(asked, name) == "auto"}
    said_by_task = {
        name for name in SAID_BY_TASK if asked.task and name not in asked.model_fields_set
    }
    was_open |= {name: getattr(known, name) for name in said_by_task}
    return {**was_open, "outer": known.outer} if asked.outer.optimizer == "auto" else was_open


def explained(asked: Spec, resolved: ResolvedSpec) -> str | None:
    """Return a line that says what each `auto` became; None if no field was `auto`."""
    words: list[str] = []
    if asked.optimizer_state == "auto":
        words.append(f"optimizer_state = {resolved.optimizer_state}")
    if asked.outer.optimizer == "auto":
        outer = resolved.outer
        momentum = f" with momentum {outer.momentum:g}" if outer.keeps_state else ""
        words.append(f"outer.optimizer = {outer.optimizer}{momentum}")
    if asked.meet == AUTO:
        often = f"{_MEETINGS} or more, as a shard's batches allow"
        words.append(f"meet = {often if resolved.meet == AUTO else resolved.meet}")
    if asked.device != resolved.device:
        several = resolved.inside.processes > 1
        cause = "because workers have several processes" if several else f"as {resolved.task} says"
        words.append(f"device = {resolved.device}, {cause}")
    if not words:
        return None
    shards = "1 shard" if resolved.shards == 1 else f"{resolved.shards} shards"
    why = [shards, f"split {resolved.split}", f"mode {resolved.mode}"]
    why += [f"overlap {resolved.overlap}"] if resolved.overlap else []
    momentum = f" with momentum {resolved.momentum:g}" if resolved.optimizer == "sgd" else ""
    named = f"optimizer {resolved.optimizer}{momentum}"
    why += [named if resolved.task is None else f"the optimizer that {resolved.task} takes"]
    return f"auto: {', '.join(words)} ({', '.join(why)})"


def _optimizer_state(spec: Spec, shards: int, policy: Policy, trainer: LocalOptimizer) -> str:
    """Return what becomes of an optimizer's state between rounds: kept, shard by shard, or reset.

    One shard is a plain training, whose optimizer always goes on. A momentum that restarts at zero
    in each round trains too little: with ten shards and two meetings an epoch, keeping it takes
    digits from 86 % to 96 %. We reset the state in modes where keeping it was worse, with a policy
    that recuts the shards, and if updates are compressed. A state travels uncompressed, which would
    undo the saving.

    The rule is for sgd, the spec's or that of a task's own optimizer. An adam that restarts takes
    larger steps at first. That trains some tasks better than keeping its state, and others worse.
    """
    if shards == 1 and not policy.cuts_rounds:
        return "keep"
    trains_better = trainer.momentum is not None and MODES[spec.mode].keeps_momentum
    stays_whole = spec.compression == "none" and not policy.cuts_rounds
    return "keep" if trains_better and stays_whole else "reset"


def _gains(spec: Spec, shards: int, policy: Policy, trainer: LocalOptimizer) -> bool:
    """Whether a training gains from several meetings an epoch, and nothing speaks against them.

    Shards of sgd in step do. With adam, whose state restarts in each round, one meeting was better
    on all tasks that we tried. Compression asks for fewer bytes, and a meeting costs some. The
    other fields count rounds or parts of an epoch, so they were meant for whole epochs.
    """
    is_whole = spec.update_codec == "none" and not spec.publishes_steps
    counts_rounds = policy.cuts_rounds or spec.local_steps is not None or spec.rounds_before
    in_step = spec.in_step and not spec.overlap and shards > 1
    return in_step and trainer.momentum is not None and is_whole and not counts_rounds


def with_meetings(spec: ResolvedSpec, shard_samples: Sequence[int]) -> ResolvedSpec:
    """Return the spec with a number for `meet`, now that we know the examples of each shard."""
    if spec.meet != AUTO:
        return spec
    return spec.replace(meet=meetings_of(shard_samples, spec.batch_size, spec.last_batch))


def rounds_at_most(spec: ResolvedSpec) -> int:
    """Return the number of rounds, or the largest possible one while `meet` is open."""
    return spec.epochs * max(_MEETINGS, spec.shards) if spec.meet == AUTO else spec.rounds


def meetings_of(shard_samples: Sequence[int], batch_size: int, last_batch: str = "even") -> int:
    """Return how often shards that gain from it meet in an epoch.

    Four times, because an average of few steps goes astray less. A larger number of shards is also
    their number of meetings, if each round has ten steps then. The smallest shard has a batch in
    each round. `docs/results/more-workers.md` has the measurements.
    """
    batches = batches_in(min(shard_samples), batch_size, last_batch)
    often = max(_MEETINGS, min(len(shard_samples), batches // _STEPS_MIN))
    return max(1, min(often, batches))


def _outer(
    spec: Spec, shards: int, trainer: LocalOptimizer, *, meets_often: bool
) -> dict[str, Any]:
    """Return the outer optimizer: a Nesterov momentum if shards of sgd are in step, else none.

    The average of many shards moves no farther than one shard does. A local momentum m lengthens a
    step by a factor of 1 / (1 - m). The outer momentum μ adds a factor of 1 / (1 - μ). Together
    they overshoot, so we keep (1 - m)(1 - μ) at 0.15 or more. Also, μ is at most 0.8. Two shards
    need a smaller μ than ten do. So it is at most 1 - 0.8 / shards. If they meet less than four
    times an epoch, it is at most 1 - 1 / shards.

    If rounds overlap, the outer step comes a round late. We have not measured momentum on enough
    tasks in that case, so we use none. If shards have different classes, outer momentum helped on
    some tasks and hurt on others, so we use none. `docs/results/more-workers.md` has the
    measurements.
    """
    shards_are_alike = spec.split in {"random", "equal"}
    gains = shards > 1 and shards_are_alike and spec.in_step and not spec.overlap
    if trainer.momentum is None or not gains:
        return {"optimizer": "none"}
    room = round(1 - _SHORTEST / max(1 - trainer.momentum, 1e-9), 2)
    momentum = min(_OUTER_MOMENTUM_MAX, room, 1 - (0.8 if meets_often else 1) / shards)
    if momentum < _OUTER_MOMENTUM_MIN:
        return {"optimizer": "none"}
    return {"optimizer": "nesterov", "momentum": round(momentum, 2)}


def resolve(spec: Spec, workers: int | None, trainer: LocalOptimizer | None = None) -> ResolvedSpec:
    """Fix the number of shards: the spec's own, or else one for each worker that isn't a standby.

    Then decide the fields that are `auto` (`decided`). That looks at the spec and not at the
    data, so `meet` may stay open until the shards are cut (`with_meetings`). If a training is not
    repeatable, no other worker can continue its tasks. So it takes no snapshots, and the policy
    `wait` replaces `handoff`.

    `workers` is None if their number is not known yet. `trainer` is the optimizer of the spec's
    task, if it brings its own.
    """
    if trainer is not None:
        said = trainer.settings.items()
        spec = spec.replace(**{k: v for k, v in said if k not in spec.model_fields_set})
    # A policy checks that there are more workers than standbys. While we don't know their number,
    # we assume that it suffices.
    check_policy(spec, POLICIES[spec.policy], workers or spec.standbys + 1)
    check_mode(spec)
    if spec.inside.how == "auto":
        accepted = "only a run on this machine can measure it; set processes and how"
        raise SpecError("inside.how", "auto", accepted)
    shards = spec.shards or (workers - spec.standbys if workers else 0)
    if not shards:
        raise SpecError("shards", None, "no worker is registered yet; set the number of shards")
    open_ones = decided(spec, shards, POLICIES[spec.policy], trainer)
    fields = {**spec.model_dump(), "shards": shards, **open_ones}
    if not spec.repeatable:
        fields["snapshot_every"] = 0.0
        fields["policy"] = "wait" if spec.policy == "handoff" else spec.policy
    resolved = ResolvedSpec.make(fields)
    mode = mode_of(resolved)  # refuses options that are out of their range
    check_aggregate(resolved)
    if resolved.outer.optimizer == "delayed-nesterov" and not resolved.outer.every:
        every = ceil(shards / (mode.together or shards))
        return resolved.replace(outer={**resolved.outer.model_dump(), "every": every})
    return resolved


def oddities(spec: ResolvedSpec, examples: Sequence[int]) -> tuple[str, ...]:
    """Return a line for each setting that can't take full effect.

    `examples` are the numbers of examples of each shard.
    """
    lines, largest = [], max(examples)
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
    sends_later = spec.compression != "none" and CODECS[spec.compression].feedback is not None
    if sends_later and hasattr(AGGREGATORS[spec.aggregate], "least"):
        lines.append(
            f"aggregate {spec.aggregate} drops numbers that few updates have: compression "
            f"{spec.compression} sends some only later; choose another codec, such as int8"
        )
    return tuple(lines)
