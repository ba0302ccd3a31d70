"""A round's update files and their weights → the next model's parameters.

Files are mapped, summed and verified in one pass, in the order of their shards, so the bytes of the
result depend on the contributions, their weights and the model they were trained from alone: not on
the order in which they are given, nor on threads. Memory holds one model, however many updates
there are. Nothing that cannot be trusted ever reaches a result: where anything is wrong with the
pass, `examine` says what is wrong with which shard, so that exactly those are trained again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from downpour.base.errors import (
    FileCorrupt,
    NonFinite,
    SharedDirectoryError,
    StoreError,
    UpdatesRefused,
)
from downpour.base.values import PublishedFile
from downpour.files.aggregators import summing
from downpour.files.aggregators.base import Contribution
from downpour.files.aggregators.examine import examine
from downpour.files.aggregators.summing import RunningSum, SummedFile
from downpour.files.store import WHOLE, Array, ParameterFile, Store, UpdateFormat, decode
from downpour.host.cores import usable_cores

_THREADS_MAX = 2  # measured: memory, not arithmetic, is the limit from here on
_ONE_THREAD_BYTES = 32 * 2**20  # measured: below this a second thread costs more than it saves
_UNSTEADY = "its bytes change while they are read"


def fold(
    store: Store,
    base: PublishedFile,
    contributions: Sequence[Contribution],
    weights: Sequence[float],
    *,
    compression: str = WHOLE,
    trained_from: PublishedFile | None = None,
    threads: int | None = None,
) -> dict[str, Array]:
    """Return the weighted mean of the contributions' parameters.

    It is computed as x0 - Σ w_i (x0 - x_i), in float32 (float64 in float64): what no update changes
    is the base's to the bit. Equal weights are summed first and divided once. Numbers of other
    types are taken from the lowest shard. What is not finite in the base is a constant: it is the
    same in every update, and stays.

    Args:
        store: Where the files lie.
        base: The model that the round began from; all updates must have its tensors.
        contributions: One for each shard.
        weights: As many as contributions, summing to one.
        compression: That of all updates; a compressed one says how far it moved.
        trained_from: The version that compressed ones say they began from; absent: the base.
        threads: How many threads share the work; absent: at most two. It changes no byte.

    Raises:
        UpdatesRefused: files that are missing, altered, not finite, of another layout or
            compression, or trained from another model; names all their shards.
        NonFinite: every update is finite, but their mean is not.
        StoreError: the base cannot be read.
    """
    parts, divisor = _in_shard_order(contributions, weights)
    threads, began = threads or _worthwhile_threads(contributions), trained_from or base
    for _ in range(2):  # a file that changed during the pass may be valid when it is read again
        outcome = _sum_once(store, base, parts, divisor, threads, compression, began)
        if outcome.tensors is not None:
            return outcome.tensors
        reasons = examine(
            store,
            base,
            contributions,
            known=outcome.refused,
            compression=compression,
            trained_from=began,
        )
        if reasons:
            raise UpdatesRefused(reasons)
        if not outcome.sound and not outcome.altered and not outcome.base_altered:
            raise NonFinite("the mean of the updates overflows, although each of them is finite")
    if outcome.base_altered:
        raise FileCorrupt(base.name, _UNSTEADY)
    raise UpdatesRefused(dict.fromkeys(outcome.altered, _UNSTEADY))


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
    """The outcome of a pass: tensors, or what prevented them."""

    tensors: dict[str, Array] | None = None
    refused: dict[int, str] = field(default_factory=dict)
    altered: tuple[int, ...] = ()
    base_altered: bool = False
    sound: bool = True


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
    store: Store,
    base: PublishedFile,
    parts: Sequence[_Part],
    divisor: float,
    threads: int,
    compression: str,
    trained_from: PublishedFile,
) -> _Outcome:
    """Open, sum and verify all files once, a group at a time; stop at the first that goes wrong."""
    model = decode(store.view(base), base.name)
    form = UpdateFormat.of(model, trained_from, compression)
    total = RunningSum(form, _source(model), divisor=divisor, threads=threads)
    for start in range(0, len(parts), summing.FILES_AT_ONCE):
        group = parts[start : start + summing.FILES_AT_ONCE]
        files, refused = _open(store, group)
        if refused:
            return _Outcome(refused=refused)
        if any(form.misfit(file) for file in files):
            return _Outcome(altered=tuple(part.shard for part in group))
        sources = [_source(file, part.factor) for file, part in zip(files, group, strict=True)]
        tally = total.add(sources, is_last=start + len(group) == len(parts))
        altered = tuple(
            part.shard
            for part, checksum in zip(group, tally.checksums, strict=True)
            if checksum != part.contribution.file.checksum
        )
        base_altered = total.base_checksum != base.checksum
        if altered or base_altered or not tally.sound:
            return _Outcome(altered=altered, base_altered=base_altered, sound=tally.sound)
    return _Outcome(tensors=total.tensors())


def _source(file: ParameterFile, factor: float = 0.0) -> SummedFile:
    return SummedFile(head=file.head, data=file.data, factor=factor)


def _open(store: Store, group: Sequence[_Part]) -> tuple[list[ParameterFile], dict[int, str]]:
    files: list[ParameterFile] = []
    refused: dict[int, str] = {}
    for part in group:
        file = part.contribution.file
        try:
            files.append(decode(store.view(file), file.name))
        except SharedDirectoryError:
            raise  # the directory failed, not this update
        except StoreError as error:
            refused[part.shard] = str(error)
    return files, refused


def _worthwhile_threads(contributions: Sequence[Contribution]) -> int:
    total_bytes = sum(contribution.file.size_bytes for contribution in contributions)
    return 1 if total_bytes < _ONE_THREAD_BYTES else min(_THREADS_MAX, usable_cores())
