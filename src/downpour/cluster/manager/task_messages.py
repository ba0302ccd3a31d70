"""The message that asks a worker for a task: its files, and the indices of its examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from downpour.base.values import AttemptId, PublishedFile
from downpour.cluster.manager.work import ready
from downpour.cluster.manager.workspace import Workspace
from downpour.files.store import layout
from downpour.network.rpc.messages import (
    PACKED_BYTES_MAX,
    IndexArray,
    IndicesFile,
    TaskMessage,
    pack_indices,
)

_SENT_BYTES_MAX = 2**17
"""16,384 indices of 8 bytes. A message takes them along in every round; a file is read once."""


def task_of(
    space: Workspace,
    attempt: AttemptId,
    model: PublishedFile,
    *,
    portion: tuple[int, int] | None = None,
    leading: Sequence[PublishedFile] = (),
    share: float = 1.0,
    optimizer_state: PublishedFile | None = None,
    step: PublishedFile | None = None,
) -> TaskMessage:
    """Return the message for a task from a model version, which no attempt has begun.

    The `leading` versions' steps lead to that version.
    """
    made = ready(space)
    return TaskMessage(
        id=attempt,
        spec=space.spec_file,
        dataset=made.dataset_key,
        model=model,
        indices=indices_of(space, attempt.shard, portion),
        optimizer_state=optimizer_state,
        frozen=made.begun.frozen,
        share=share,
        step=step,
        leading=tuple(leading),
        trial=made.begun.trial,
    )


def indices_of(
    space: Workspace, shard: int, portion: tuple[int, int] | None
) -> IndexArray | IndicesFile:
    """Return a shard's indices as they travel: in the message, or as a file if there are many.

    If the round was recut, a `portion` is a slice of all shards' indices in a row. Only one round
    needs it, so a file would spare no message.
    """
    shards, key = ready(space).shards, (shard, portion)
    if key in space.index_files:
        return space.index_files[key]
    indices = shards[shard] if portion is None else _slice(shards, *portion)
    if indices.nbytes <= (_SENT_BYTES_MAX if portion is None else PACKED_BYTES_MAX):
        return indices
    # Two threads may get here for copies of a shard; the end of the experiment removes both files.
    packed = pack_indices(indices)
    name = layout.indices_name(shard, space.token(3))
    space.index_files[key] = IndicesFile(
        width_bytes=packed.width_bytes,
        count=packed.count,
        file=space.store.put_new(name, [packed.data]),
    )
    return space.index_files[key]


def _slice(shards: Sequence[IndexArray], begin: int, end: int) -> IndexArray:
    """Return a slice of all shards in a row, without making that row."""
    taken, before = [], 0
    for shard in shards:
        taken.append(shard[max(begin - before, 0) : max(end - before, 0)])
        before += len(shard)
    return np.concatenate(taken)
