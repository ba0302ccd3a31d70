"""The layout of an update's file: whole parameters, or how far they moved, compressed.

A whole update has the tensors of the model that it was trained from. A compressed one has the same
number of tensors, with the same names in the same order. For trained tensors it holds the
difference x0 - x as a codec writes it (U8, padded to eight bytes to keep the next one aligned).
Buffers, and numbers that are not floats, are whole in it. So we can walk both kinds side by side
with the model.

Apart from the model, the file has everything that a reader needs: the codec's name, the model's
checksum, and the type and shape of each compressed tensor. The model's own file says which tensors
are buffers, so that one update cannot decide it for another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from downpour.base.errors import FileCorrupt, NonFinite
from downpour.base.values import PublishedFile
from downpour.files.compression import CODECS, Codec
from downpour.files.store.codec import ParameterFile, Parameters
from downpour.files.store.header import CODES, Array, Layout, TensorEntry

WHOLE = "none"
"""The compression of updates that hold whole parameters."""

_COMPRESSION, _BASE, _TENSORS = "compression", "trained_from", "compressed"
_BUFFERS = "buffers"
_ALIGNMENT_BYTES = 8
_BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """Numbers of one dtype, at `start` to `stop` in the model's bytes.

    In an update's bytes, they are at `held_start` to `held_stop`; without a codec, as numbers.
    """

    dtype: np.dtype[Any]
    start: int
    stop: int
    held_start: int
    held_stop: int
    codec: Codec | None = None


def model_metadata(buffers: Iterable[str]) -> dict[str, str]:
    """Return the metadata of a model's file: which of its tensors no optimizer trains."""
    return {_BUFFERS: json.dumps(sorted(buffers))}


def compression_of(file: Parameters) -> str:
    """Return the codec that a file names; an unknown one fits no format."""
    return file.metadata.get(_COMPRESSION, WHOLE)


def base_of(file: Parameters) -> str | None:
    """Return the checksum of the model from which a compressed file is a difference."""
    return file.metadata.get(_BASE)


@dataclass(frozen=True, kw_only=True)
class UpdateFormat:
    """The layout of all updates trained from one model; `base` is the model's checksum."""

    model: Layout
    base: str
    compression: str = WHOLE
    buffers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: Parameters, file: PublishedFile, compression: str) -> Self:
        """Return the format of the updates of a model, which names its own buffers.

        Raises:
            FileCorrupt: it does not name them as `model_metadata` does.
        """
        try:
            buffers = frozenset(map(str, json.loads(model.metadata.get(_BUFFERS, "[]"))))
        except (ValueError, TypeError, RecursionError):
            raise FileCorrupt(file.name, "does not state its buffers") from None
        return cls(model=model.layout, base=file.checksum, compression=compression, buffers=buffers)

    @property
    def codec(self) -> Codec | None:
        """The codec; None if updates are whole."""
        return None if self.compression == WHOLE else CODECS[self.compression]

    def is_compressed(self, entry: TensorEntry) -> bool:
        """Say whether updates compress a tensor of the model."""
        trained = entry.dtype.kind == "f" and entry.name not in self.buffers
        return self.codec is not None and trained

    @cached_property
    def layout(self) -> Layout:
        """The layout of an update's file."""
        entries: list[TensorEntry] = []
        start = 0
        for entry in self.model.entries:
            dtype, shape, size = entry.dtype, entry.shape, entry.stop - entry.start
            if self.codec is not None and self.is_compressed(entry):
                size = self.codec.size(size // dtype.itemsize)
                size += -size % _ALIGNMENT_BYTES
                dtype, shape = _BYTE, (size,)
            stop = start + size
            one = TensorEntry(name=entry.name, dtype=dtype, shape=shape, start=start, stop=stop)
            entries.append(one)
            start = stop
        return Layout(tuple(entries))

    @cached_property
    def metadata(self) -> dict[str, str]:
        """An update's self-description."""
        if self.codec is None:
            return {}
        compressed = {
            entry.name: [CODES[entry.dtype], entry.shape]
            for entry in self.model.entries
            if self.is_compressed(entry)
        }
        tensors = json.dumps(compressed, separators=(",", ":"))
        return {_COMPRESSION: self.compression, _BASE: self.base, _TENSORS: tensors}

    def ranges(self) -> list[HeldRange]:
        """Return the longest stretches that updates hold in one way, in order of their bytes."""
        found: list[HeldRange] = []
        for entry, held in zip(self.model.entries, self.layout.entries, strict=True):
            codec = self.codec if self.is_compressed(entry) else None
            start, held_start = entry.start, held.start
            last = found[-1] if found else None
            if last is not None and last.codec is codec is None and last.dtype == entry.dtype:
                start, held_start = last.start, last.held_start
                found.pop()
            found.append(
                HeldRange(
                    dtype=entry.dtype,
                    start=start,
                    stop=entry.stop,
                    held_start=held_start,
                    held_stop=held.stop,
                    codec=codec,
                )
            )
        return found

    def misfit(self, file: ParameterFile) -> str | None:
        """Say why a file is not an update of this format; None if it is."""
        compression = compression_of(file)
        if compression != self.compression:
            return f"its compression is {compression!r}, not {self.compression!r}"
        if file.metadata.get(_BASE, self.base) != self.base:
            return "a worker trained it from another version of the model"
        if file.layout != self.layout:
            return f"its tensors are not the model's: {_difference(file.layout, self.layout)}"
        if not self.metadata.items() <= file.metadata.items():
            return "its description of the tensors does not match the model"
        return None


def compress(
    form: UpdateFormat,
    model: Mapping[str, Array],
    trained: Mapping[str, Array],
    unsent: Mapping[str, Array],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return an update's tensors, and the rest of the difference that they leave out, by name.

    Args:
        form: Its format, with a codec.
        model: The model that training began from.
        trained: Its parameters and buffers now.
        unsent: The second result of the shard's previous task, if there is one: float32, flat.

    Raises:
        NonFinite: a difference is NaN, infinite, or too large for the codec.
    """
    codec, held, left = form.codec, dict(trained), dict[str, Array]()
    if codec is None:
        raise ValueError("whole updates have no compression")
    for entry, place in zip(form.model.entries, form.layout.entries, strict=True):
        name = entry.name
        if not form.is_compressed(entry):
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            due = np.subtract(model[name], trained[name], dtype=_exact(entry)).ravel()
            due = due.astype(np.float32, copy=False)
            if codec.feedback is not None and name in unsent:
                due += np.float32(codec.feedback) * unsent[name]
        try:
            encoded = codec.encode(due)
        except NonFinite as error:
            raise NonFinite(f"{name}: {error}") from None
        held[name] = np.zeros(place.shape, np.uint8)
        held[name][: len(encoded)] = encoded
        if codec.feedback is not None:
            sent = np.empty_like(due)
            codec.decode(encoded, sent)
            left[name] = np.subtract(due, sent, out=due)
    return held, left


def decompressed(file: ParameterFile) -> Iterator[tuple[str, Array]]:
    """Yield the compressed tensors of an update by name: differences x0 - x in float32."""
    codec = CODECS.get(compression_of(file))
    if codec is not None:
        for name, (_, shape) in json.loads(file.metadata[_TENSORS]).items():
            difference = np.empty(shape, np.float32)
            codec.decode(file.tensors[name][: codec.size(difference.size)], difference.reshape(-1))
            yield name, difference


def moved_by(model: Parameters, update: ParameterFile) -> Parameters:
    """Return the parameters and buffers to which a compressed update moves a model.

    Trained tensors are x0 - d, with the update's difference d, in the model's dtype; all others
    come from the update. They share one piece of memory.
    """
    tensors = model.layout.views(np.empty(model.layout.size_bytes, np.uint8))
    differences = dict(decompressed(update))
    for name, tensor in tensors.items():
        if name in differences:
            np.subtract(model.tensors[name], differences[name], out=tensor)
        else:
            np.copyto(tensor, update.tensors[name])
    return Parameters(tensors=tensors, metadata=model.metadata, layout=model.layout)


def _exact(entry: TensorEntry) -> np.dtype[Any]:
    return np.promote_types(entry.dtype, np.float32)


def _difference(layout: Layout, reference: Layout) -> str:
    given = {entry.name: entry for entry in layout.entries}
    wanted = {entry.name: entry for entry in reference.entries}
    for name in sorted(given.keys() | wanted.keys()):
        if name not in given:
            return f"{name!r} is missing"
        if name not in wanted:
            return f"{name!r} is one tensor too many"
        mine, other = given[name], wanted[name]
        if (mine.dtype, mine.shape) != (other.dtype, other.shape):
            return (
                f"{name!r} is {mine.dtype} {list(mine.shape)}, "
                f"not {other.dtype} {list(other.shape)}"
            )
    return "they are in another order"
