"""The messages of a manager to a worker that hold more than one value."""

from __future__ import annotations

from typing import NamedTuple

from downpour.base.values import AttemptId, PublishedFile


class TrainRequest(NamedTuple):
    """Train a shard of this many `samples`; `term` is the term of the calling manager.

    `portion` is the range of the samples, if the policy resized shards. `share` is how much of the
    steps to train. If rounds overlap, the shard begins from the model moved by `step`. The steps of
    the versions in `leading` lead to the model.
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
    """A manager of this term has registered the worker under this name."""

    worker: str
    term: int
