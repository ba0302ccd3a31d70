"""The pure core: what happened goes in as events, what must be done comes out as commands."""

from __future__ import annotations

from downpour.scheduler.core import Scheduler, SchedulerOptions

__all__ = ["Scheduler", "SchedulerOptions"]
