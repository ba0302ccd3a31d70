"""A model version and updates that began from it or from older ones → the next version.

Asynchronous modes use this instead of a round's fold. They take few updates at a time, usually one,
and each update has its own start version. So we read updates whole, which verifies them, and mostly
keep versions in memory (`Versions`). We compute in windows that stay in the processor's cache, and
look for errors only if a window's sum is not finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from downpour.base.errors import FileCorrupt, NonFinite, StoreError, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators.passes import Base, first_unsound, refusing
from downpour.files.aggregators.summing import is_sound
from downpour.files.store import (
    WHOLE,
    Array,
    ParameterFile,
    Parameters,
    Store,
    UpdateFormat,
    base_of,
    decode,
    decompressed,
    plan_layout,
    read_version,
)

_LIMIT_BYTES = 256 * 2**20


class Versions:
    """The model versions of one experiment; use it from one thread.

    Each version is the start of the next, and the base of the updates that began from it. This
    process keeps the versions that it has published, so that for each push it reads only the
    update. It reads and verifies the versions of an earlier manager each time. If a version does
    not fit into `limit_bytes` of memory, it maps the file that it wrote, and does not verify it. If
    versions are differences, their files lack them. So we keep the newest that fit, and the last
    one in any case, because the next one is a difference from it.
    """

    def __init__(self, store: Store, limit_bytes: int = _LIMIT_BYTES) -> None:
        self.store = store
        self._limit_bytes = limit_bytes
        self._kept: dict[PublishedFile, Parameters] = {}
        self._order: Sequence[PublishedFile] = ()

    def follow(self, files: Sequence[PublishedFile]) -> None:
        """Remember which versions there are, oldest first, if some are steps."""
        self._order = files

    def read(self, file: PublishedFile) -> Parameters:
        """Return a version; callers must not change its tensors."""
        leading = self._order[: self._order.index(file)] if file in self._order else ()
        return self.read_after(leading, file)

    def read_after(self, leading: Sequence[PublishedFile], file: PublishedFile) -> Parameters:
        """Return a version to which the steps in `leading` lead; other threads may call this."""
        return read_version(self.store, file, leading, self._kept.get)

    def base_of(
        self, file: PublishedFile, compression: str, trained_from: PublishedFile | None = None
    ) -> Base:
        """Return a version as the base of updates, which may be `trained_from` an earlier one."""
        kept = self.read(file) if file in self._order else self._kept.get(file)
        if kept is not None and (data := _in_one(kept)) is not None:
            return Base.known(file, kept, data, compression, trained_from)
        return Base.opened(self.store, file, compression, trained_from)

    def keep(
        self, file: PublishedFile, tensors: Mapping[str, Array], metadata: Mapping[str, str]
    ) -> None:
        """Keep the content of a published file, which the caller must not change from now on."""
        layout = plan_layout(tensors)
        kept = Parameters(tensors=dict(tensors), metadata=dict(metadata), layout=layout)
        if layout.size_bytes + self._kept_bytes > self._limit_bytes:
            with suppress(StoreError):
                held = decode(self.store.view(file), file.name)
                kept = held if base_of(held) is None else kept
        self._kept[file] = kept
        while len(self._kept) > 1 and self._kept_bytes > self._limit_bytes:
            del self._kept[next(iter(self._kept))]

    @property
    def _kept_bytes(self) -> int:
        in_memory = (one for one in self._kept.values() if not isinstance(one, ParameterFile))
        return sum(one.layout.size_bytes for one in in_memory)

    def clear(self) -> None:
        """Free all memory."""
        self._kept.clear()
        self._order = ()

    def forget(self, files: Iterable[PublishedFile]) -> None:
        """Free the memory of versions that are removed."""
        for file in files:
            self._kept.pop(file, None)


def _in_one(model: Parameters) -> Array | None:
    """Return the bytes of a model's tensors if they are contiguous, as the fold makes them.

    We don't join others, because that would cost more than reading the file.
    """
    if isinstance(model, ParameterFile):
        return model.data
    owner = next((tensor.base for tensor in model.tensors.values()), None)
    if not isinstance(owner, np.ndarray) or owner.nbytes != model.layout.size_bytes:
        return None
    data = owner.reshape(-1).view(np.uint8)
    begin = data.ctypes.data
    places = {entry.name: begin + entry.start for entry in model.layout.entries}
    found = {name: tensor.ctypes.data for name, tensor in model.tensors.items() if tensor.nbytes}
    return data if all(places[name] == place for name, place in found.items()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An update, the version from which it counts, and the factor of its step."""

    shard: int
    file: PublishedFile
    base: PublishedFile
    factor: float


_WINDOW = 64 * 1024  # numbers: those of model, base, update and a term fit a core's cache


def moved(
    versions: Versions, model: PublishedFile, moves: Sequence[Move], *, compression: str = WHOLE
) -> dict[str, Array]:
    """Return the model after some moves: x - Σ f_i (b_i - x_i), with b_i the base of update x_i.

    If the base is the model itself, the model moves toward the update's parameters. The buffers
    that the model's file names always move like this: steps of several shards from one old version
    add up, and would carry a running variance below zero. The moves apply in order, in float32
    (float64 in float64). Numbers of other types, such as a count of batches, come from the last
    move.

    Args:
        versions: Model and bases.
        model: The newest version.
        moves: The updates, each with its base; a factor is above 0 and at most 1.
        compression: The compression of all updates; a compressed update says how far it moved from
            its base.
    """
    begun = versions.read(model)
    tensors = {name: tensor.copy() for name, tensor in begun.tensors.items()}
    reasons: dict[int, str] = {}
    finite = True
    for move in moves:
        base = versions.read(move.base)
        form = UpdateFormat.of(base, move.base, compression)
        with refusing(reasons, move.shard):
            update, differences = _read(versions.store, move.file, form)
            # We look for unsound numbers only after the step, which shows whether there may be any.
            # The caller then discards the changed model.
            if not _step(tensors, base, form, update, differences, move.factor):
                finite = False
                _check_sound(update, begun.tensors, differences, move.file)
    if reasons:
        raise UpdatesRefused(reasons)
    if not finite and not all(is_sound(x, begun.tensors[name]) for name, x in tensors.items()):
        raise NonFinite("the sum of the updates overflows, although each one is finite")
    return tensors


def _step(
    tensors: Mapping[str, Array],
    base: Parameters,
    form: UpdateFormat,
    update: ParameterFile,
    differences: Mapping[str, Array],
    factor: float,
) -> bool:
    """Add an update's step to all tensors; return whether all numbers were finite."""
    finite = True
    for name, numbers in tensors.items():
        start = numbers if name in form.buffers else base.tensors[name]
        finite &= _add(numbers, start, update.tensors[name], differences.get(name), factor)
    return finite


def own_after(versions: Versions, model: PublishedFile, move: Move) -> dict[str, Array]:
    """Return a shard's own parameters after it has met the model: x_i - f (x_i - x).

    The model moves by the same distance, the other way (`moved`). Numbers that are not floats stay
    the shard's.
    """
    begun = versions.read(model)
    reasons: dict[int, str] = {}
    with refusing(reasons, move.shard):
        update, _ = _read(versions.store, move.file, UpdateFormat.of(begun, model, WHOLE))
        _check_sound(update, begun.tensors, {}, move.file)
    if reasons:
        raise UpdatesRefused(reasons)
    tensors = {name: tensor.copy() for name, tensor in update.tensors.items()}
    for name, numbers in tensors.items():
        if numbers.dtype.kind == "f":
            _add(numbers, update.tensors[name], begun.tensors[name], None, move.factor)
    return tensors


def _read(
    store: Store, file: PublishedFile, form: UpdateFormat
) -> tuple[ParameterFile, dict[str, Array]]:
    """Return an update, and the differences that it holds in place of numbers, by name."""
    update = decode(store.read(file), file.name)
    if misfit := form.misfit(update):
        raise FileCorrupt(file.name, misfit)
    return update, dict(decompressed(update))


def _check_sound(
    update: ParameterFile,
    model: Mapping[str, Array],
    differences: Mapping[str, Array],
    file: PublishedFile,
) -> None:
    if tensor := first_unsound(update, model, differences):
        raise FileCorrupt(file.name, f"tensor {tensor!r} holds NaN or infinity")


def _add(numbers: Array, base: Array, update: Array, difference: Array | None, f: float) -> bool:
    """Add one tensor's step times a factor; the step is its difference if that is known.

    Returns:
        Whether all numbers are finite; then those of base and update are, too.
    """
    if numbers.dtype.kind != "f":
        np.copyto(numbers, update)
        return True
    x, held = numbers.reshape(-1), (base if difference is None else difference).reshape(-1)
    other = update.reshape(-1) if difference is None else None
    finite = True
    # A non-finite number in the model is a constant, such as an attention's mask, and stays.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(x), _WINDOW):
            part = slice(start, start + _WINDOW)
            there, step = x[part], held[part]
            if other is not None:
                wide = np.promote_types(there.dtype, np.float32)
                step = np.subtract(step, other[part], dtype=wide)
            after = (there - f * step).astype(there.dtype, copy=False)
            if np.isfinite(after.sum(dtype=step.dtype)):
                there[...] = after
                continue
            finite = False
            np.copyto(there, after, where=np.isfinite(there))
    return finite
