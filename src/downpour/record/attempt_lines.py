"""Lines of a record about attempts: who got which task, how it went, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number that may be NaN or infinite; both are null in JSON, which has neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedLine:
    """A worker got a task, for this reason; `from_step` is the step at which a snapshot ends.

    `share` is the part of the task's steps that it trains.

    The quantiles forecast the seconds from here to the update, which stay below `q10_seconds` with
    probability 0.1, and so on. They are None if there was no forecast.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    reason: str
    from_step: int = 0
    share: float = 1.0
    q10_seconds: float | None = None
    q50_seconds: float | None = None
    q90_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeseenLine:
    """The forecast of a running attempt.

    The manager records one after each quarter of the attempt's work, and when another worker is to
    continue it; more lines would bloat the record. `done` is the share of the shard, in 0..1, that
    the worker had trained `elapsed_seconds` after the assignment. The quantiles are those of all
    seconds from the assignment to the update, as in `AssignedLine`.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    done: float
    elapsed_seconds: float
    q10_seconds: float | None = None
    q50_seconds: float | None = None
    q90_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLine:
    """An attempt published a snapshot after `step` steps; the next worker continues from it."""

    round: int
    shard: int
    attempt: int
    worker: str
    step: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverAskedLine:
    """The manager asked a worker to hand an attempt over to another worker, for this reason."""

    round: int
    shard: int
    attempt: int
    worker: str
    meant_for: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictedLine:
    """Two attempts at one shard gave different bytes; the first accepted update counts.

    These workers do not compute alike, so this experiment is not repeatable to the byte.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    accepted_from: str
    checksum: str
    accepted_checksum: str

    def __str__(self) -> str:
        return (
            f"round {self.round + 1} shard {self.shard}: {self.worker} and "
            f"{self.accepted_from} made different updates of it, so their arithmetic "
            "differs; the first update counts"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedLine:
    """An attempt published its update, which counts.

    The worker's clock measures load, train and publish seconds; `completion_seconds` run from the
    assignment to the report. `checksum` is the update's. `processes` is the number of the worker's
    processes that computed the last step. `shortages` counts the steps of the experiment so far
    that lacked memory, on the host or an accelerator. `trial` is the checksum of the trial's steps
    in the worker's process, if it repeated them.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    samples: int
    steps: int
    loss: Measured
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    completion_seconds: float
    bytes: int
    checksum: str
    processes: int = 1
    shortages: int = 0
    trial: str = ""


class Sample(NamedTuple):
    """A process's resources at a moment of the manager's clock; a list in JSON, to be short.

    `cpu_share` is 1.0 for one full core, averaged since the previous heartbeat. `memory_bytes` are
    resident. `io_wait` is the share, in 0..1, of the machine's processor time spent waiting for
    disks.
    """

    at_seconds: float
    cpu_share: float
    memory_bytes: int
    threads: int
    io_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesUsedLine:
    """The resources of an attempt's process while it trained, from its worker's heartbeats.

    For a long attempt, we keep every second sample, or fewer, spread over its whole duration.
    """

    round: int
    shard: int
    attempt: int
    worker: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailedLine:
    """An attempt failed; `failure` is its kind."""

    round: int
    shard: int
    attempt: int
    worker: str
    failure: str
    reason: str
