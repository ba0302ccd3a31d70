"""The pure core: what happened goes in as events, what must be done comes out as commands."""

from __future__ import annotations

from downpour.scheduler.books import SchedulerOptions
from downpour.scheduler.core import Scheduler
from downpour.scheduler.replay import (
    Checkpoint,
    DurableExperiment,
    Entry,
    Replay,
    checkpoint,
    durable,
    entries,
    experiment_of,
    must_last,
)

__all__ = [
    "Checkpoint",
    "DurableExperiment",
    "Entry",
    "Replay",
    "Scheduler",
    "SchedulerOptions",
    "checkpoint",
    "durable",
    "entries",
    "experiment_of",
    "must_last",
]
