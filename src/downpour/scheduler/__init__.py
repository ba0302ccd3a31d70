"""The pure core: what happened goes in as events, what must be done comes out as commands."""

from __future__ import annotations

from downpour.scheduler.core import Scheduler
from downpour.scheduler.replay import (
    Checkpoint,
    DurableExperiment,
    Entry,
    checkpoint,
    durable,
    entries,
    experiment_of,
    must_last,
)
from downpour.scheduler.state import SchedulerOptions, SchedulerState

__all__ = [
    "Checkpoint",
    "DurableExperiment",
    "Entry",
    "Scheduler",
    "SchedulerOptions",
    "SchedulerState",
    "checkpoint",
    "durable",
    "entries",
    "experiment_of",
    "must_last",
]
