"""From traces to a trained predictor: the one recipe behind `downpour predictor train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from downpour.predictor.files import Trained, checksum
from downpour.predictor.lessons import Lessons, teach, varied
from downpour.predictor.ridge import fit_ridge
from downpour.predictor.traces import Traces

if TYPE_CHECKING:
    from downpour.predictor.training import Settings

Step = Callable[[str], None]
_LIVING = "living through the jobs"


@dataclass(frozen=True, slots=True)
class Course:
    """All that can be learned from traces: as they are, and varied."""

    traces: str  # their checksum
    plain: Lessons
    varied: Lessons


def prepare(traces: Traces, seed: int = 0, step: Step = lambda _: None) -> Course:
    """Live through the traces twice; `step` is called twice a job, with what is being done."""
    plain = teach(traces, step=lambda: step(_LIVING))
    other = teach(varied(traces, seed + 1), seed=seed + 1, step=lambda: step(_LIVING))
    return Course(checksum(traces), plain, other)


def train(
    course: Course, jobs: Sequence[int], settings: Settings, step: Step = lambda _: None
) -> Trained:
    """Train all that is stored on some jobs; `step` is called after each epoch of each net."""
    from downpour.predictor.training import train_lstm

    plain, other = course.plain.of(jobs), course.varied.of(jobs)
    return Trained(
        ridge=fit_ridge(plain),
        lstm=train_lstm([plain, other], settings, lambda loss: step(f"training ({loss:.4f})")),
        traces=course.traces,
    )
