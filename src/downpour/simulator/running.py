"""The attempt that a simulated worker is at."""

from __future__ import annotations

from typing import Literal

from downpour.simulator.machines import Course
from downpour.simulator.messages import Task
from downpour.values import Progress, Snapshot

Phase = Literal["reading", "training", "saving", "publishing", "reporting"]


class Running:
    """The attempt that a worker is at; on its `course` since it `began_at` a `share` of it."""

    __slots__ = (
        "attempt",
        "began_at",
        "cancelled",
        "course",
        "known",
        "phase",
        "progress",
        "set_out_at",
        "share",
        "start",
        "taken_at",
        "task",
    )

    def __init__(self, task: Task, taken_at: float) -> None:
        self.task = task
        self.taken_at = taken_at
        self.attempt = task.attempt
        self.phase: Phase = "reading"
        self.cancelled = False
        self.known: Snapshot | None = None
        self.start = b""
        self.course: Course | None = None
        self.set_out_at = self.began_at = self.share = 0.0
        self.progress = Progress(
            attempt=task.attempt, steps_done=0, steps_total=0, elapsed_seconds=0.0
        )
