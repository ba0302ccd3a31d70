"""A model version and updates that began from it or from older ones → the next version's numbers.

What asynchronous modes do in place of a round's fold: few updates at a time, usually one, each with
a version of its own that it began from. So files are read whole, which verifies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from downpour.aggregators.examine import first_unsound
from downpour.aggregators.summing import is_sound
from downpour.errors import FileCorrupt, NonFinite, SharedDirectoryError, StoreError, UpdatesRefused
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

    A base that is the model itself moves it towards the update's parameters. So are the buffers
    moved whatever the base is, those that the model's file names: steps of several shards from one
    old version add up, and would carry a running variance below zero. It is computed in the order
    of the moves, in float32 (float64 in float64). Numbers of other types, such as a count of
    batches, are those of the last move.

    Args:
        store: Where the files lie.
        model: The newest version.
        moves: The updates, each with its base; a factor is above 0 and at most 1.
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
            update, differences = _read(store, move.file, form, begun)
        except SharedDirectoryError:
            raise  # the directory failed, not this update
        except StoreError as error:
            reasons[move.shard] = str(error)
            continue
        for name, numbers in tensors.items():
            start = numbers if name in form.buffers else base.tensors[name]
            _add(numbers, start, update.tensors[name], differences.get(name), move.factor)
    if reasons:
        raise UpdatesRefused(reasons)
    if not all(is_sound(tensor, begun.tensors[name]) for name, tensor in tensors.items()):
        raise NonFinite("the sum of the updates overflows, although each of them is finite")
    return tensors


def own_after(store: Store, model: PublishedFile, move: Move) -> dict[str, Array]:
    """Return a shard's own parameters after it has met the model: x_i - f (x_i - x).

    The model moves by the same distance, the other way (`moved`). Numbers that are no floats are
    the shard's.

    Raises:
        UpdatesRefused: the update is missing or altered.
        StoreError: the model cannot be read.
    """
    begun = decode(store.read(model), model.name)
    try:
        update, _ = _read(store, move.file, UpdateFormat.of(begun, model, WHOLE), begun)
    except SharedDirectoryError:
        raise
    except StoreError as error:
        raise UpdatesRefused({move.shard: str(error)}) from error
    tensors = {name: tensor.copy() for name, tensor in update.tensors.items()}
    for name, numbers in tensors.items():
        if numbers.dtype.kind == "f":
            _add(numbers, update.tensors[name], begun.tensors[name], None, move.factor)
    return tensors


def _read(
    store: Store, file: PublishedFile, form: UpdateFormat, model: ParameterFile
) -> tuple[ParameterFile, dict[str, Array]]:
    """Return an update, and the differences that it holds in place of numbers, by name."""
    update = decode(store.read(file), file.name)
    if misfit := form.misfit(update):
        raise FileCorrupt(file.name, misfit)
    differences = dict(decompressed(update))
    if tensor := first_unsound(update, model, differences):
        raise FileCorrupt(file.name, f"tensor {tensor!r} holds NaN or infinity")
    return update, differences


def _add(numbers: Array, base: Array, update: Array, difference: Array | None, f: float) -> None:
    """Add one tensor's step, which is its difference if that is known, times a factor."""
    if numbers.dtype.kind != "f":
        np.copyto(numbers, update)
        return
    # What is not finite in the model is a constant, such as an attention's mask; overflow is looked
    # for in the end.
    with np.errstate(invalid="ignore", over="ignore"):
        if difference is None:
            wide = np.promote_types(numbers.dtype, np.float32)
            difference = np.subtract(base, update, dtype=wide)
        np.copyto(
            numbers, numbers - f * difference, where=np.isfinite(numbers), casting="same_kind"
        )
