"""Files of updates: what they hold and say about their task, and how a manager finds them.

A whole update has the tensors of the model that it was trained from. A compressed one has the same
number of tensors, with the same names in the same order. For trained tensors it holds the
difference x0 - x as a codec writes it (U8, padded to eight bytes to keep the next one aligned).
Buffers, and numbers that are not floats, are whole in it. So we can walk both kinds side by side
with the model.

Apart from the model, the file has everything that a reader needs: the codec's name, the model's
checksum, and the type and shape of each compressed tensor. The model's own file says which tensors
are buffers, so that one update cannot decide it for another. The part that a codec did not send is
the task's *unsent* part, which the shard's next task adds to its own difference. It is in one file
with the optimizer's state, because both have the same lifetime.

If a worker's report is lost, `find_updates` reads its content from the file alone
(docs/internals/architecture.md, "Adoption"). We know the checksum in an update's name once we have
written the file, so nothing is hashed twice.
"""

import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from downpour.base.errors import FileCorrupt, FileMissing, NonFinite, StoreError
from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.files.compression import CODECS, Codec
from downpour.files.store import layout
from downpour.files.store.header import (
    CODES,
    Array,
    Layout,
    ParameterFile,
    Parameters,
    TensorEntry,
    decode,
    encode,
)
from downpour.files.store.layout import CHECKSUM, Store

log = logging.getLogger(__name__)

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

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return (self.stop - self.start) // self.dtype.itemsize

    @property
    def sum_dtype(self) -> np.dtype[Any]:
        """The dtype in which we sum its numbers: float16 would overflow."""
        narrow = self.dtype.kind == "f" and self.dtype.itemsize < 4
        return np.dtype(np.float32) if narrow else self.dtype

    def numbers(self, model: Array) -> Array:
        """Return the numbers in the bytes of a model's tensors."""
        return model[self.start : self.stop].view(self.dtype)

    def held(self, update: Array) -> Array:
        """Return the part of the bytes of an update's tensors: numbers, or bytes to decode."""
        held = update[self.held_start : self.held_stop]
        return held if self.codec is not None else held.view(self.dtype)


def model_metadata(buffers: Iterable[str]) -> dict[str, str]:
    """Return the metadata of a model's file: which of its tensors no optimizer trains."""
    return {_BUFFERS: json.dumps(sorted(buffers))}


def about_model(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the part of some metadata that a model's file needs."""
    return {key: text for key, text in metadata.items() if key == _BUFFERS}


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
        """Return the format of the updates of a model, which names its own buffers."""
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

    `unsent` is the second result of the shard's previous task, if there is one: float32, flat.
    """
    codec, held, left = form.codec, dict(trained), dict[str, Array]()
    if codec is None:
        raise ValueError("whole updates have no compression")
    for entry, place in zip(form.model.entries, form.layout.entries, strict=True):
        name = entry.name
        if not form.is_compressed(entry):
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            exact = np.promote_types(entry.dtype, np.float32)
            due = np.subtract(model[name], trained[name], dtype=exact).ravel()
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


_Number = TypeVar("_Number", int, float)

_STATE = "optimizer_state"
_UNSENT = "unsent/"
# int8 makes the unsent part a quarter of the model. We lose a move of less than 1/254 of the
# block's largest number; with topk's decay, such a number would never get sent anyway.
_MEMORY = CODECS["int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A task's start: `tensors`, and the residual of the shard's previous task.

    The tensors are the model's or, if rounds overlap, the model's moved by the shard's update.
    """

    model: Parameters
    file: PublishedFile
    tensors: Mapping[str, Array]
    compression: str
    unsent: Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The result of a task: parameters, optimizer state (may be empty), and facts about both.

    `start` is the start of the training; None publishes the parameters whole. The `curve` has the
    losses and the learning rates of an `Update`.
    """

    parameters: Mapping[str, Array]
    optimizer_state: Mapping[str, Array]
    samples: int
    steps: int
    loss: float
    start: Start | None = None
    curve: tuple[tuple[float, ...], ...] = ((), ())


def publish_work(
    store: Store, attempt: AttemptId, work: Work, token: str = ""
) -> tuple[PublishedFile, PublishedFile | None]:
    """Publish an update and its optimizer's state, if it has one; return both."""
    token = token or secrets.token_hex(3)
    state_name = layout.attempt_name("optimizer", attempt, token)
    try:
        return _published(store, attempt, work, token, state_name)
    except BaseException:  # a cancellation, too
        # No other process knows of the state, so none would remove it from an ended experiment. The
        # file may exist although its own publication seems to have failed.
        with suppress(StoreError):
            store.delete(state_name)
        raise


def _published(
    store: Store, attempt: AttemptId, work: Work, token: str, state_name: str
) -> tuple[PublishedFile, PublishedFile | None]:
    state, form, tensors = None, None, work.parameters
    handed_on = dict(work.optimizer_state)
    if (start := work.start) is not None:
        form = UpdateFormat.of(start.model, start.file, start.compression)
        tensors, left = compress(form, start.tensors, work.parameters, start.unsent)
        handed_on |= {_UNSENT + name: _MEMORY.encode(unsent) for name, unsent in left.items()}
    if handed_on:
        state = store.put_new(state_name, encode(handed_on, {}))
    about = {
        **_task(attempt),
        **(form.metadata if form is not None else {}),
        "samples": str(work.samples),
        "steps": str(work.steps),
        # The shortest text that reads back as the same number.
        "loss": repr(work.loss),
    }
    if state is not None:
        about[_STATE] = state.checksum
    name = layout.attempt_name("update", attempt, token, CHECKSUM)
    place = form.layout if form is not None else None
    return store.put_new(name, encode(tensors, about, place), packs=form is not None), state


def optimizer_part(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the optimizer's state in the file that a task hands on to the shard's next task."""
    return {name: array for name, array in tensors.items() if not name.startswith(_UNSENT)}


def unsent_part(tensors: Mapping[str, Array], model: Mapping[str, Array]) -> dict[str, Array]:
    """Return the unsent part in that file, flat, by the names of a model."""
    unsent = {}
    for full_name in tensors.keys() - optimizer_part(tensors).keys():
        name, encoded = full_name.removeprefix(_UNSENT), tensors[full_name]
        count = model[name].size if name in model else -1
        if count < 0 or encoded.shape != (_MEMORY.size(count),):
            raise FileCorrupt("optimizer state", f"{full_name} belongs to another network")
        unsent[name] = np.empty(count, np.float32)
        _MEMORY.decode(encoded, unsent[name])
    return unsent


def find_updates(store: Store, attempts: Iterable[AttemptId]) -> Iterator[tuple[AttemptId, Update]]:
    """Yield the updates of these attempts that are in a directory; their seconds are unknown: 0.

    We skip an update whose optimizer state is gone, because the next round would silently begin
    with a fresh state.
    """
    found: set[AttemptId] = set()
    for attempt, name, state in layout.published_updates(store.list(), attempts):
        if attempt in found:
            continue
        try:
            update = _described(store, attempt, name, state)
        except StoreError as error:
            log.warning("skipping the update of %s: %s", attempt, error)
            continue
        found.add(attempt)
        yield attempt, update


def _described(store: Store, attempt: AttemptId, name: str, state_name: str | None) -> Update:
    file = store.describe(name)
    held = decode(store.read(file, verified=False), name)
    if file.checksum not in name:
        raise FileCorrupt(name, "differs from the published file")
    if not _task(attempt).items() <= held.metadata.items():
        raise FileCorrupt(name, "belongs to another task")
    state = None
    if _STATE in held.metadata:
        if state_name is None:
            raise FileMissing(layout.attempt_name("optimizer", attempt, "*"))
        state = store.describe(state_name)
        if state.checksum != held.metadata[_STATE]:
            raise FileCorrupt(state.name, "differs from the published file")
    return Update(
        file=file,
        samples=_number(int, held, name, "samples"),
        steps=_number(int, held, name, "steps"),
        loss=_number(float, held, name, "loss"),
        load_seconds=0.0,
        train_seconds=0.0,
        publish_seconds=0.0,
        optimizer_state=state,
    )


def _task(attempt: AttemptId) -> dict[str, str]:
    # Not the attempt's number: two attempts at a task publish files of the same bytes.
    return {"round": str(attempt.round), "shard": str(attempt.shard)}


def _number(kind: type[_Number], held: ParameterFile, name: str, key: str) -> _Number:
    try:
        return kind(held.metadata[key])
    except (KeyError, ValueError):
        raise FileCorrupt(name, f"does not state its {key}") from None
