"""A round's update files and their weights → the next model's parameters.

The fold maps, sums and verifies files in one pass, along a tree over their shards (`tree.py`). So
the bytes of the result depend only on the contributions, their weights and the model that they
started from. They do not depend on the order of arrival, on threads, or on sums made before the
last update came (`gathering.py`). Memory holds one model, and a few more if we cannot map all
updates at once. Damaged data never reaches a result: if a pass fails, `examine` finds the damaged
shards and their faults, so that workers retrain exactly these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from downpour.base.errors import FileCorrupt, NonFinite, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators.base import Contribution
from downpour.files.aggregators.examine import examine
from downpour.files.aggregators.gathering import Gathering
from downpour.files.aggregators.passes import Base, Counted, Held, Item, Passed, Passes
from downpour.files.aggregators.tree import last_additions
from downpour.files.store import WHOLE, Array, Store
from downpour.host.descriptors import files_at_once

_UNSTEADY = "its bytes change while we read them"


def fold(  # noqa: PLR0913 - the files to sum, and their format
    store: Store,
    base: PublishedFile,
    contributions: Sequence[Contribution],
    weights: Sequence[float],
    *,
    amounts: Sequence[float] | None = None,
    compression: str = WHOLE,
    trained_from: PublishedFile | None = None,
    threads: int | None = None,
    gathered: Gathering | None = None,
) -> dict[str, Array]:
    """Return the weighted mean of the contributions' parameters.

    The formula is x0 - Σ w_i (x0 - x_i), in float32 (float64 in float64): numbers that no update
    changes stay equal to the base's, bit for bit. With equal weights, we sum first and divide once.
    We take numbers of other types from the lowest shard. A non-finite number in the base is a
    constant: it is the same in every update, and stays.

    Args:
        store: Where the files are.
        base: The model that the round began from; all updates must have its tensors.
        contributions: One for each shard.
        weights: As many as contributions, summing to one.
        amounts: The amounts whose shares are the weights, if each is known separately; the fold
            divides by their sum at the end.
        compression: The compression of all updates; a compressed update says how far it moved.
        trained_from: The version that compressed updates say they began from; absent: the base.
        threads: How many threads share the work; absent: at most two. The number changes no byte.
        gathered: The base and earlier sums, which the fold uses up. They change no byte.

    Raises:
        UpdatesRefused: files that are missing, altered, not finite, of another layout or
            compression, or trained from another model; names all their shards.
        NonFinite: every update is finite, but their mean is not.
        StoreError: the base cannot be read.
    """
    parts, divisor = _in_shard_order(contributions, weights, amounts)
    opened = partial(Base.opened, store, base, compression, trained_from)
    known: Base | None = None
    for _ in range(2):  # a file that changed during the pass may be valid on a second read
        if gathered is not None:
            known = gathered.base
        elif known is None or not known.is_verified:
            known = opened()
        held = gathered.take(parts, divisor) if gathered is not None else []
        gathered = None
        passed = _fold_once(store, known, parts, held, divisor, threads)
        if passed.is_right:
            return passed.held[0].kept.tensors()
        reasons = examine(store, known, contributions, known=passed.refused)
        if reasons:
            raise UpdatesRefused(reasons)
        if not passed.sound and not passed.altered and not passed.base_altered:
            raise NonFinite("the mean of the updates overflows, although each one is finite")
    if passed.base_altered:
        raise FileCorrupt(base.name, _UNSTEADY)
    raise UpdatesRefused(dict.fromkeys(passed.altered, _UNSTEADY))


def _fold_once(
    store: Store,
    base: Base,
    parts: Sequence[Counted],
    gathered: Sequence[Held],
    divisor: float,
    threads: int | None,
) -> Passed:
    """Sum all parts, ungathered ones in groups; stop if one fails."""
    done = {part.shard for one in gathered for part in one.parts}
    unread = [part for part in parts if part.shard not in done]
    items: list[Item] = sorted([*gathered, *unread], key=lambda item: item.node)
    passes = Passes(store, base, unread, threads=threads, divisor=divisor)
    passed = Passed()
    for group, following in _groups(items):
        # Read files that do not count, but don't add them; the lowest shard supplies the integers.
        others = [one for one in group if isinstance(one, Counted) and one.factor == 0]
        others = [one for one in others if one is not parts[0]]
        counted = [*passed.held, *(item for item in group if item not in others)]
        steps = list(last_additions([item.node for item in counted], following))
        passed = passes.add(counted, steps, others=others, is_last=following is None)
        if not passed.is_right:
            break
    return passed


def _groups(items: Sequence[Item]) -> Iterator[tuple[Sequence[Item], int | None]]:
    """Yield groups of as many files as we map at once, and the shard that follows each group."""
    group: list[Item] = []
    files, most = 0, files_at_once()
    for item in items:
        if files == most:
            yield group, item.node.shard
            group, files = [], 0
        group.append(item)
        files += isinstance(item, Counted)
    yield group, None


def _in_shard_order(
    contributions: Sequence[Contribution],
    weights: Sequence[float],
    amounts: Sequence[float] | None,
) -> tuple[list[Counted], float]:
    """Return the parts in the order of their shards, and the divisor of their sum.

    Raises:
        ValueError: a shard appears twice, or weights are not as many or do not sum to one.
    """
    if len({contribution.shard for contribution in contributions}) != len(contributions):
        raise ValueError("a shard contributes twice")
    if abs(math.fsum(weights) - 1) > 1e-9:
        raise ValueError(f"weights sum to {math.fsum(weights)}, not to 1")
    factors, divisor = _factors(weights, amounts)
    parts = [
        Counted(contribution=contribution, factor=factor)
        for contribution, factor in zip(contributions, factors, strict=True)
    ]
    return sorted(parts, key=lambda part: part.shard), divisor


def _factors(
    weights: Sequence[float], amounts: Sequence[float] | None
) -> tuple[Sequence[float], float]:
    if amounts is not None and any(amounts):
        return amounts, math.fsum(amounts)
    if len(set(weights)) == 1:
        return (1.0,) * len(weights), float(len(weights))
    return weights, 1.0
