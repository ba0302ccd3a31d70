"""Labels and a seed → the shards of a training set, each a sorted array of indices.

Each splitter has its own file. A splitter only says which shard owns each example. So the form of
its answer ensures that every index appears exactly once. This module does the common part: it reads
the spec's text, refuses impossible splits, and turns owners into shards. The result depends on the
arguments alone: an experiment draws its split once and then keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from downpour.base.errors import SpecError
from downpour.core import families
from downpour.core.spec import Spec, parse_split
from downpour.core.splitters.base import Indices, Labels, Numbers, SplitRequest, Splitter
from downpour.core.splitters.holding_out import hold_out

SPLITTERS: Mapping[str, Splitter] = families.SPLITTERS

_NEED_NO_LABELS = frozenset({"random"})
_BLOCK = 1 << 18


def split(
    spec_split: str, labels: Labels | None, count: int, shards: int, seed: int
) -> list[Indices]:
    """Split the examples `0..count-1` into shards.

    Args:
        spec_split: the spec's `split`, such as "equal" or "dirichlet(0.5)".
        labels: shape (count,), one class per example; None if examples have no classes.
        count: how many examples there are.
        shards: how many shards to make.
        seed: the seed of every random choice.

    Returns:
        One int64 array of sorted indices per shard, none empty; every index appears exactly once.

    Raises:
        SpecError: the split is unknown, it needs labels but the dataset has none, or it has more
            shards than examples.
    """
    name, alpha = parse_split(spec_split)
    if not 1 <= shards <= count:
        raise SpecError(
            "shards", shards, f"must be from 1 to {count}, the number of training examples"
        )
    if labels is None:
        if name not in _NEED_NO_LABELS:
            raise SpecError(
                "split", spec_split, "must be random because the dataset has no classes"
            )
        labels = np.zeros(count, dtype=np.uint16)
    if labels.shape != (count,):
        raise ValueError(f"{count} examples, but labels of shape {labels.shape}")
    if shards == 1:
        return [np.arange(count)]
    generator, classes = np.random.default_rng(seed), _without_gaps(labels)
    request = SplitRequest(classes=classes, shards=shards, generator=generator, alpha=alpha)
    return _shards_of(SPLITTERS[name](request), shards)


def divide(
    spec: Spec, labels: Labels | None, count: int, shards: int
) -> tuple[list[Indices], Indices]:
    """Divide training examples as a spec says: into shards and held-out examples for validation.

    Args:
        spec: says how to divide.
        labels: see `split`.
        count: how many examples there are.
        shards: how many shards to make.

    Raises:
        SpecError: see `split` and `hold_out`.
    """
    if not spec.validation:
        return split(spec.split, labels, count, shards, spec.seed), np.empty(0, dtype=np.int64)
    stay, held = hold_out(labels, count, spec.validation, spec.seed)
    there = None if labels is None else labels[stay]
    parts = split(spec.split, there, len(stay), shards, spec.seed)
    return [stay[part] for part in parts], held


def _without_gaps(labels: Labels) -> Numbers:
    """Number classes without gaps: a limit may have left some without an example."""
    present = np.bincount(labels) > 0
    numbers: Numbers = np.cumsum(present) - 1
    classes: Numbers = numbers.astype(np.uint16 if len(numbers) < 1 << 16 else np.int32)[labels]
    return classes


def _shards_of(owners: Numbers, shards: int) -> list[Indices]:
    """Gather each owner's indices in ascending order, some at a time: there may be billions."""
    blocks = range(0, len(owners), _BLOCK)
    counts = sum(np.bincount(owners[at : at + _BLOCK], minlength=shards) for at in blocks)
    ends = np.cumsum(counts)
    gathered, free = np.empty(len(owners), np.int64), ends - counts
    for at in blocks:
        block = owners[at : at + _BLOCK]
        order, count = np.argsort(block, kind="stable"), np.bincount(block, minlength=shards)
        # The place of each in its shard: those free, but for the ones of this block before it.
        places = np.repeat(free - (np.cumsum(count) - count), count) + np.arange(len(block))
        gathered[places] = at + order
        free += count
    return np.split(gathered, ends[:-1])


__all__ = ["SPLITTERS", "divide", "split"]
