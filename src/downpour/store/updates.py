"""What a task publishes: an update that describes itself, and its optimizer's state.

A worker reports its update. If the report is lost with the worker, `find_updates` reads from the
files alone what it would have stated: round, shard, samples, steps, loss, and a checksum of the
parameters, so that an altered file is not taken for a whole one. All of that follows from the task,
so two attempts at it publish files of the same bytes. The optimizer's state is published first, and
has the update's numbers and token in its name; the update says that it has one. So an update that
exists is complete, unless its state was removed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import xxhash

from downpour.errors import FileCorrupt, FileMissing, StoreError
from downpour.store import layout
from downpour.store.base import Buffer
from downpour.store.codec import ParameterFile, decode, encode
from downpour.store.directory import DirectoryStore
from downpour.store.header import Array
from downpour.values import AttemptId, PublishedFile, Update

log = logging.getLogger(__name__)

_Number = TypeVar("_Number", int, float)

_CHECKSUM = "checksum"
_HAS_STATE, _YES = "optimizer_state", "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The result of a task: parameters, optimizer state (may be empty), and how they were made."""

    parameters: Mapping[str, Array]
    optimizer_state: Mapping[str, Array]
    samples: int
    steps: int
    loss: float


def publish_work(
    store: DirectoryStore, attempt: AttemptId, work: Work
) -> tuple[PublishedFile, PublishedFile | None]:
    """Publish an update and its optimizer's state, if it has one; returns both.

    Raises:
        StoreError: they cannot be written.
        SpecError: an array's dtype cannot be stored.
    """
    token = secrets.token_hex(3)
    state = None
    if work.optimizer_state:
        name = layout.attempt_name("optimizer", attempt, token)
        state = store.put_new(name, _checked(work.optimizer_state, _task(attempt)))
    about = {
        **_task(attempt),
        "samples": str(work.samples),
        "steps": str(work.steps),
        # The shortest text that reads back as the same number.
        "loss": repr(work.loss),
    }
    if state is not None:
        about[_HAS_STATE] = _YES
    name = layout.attempt_name("update", attempt, token)
    return store.put_new(name, _checked(work.parameters, about)), state


def find_updates(
    store: DirectoryStore, attempts: Iterable[AttemptId]
) -> Iterator[tuple[AttemptId, Update]]:
    """Yield the updates of these attempts that are in a directory; their seconds are unknown: 0.

    An update that says that it has an optimizer state is skipped if that state is gone, because the
    next round would silently begin with a fresh state.

    Raises:
        SharedDirectoryError: the directory cannot be listed.
    """
    wanted = {(a.round, a.shard, a.attempt): a for a in attempts}
    names = set(store.list())
    for name in sorted(names):
        parsed = layout.parse_name(name)
        if not isinstance(parsed, layout.AttemptName) or parsed.kind != "update":
            continue
        attempt = wanted.get((parsed.round, parsed.shard, parsed.attempt))
        if attempt is None:
            continue
        state = layout.attempt_name("optimizer", attempt, parsed.token)
        try:
            update = _described(store, attempt, name, state if state in names else None)
        except StoreError as error:
            log.warning("the update of %s is skipped: %s", attempt, error)
            continue
        del wanted[parsed.round, parsed.shard, parsed.attempt]
        yield attempt, update


def _described(
    store: DirectoryStore, attempt: AttemptId, name: str, state_name: str | None
) -> Update:
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


def _whole(
    store: DirectoryStore, attempt: AttemptId, name: str
) -> tuple[PublishedFile, ParameterFile]:
    """Return a file; raises FileCorrupt if it is altered or of another task."""
    file = store.describe(name)
    held = decode(store.read(file), name)
    if xxhash.xxh3_128_hexdigest(held.data.data) != held.metadata.get(_CHECKSUM):
        raise FileCorrupt(name, "is not what was published")
    if not _task(attempt).items() <= held.metadata.items():
        raise FileCorrupt(name, "is of another task")
    return file, held


def _checked(tensors: Mapping[str, Array], about: Mapping[str, str]) -> list[Buffer]:
    """Encode tensors, with a checksum of their bytes in the metadata."""
    digest = xxhash.xxh3_128()
    # Without the header, which is to hold this checksum.
    for chunk in encode(tensors, {})[1:]:
        digest.update(chunk)
    return encode(tensors, {**about, _CHECKSUM: digest.hexdigest()})


def _task(attempt: AttemptId) -> dict[str, str]:
    # Not the attempt's number: two attempts at a task publish files of the same bytes.
    return {"round": str(attempt.round), "shard": str(attempt.shard)}


def _number(kind: type[_Number], held: ParameterFile, name: str, key: str) -> _Number:
    try:
        return kind(held.metadata[key])
    except (KeyError, ValueError):
        raise FileCorrupt(name, f"does not state its {key}") from None
