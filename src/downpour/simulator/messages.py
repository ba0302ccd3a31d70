"""What a manager tells a worker."""

from __future__ import annotations

from typing import NamedTuple

from downpour.values import AttemptId, PublishedFile


class TrainRequest(NamedTuple):
    """Train a shard of so many `samples`; `term` is that of the manager who asks.

    `portion` says which samples, where the round was cut anew.
    """

    attempt: AttemptId
    model: PublishedFile
    optimizer_state: PublishedFile | None
    keeps_state: bool
    term: int
    snapshot: PublishedFile | None = None
    samples: int = 0
    portion: tuple[int, int] | None = None


class RegistrationReply(NamedTuple):
    """A worker is taken in under this name, by the manager of this term."""

    worker: str
    term: int
