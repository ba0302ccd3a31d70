"""What a policy sees and what it may ask for; values only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTask:
    """A shard that nobody is training; `failed_on` names the workers that tried in vain."""

    shard: int
    samples: int
    failed_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """A round at one moment; to be read during the call, not to be kept.

    `pending` is in shard order, and no longer than it takes to find every idle worker a shard that
    did not fail on it. `idle` begins with whoever has waited longest. `workers` are all who are
    here, the busy ones too. Both may be views of names that the scheduler keeps: thousands of names
    are not copied at each event.
    """

    round: int
    at_seconds: float
    pending: tuple[PendingTask, ...]
    idle: Collection[str]
    workers: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Let this worker train this shard, for this reason."""

    shard: int
    worker: str
    reason: str


class Policy(Protocol):
    """Decides what to do in a round; pure.

    It gives a pending shard to at most one worker and an idle worker at most one shard. Whatever it
    leaves undone, it is asked about again at the next event. It must not leave everything undone
    while all workers are idle: then nothing would ever happen.
    """

    def __call__(self, view: RoundView) -> list[Assignment]:
        """Return what should happen now, best first; an empty list means: leave it as it is."""
        ...
