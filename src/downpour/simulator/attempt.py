"""The attempt that a simulated worker is at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from downpour.node.attempt import HeldAttempt
from downpour.node.snapshot_schedule import SnapshotSchedule
from downpour.simulator.machines import Course
from downpour.simulator.messages import TrainRequest

Phase = Literal["waiting", "reading", "training", "saving", "publishing", "reporting"]


@dataclass(slots=True, eq=False)
class SimulatedAttempt(HeldAttempt):
    """An attempt; on its `course` since it `set_out_at` a `share` of it, and `start` is its state.

    `course` is None while it does not train. Its training began at `loaded_at_seconds`.
    """

    task: TrainRequest = field(kw_only=True)
    phase: Phase = "waiting"
    cancelled: bool = False
    to_hand_over: bool = False
    start: bytes = b""
    course: Course | None = None
    set_out_at: float = 0.0
    share: float = 0.0
    loaded_at_seconds: float = 0.0
    pace: SnapshotSchedule | None = None
