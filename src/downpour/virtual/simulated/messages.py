"""The messages of a manager to a worker that hold more than one value."""

from __future__ import annotations

from typing import NamedTuple

from downpour.base.values import AttemptId, PublishedFile


class TrainRequest(NamedTuple):
    """Train a shard of this many `samples`; `term` is that of the calling manager.

    `portion` is the range of the samples, if the policy resized shards, and `share` how much of the
    steps is trained. If rounds overlap, the shard begins from the model moved by `step`. The
    steps of the versions that are `leading` lead to the model.
    """

    attempt: AttemptId
    model: PublishedFile
    optimizer_state: PublishedFile | None
    keeps_state: bool
    term: int
    snapshot: PublishedFile | None = None
    samples: int = 0
    portion: tuple[int, int] | None = None
    share: float = 1.0
    step: PublishedFile | None = None
    leading: tuple[PublishedFile, ...] = ()


class RegistrationReply(NamedTuple):
    """A worker is registered under this name, by the manager of this term."""

    worker: str
    term: int
