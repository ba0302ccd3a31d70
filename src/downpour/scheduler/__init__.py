"""The pure core: what happened goes in as events, what must be done comes out as commands."""

from __future__ import annotations

from downpour.scheduler.core import Scheduler, SchedulerOptions
from downpour.scheduler.replay import DurableExperiment, Entry, Replay, durable, entries, must_last

__all__ = [
    "DurableExperiment",
    "Entry",
    "Replay",
    "Scheduler",
    "SchedulerOptions",
    "durable",
    "entries",
    "must_last",
]
