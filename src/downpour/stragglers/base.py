"""What a policy sees and what it may ask for; values only."""

from __future__ import annotations

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
    """A round at one moment: pending shards in order, idle workers by how long they have waited."""

    round: int
    at_seconds: float
    pending: tuple[PendingTask, ...]
    idle: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Let this worker train this shard, for this reason."""

    shard: int
    worker: str
    reason: str


class Policy(Protocol):
    """Decides what to do in a round; pure."""

    def __call__(self, view: RoundView) -> list[Assignment]:
        """Return what should happen now, best first; an empty list means: leave it as it is."""
        ...
