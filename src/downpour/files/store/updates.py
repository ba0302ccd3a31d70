"""The files that a task publishes: an update that describes itself, and its optimizer's state.

With a compression, an update holds the difference that training made (`update_format.py`). The part
that a codec did not send is the task's *unsent* part, which the shard's next task adds to its own
difference. It is in one file with the optimizer's state, because both have the same lifetime.

A worker reports its update. If the report is lost with the worker, `find_updates` reads its content
from the files alone: round, shard, samples, steps and loss. It also reads a checksum of the
parameters, which exposes an altered file. All of that follows from the task, so two attempts at it
publish files of the same bytes. We publish the optimizer's state first, with the update's numbers
and token in its name; the update says that it has one. So an update that exists is complete, unless
its state was removed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import xxhash

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.files.compression import CODECS
from downpour.files.store import layout
from downpour.files.store.base import Buffer, Store
from downpour.files.store.codec import ParameterFile, Parameters, decode, encode
from downpour.files.store.header import Array, Layout, plan_layout, write_header
from downpour.files.store.update_format import UpdateFormat, compress

log = logging.getLogger(__name__)

_Number = TypeVar("_Number", int, float)

_CHECKSUM = "checksum"
_HAS_STATE, _YES = "optimizer_state", "published"
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

    `start` is the start of the training; None publishes the parameters whole.
    """

    parameters: Mapping[str, Array]
    optimizer_state: Mapping[str, Array]
    samples: int
    steps: int
    loss: float
    start: Start | None = None


def publish_work(
    store: Store, attempt: AttemptId, work: Work
) -> tuple[PublishedFile, PublishedFile | None]:
    """Publish an update and its optimizer's state, if it has one; return both.

    Raises:
        StoreError: they cannot be written.
        SpecError: an array's dtype cannot be stored.
        NonFinite: a difference cannot be compressed.
    """
    token = secrets.token_hex(3)
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
    state = None
    form, tensors, unsent = _compressed(work)
    handed_on = {**work.optimizer_state, **unsent}
    if handed_on:
        state = store.put_new(state_name, _checked(handed_on, _task(attempt)))
    about = {
        **_task(attempt),
        **(form.metadata if form is not None else {}),
        "samples": str(work.samples),
        "steps": str(work.steps),
        # The shortest text that reads back as the same number.
        "loss": repr(work.loss),
    }
    if state is not None:
        about[_HAS_STATE] = _YES
    name = layout.attempt_name("update", attempt, token)
    place = form.layout if form is not None else None
    return store.put_new(name, _checked(tensors, about, place)), state


def _compressed(
    work: Work,
) -> tuple[UpdateFormat | None, Mapping[str, Array], Mapping[str, Array]]:
    """Return an update's format and tensors, and its unsent part under the names in its file."""
    start = work.start
    if start is None:
        return None, work.parameters, {}
    form = UpdateFormat.of(start.model, start.file, start.compression)
    tensors, unsent = compress(form, start.tensors, work.parameters, start.unsent)
    return form, tensors, {_UNSENT + name: _MEMORY.encode(left) for name, left in unsent.items()}


def optimizer_part(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the optimizer's state in the file that a task hands on to the shard's next task."""
    return {name: array for name, array in tensors.items() if not name.startswith(_UNSENT)}


def unsent_part(tensors: Mapping[str, Array], model: Mapping[str, Array]) -> dict[str, Array]:
    """Return the unsent part in that file, flat, by the names of a model.

    Raises:
        FileCorrupt: it belongs to another model.
    """
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

    Raises:
        SharedDirectoryError: the directory cannot be listed.
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
    file, held = _whole(store, attempt, name)
    if state_name is None and held.metadata.get(_HAS_STATE) == _YES:
        raise FileMissing(layout.attempt_name("optimizer", attempt, "*"))
    state = _whole(store, attempt, state_name)[0] if state_name is not None else None
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


def _whole(store: Store, attempt: AttemptId, name: str) -> tuple[PublishedFile, ParameterFile]:
    """Return a file; raises FileCorrupt if it is altered or belongs to another task."""
    file = store.describe(name)
    held = decode(store.read(file), name)
    if xxhash.xxh3_128_hexdigest(held.data.data) != held.metadata.get(_CHECKSUM):
        raise FileCorrupt(name, "differs from the published file")
    if not _task(attempt).items() <= held.metadata.items():
        raise FileCorrupt(name, "belongs to another task")
    return file, held


def _checked(
    tensors: Mapping[str, Array], about: Mapping[str, str], place: Layout | None = None
) -> list[Buffer]:
    """Encode tensors, with a checksum of their bytes in the metadata."""
    place = place or plan_layout(tensors)
    content = encode(tensors, {}, place)[1:]
    digest = xxhash.xxh3_128()
    # We leave out the header, because it will hold this checksum.
    for chunk in content:
        digest.update(chunk)
    return [write_header(place, {**about, _CHECKSUM: digest.hexdigest()}), *content]


def _task(attempt: AttemptId) -> dict[str, str]:
    # Not the attempt's number: two attempts at a task publish files of the same bytes.
    return {"round": str(attempt.round), "shard": str(attempt.shard)}


def _number(kind: type[_Number], held: ParameterFile, name: str, key: str) -> _Number:
    try:
        return kind(held.metadata[key])
    except (KeyError, ValueError):
        raise FileCorrupt(name, f"does not state its {key}") from None
