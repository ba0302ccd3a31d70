"""A round's update files and their weights → the next model's parameters.

Files are mapped, summed and verified in one pass, in the order of their shards, so the bytes of the
result depend on the contributions and weights alone: not on the order in which they are given, nor
on threads. Memory holds one model, however many updates there are. Nothing that cannot be trusted
ever reaches a result: where anything is wrong with the pass, `examine` says what is wrong with
which shard, so that exactly those are trained again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from downpour.aggregators import summing
from downpour.aggregators.base import Contribution
from downpour.aggregators.examine import examine
from downpour.aggregators.summing import RunningSum, Source
from downpour.errors import NonFinite, SharedDirectoryError, StoreError, UpdatesRefused
from downpour.store import Array, Layout, ParameterFile, Store, decode

_THREADS_MAX = 2  # measured: memory, not arithmetic, is the limit from here on
_ONE_THREAD_BYTES = 32 * 2**20  # measured: below this a second thread costs more than it saves


def fold(
    store: Store,
    contributions: Sequence[Contribution],
    weights: Sequence[float],
    *,
    reference: Layout | None = None,
    threads: int | None = None,
) -> dict[str, Array]:
    """Return the weighted mean of the contributions' parameters.

    Floats are summed in float32 (float64 in float64), numbers of other types are taken from the
    lowest shard. Equal weights are summed first and divided once.

    Args:
        store: Where the files lie.
        contributions: One for each shard.
        weights: As many as contributions, summing to one.
        reference: The layout that all must have; absent: that of most of them.
        threads: How many threads share the work; absent: at most two. It changes no byte.

    Raises:
        UpdatesRefused: files that are missing, altered, of another layout or not finite; names
            all their shards.
        NonFinite: every update is finite, but their sum is not.
    """
    parts, divisor = _in_shard_order(contributions, weights)
    threads = threads or _worthwhile_threads(contributions)
    for _ in range(2):  # what was altered in the pass may be whole when it is read again
        outcome = _sum_once(store, parts, divisor, reference, threads)
        if outcome.tensors is not None:
            return outcome.tensors
        reasons = examine(store, contributions, reference, known=outcome.refused)
        if reasons:
            raise UpdatesRefused(reasons)
        if not outcome.finite and not outcome.altered:
            raise NonFinite("the sum of the updates overflows, although each of them is finite")
    raise UpdatesRefused(dict.fromkeys(outcome.altered, "its bytes change while they are read"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A contribution, and what its numbers are multiplied by."""

    contribution: Contribution
    factor: float

    @property
    def shard(self) -> int:
        return self.contribution.shard


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What a pass came to: tensors, or what stood in their way."""

    tensors: dict[str, Array] | None = None
    refused: dict[int, str] = field(default_factory=dict)
    altered: tuple[int, ...] = ()
    finite: bool = True


def _in_shard_order(
    contributions: Sequence[Contribution], weights: Sequence[float]
) -> tuple[list[_Part], float]:
    """Return the parts in the order of their shards, and what their sum is divided by.

    Raises:
        ValueError: shards stand twice, or weights are not as many or do not sum to one.
    """
    if len({contribution.shard for contribution in contributions}) != len(contributions):
        raise ValueError("a shard contributes twice")
    if abs(math.fsum(weights) - 1) > 1e-9:
        raise ValueError(f"weights sum to {math.fsum(weights)}, not to 1")
    equal = len(set(weights)) == 1
    parts = [
        _Part(contribution=contribution, factor=1.0 if equal else weight)
        for contribution, weight in zip(contributions, weights, strict=True)
    ]
    return sorted(parts, key=lambda part: part.shard), float(len(parts)) if equal else 1.0


def _sum_once(
    store: Store, parts: Sequence[_Part], divisor: float, layout: Layout | None, threads: int
) -> _Outcome:
    """Open, sum and verify all files once, a group at a time; stop at the first that goes wrong."""
    total: RunningSum | None = None
    for start in range(0, len(parts), summing.FILES_AT_ONCE):
        group = parts[start : start + summing.FILES_AT_ONCE]
        is_last = start + len(group) == len(parts)
        files, refused = _open(store, group)
        if refused:
            return _Outcome(refused=refused)
        layout = layout or files[0].layout
        if any(file.layout != layout for file in files):
            return _Outcome(altered=tuple(part.shard for part in group))
        total = total or RunningSum(layout, threads=threads)
        sources = [
            Source(head=file.head, data=file.data, factor=part.factor)
            for file, part in zip(files, group, strict=True)
        ]
        tally = total.add(sources, divisor=divisor if is_last else 1.0)
        altered = tuple(
            part.shard
            for part, checksum in zip(group, tally.checksums, strict=True)
            if checksum != part.contribution.file.checksum
        )
        if altered or not tally.finite:
            return _Outcome(altered=altered, finite=tally.finite)
    return _Outcome(tensors=total.tensors() if total else None)


def _open(store: Store, group: Sequence[_Part]) -> tuple[list[ParameterFile], dict[int, str]]:
    files: list[ParameterFile] = []
    refused: dict[int, str] = {}
    for part in group:
        file = part.contribution.file
        try:
            files.append(decode(store.view(file), file.name))
        except SharedDirectoryError:
            raise  # that is nobody's update
        except StoreError as error:
            refused[part.shard] = str(error)
    return files, refused


def _worthwhile_threads(contributions: Sequence[Contribution]) -> int:
    total_bytes = sum(contribution.file.size_bytes for contribution in contributions)
    return 1 if total_bytes < _ONE_THREAD_BYTES else min(_THREADS_MAX, _processors())


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
