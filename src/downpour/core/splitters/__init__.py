"""Labels and a seed → the shards of a training set, each a sorted array of indices.

One file a member. A splitter only says which shard owns each example; that every index appears
exactly once then follows from the form of its answer. The common part is here: reading the spec's
text, refusing impossible splits, and turning owners into shards. The result depends on the
arguments alone: the split is drawn once and stays fixed for the experiment.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from downpour.base.errors import SpecError
from downpour.core import families
from downpour.core.spec import Spec, parse_split
from downpour.core.splitters.base import Indices, Labels, SplitRequest, Splitter
from downpour.core.splitters.holding_out import hold_out

SPLITTERS: Mapping[str, Splitter] = families.SPLITTERS

_NEED_NO_LABELS = frozenset({"random"})


def split(
    spec_split: str, labels: Labels | None, count: int, shards: int, seed: int
) -> list[Indices]:
    """Split the examples `0..count-1` into shards.

    Args:
        spec_split: the spec's `split`, such as "equal" or "dirichlet(0.5)".
        labels: shape (count,), one class per example; None if examples have no classes.
        count: how many examples there are.
        shards: how many shards to make.
        seed: what every random choice follows from.

    Returns:
        One int64 array of sorted indices a shard, none empty; every index appears exactly once.

    Raises:
        SpecError: the split is unknown, needs labels and there are none, or there are more shards
            than examples.
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
        labels = np.zeros(count, dtype=np.int64)
    if labels.shape != (count,):
        raise ValueError(f"{count} examples, but labels of shape {labels.shape}")
    # Numbered without gaps: a limit may have left some classes without an example.
    _, classes = np.unique(labels, return_inverse=True)
    generator = np.random.default_rng(seed)
    request = SplitRequest(classes=classes, shards=shards, generator=generator, alpha=alpha)
    return _shards_of(SPLITTERS[name](request), shards)


def divide(
    spec: Spec, labels: Labels | None, count: int, shards: int
) -> tuple[list[Indices], Indices]:
    """Divide training examples as a spec says: into its shards, and those set apart for validation.

    Args:
        spec: says how.
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


def _shards_of(owners: Indices, shards: int) -> list[Indices]:
    """Gather each owner's indices; the stable sort leaves them in ascending order."""
    order = np.argsort(owners, kind="stable").astype(np.int64, copy=False)
    ends = np.cumsum(np.bincount(owners, minlength=shards))
    return np.split(order, ends[:-1])


__all__ = ["SPLITTERS", "divide", "split"]
