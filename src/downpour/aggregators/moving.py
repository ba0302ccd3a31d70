"""A model version and updates that began from it or from older ones → the next version's numbers.

What asynchronous modes do in place of a round's fold: few updates at a time, usually one, each with
a version of its own that it began from. So files are read whole, which verifies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from downpour.errors import NonFinite, SharedDirectoryError, StoreError, UpdatesRefused
from downpour.store import (
    WHOLE,
    Array,
    ParameterFile,
    Store,
    UpdateFormat,
    decode,
    decompressed,
)
from downpour.values import PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An update, the version from which it counts, and what its step is multiplied by."""

    shard: int
    file: PublishedFile
    base: PublishedFile
    factor: float


def moved(
    store: Store, model: PublishedFile, moves: Sequence[Move], *, compression: str = WHOLE
) -> dict[str, Array]:
    """Return the model after some moves: x - Σ f_i (b_i - x_i), with b_i the base of update x_i.

    A base that is the model itself moves it towards the update's parameters. It is computed in the
    order of the moves, in float32 (float64 in float64). Numbers of other types, such as a count of
    batches, are those of the last move.

    Args:
        store: Where the files lie.
        model: The newest version.
        moves: The updates, each with its base.
        compression: That of all updates; a compressed one says how far it moved from its base.

    Raises:
        UpdatesRefused: files that are missing, altered, not finite, of another layout or
            compression, or trained from another version; names all their shards.
        NonFinite: every update is finite, but the model after them is not.
        StoreError: the model or a base cannot be read.
    """
    begun = decode(store.read(model), model.name)
    tensors = {name: tensor.copy() for name, tensor in begun.tensors.items()}
    reasons: dict[int, str] = {}
    for move in moves:
        base = begun if move.base == model else decode(store.read(move.base), move.base.name)
        form = UpdateFormat.of(base, move.base, compression)
        try:
            update = decode(store.read(move.file), move.file.name)
        except SharedDirectoryError:
            raise  # the directory failed, not this update
        except StoreError as error:
            reasons[move.shard] = str(error)
            continue
        if reason := form.misfit(update) or _unsound(move.file.name, update, begun):
            reasons[move.shard] = reason
            continue
        _add(tensors, base.tensors, update, move.factor)
    if reasons:
        raise UpdatesRefused(reasons)
    if not all(_is_finite(tensor, begun.tensors[name]) for name, tensor in tensors.items()):
        raise NonFinite("the sum of the updates overflows, although each of them is finite")
    return tensors


def _unsound(name: str, update: ParameterFile, model: ParameterFile) -> str:
    """Return what is not finite in an update, or nothing."""
    compressed = dict(decompressed(update))
    for tensor, numbers in {**update.tensors, **compressed}.items():
        if not _is_finite(numbers, model.tensors[tensor]):
            return f"{name}: tensor {tensor!r} holds NaN or infinity"
    return ""


def _add(
    tensors: dict[str, Array], base: Mapping[str, Array], update: ParameterFile, factor: float
) -> None:
    """Add an update's step, times a factor."""
    steps = dict(decompressed(update))
    for name, tensor in tensors.items():
        if tensor.dtype.kind != "f":
            np.copyto(tensor, update.tensors[name])
            continue
        # What is not finite in the model is a constant, such as an attention's mask; overflow is
        # looked for in the end.
        with np.errstate(invalid="ignore", over="ignore"):
            wide = np.promote_types(tensor.dtype, np.float32)
            step = steps.get(name)
            if step is None:
                step = np.subtract(base[name], update.tensors[name], dtype=wide)
            after = tensor - factor * step
            np.copyto(tensor, after, where=np.isfinite(tensor), casting="same_kind")


def _is_finite(numbers: Array, model: Array) -> bool:
    """Whether all numbers are finite, but those that are not in the model either."""
    if numbers.dtype.kind != "f":
        return True
    return bool((np.isfinite(numbers) | ~np.isfinite(model)).all())
