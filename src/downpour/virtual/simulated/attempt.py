"""An attempt that a simulated worker carries out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from downpour.core.node.attempt import HeldAttempt
from downpour.core.node.step_loop import StepLoop
from downpour.virtual.simulated.machines import Course
from downpour.virtual.simulated.messages import TrainRequest

Phase = Literal["waiting", "reading", "training", "saving", "publishing", "reporting"]


@dataclass(slots=True, eq=False)
class SimulatedAttempt(HeldAttempt):
    """An attempt that follows a machine's `course` since `set_out_at`, from a `share` of its task.

    `course` is None while the attempt does not train. `start` is the state that its training began
    with, at `loaded_at_seconds`. `loop` decides between its steps.
    """

    task: TrainRequest = field(kw_only=True)
    phase: Phase = "waiting"
    start: bytes = b""
    course: Course | None = None
    set_out_at: float = 0.0
    share: float = 0.0
    loaded_at_seconds: float = 0.0
    loop: StepLoop = field(init=False)
