"""The progress of a study for people: bars on a terminal, a line for each run in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console

from downpour.experiments.studies.durations import about
from downpour.experiments.studies.plan import StudyProgress
from downpour.experiments.studies.study import Run
from downpour.experiments.tables.progress import ProgressDisplay
from downpour.network.rpc.messages import Status


class StudyDisplay:
    """A context manager that shows a study's progress; it draws bars only on a terminal.

    Args:
        console: Where the bars are drawn.
        say: Prints a line for each run that has ended.
    """

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        self._display = ProgressDisplay(console)
        self._say = say
        self._bar = self._display.bars.add_task("runs", total=None, count="", left="")
        self._seconds_left: float | None = None
        self._since = 0.0

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__()

    def begins(self, run: Run, progress: StudyProgress) -> None:
        """Show a run's own bars from the start."""
        self._display.again(run.title)
        self._draw(progress)

    def shows(self, status: Status) -> None:
        """Draw the current state of the run."""
        self._display.show(status)
        self._count_down()

    def ends(self, line: str, progress: StudyProgress) -> None:
        """Print the line of a run that has ended."""
        self._say(line)
        self._draw(progress)

    def _draw(self, progress: StudyProgress) -> None:
        self._seconds_left, self._since = progress.seconds_left, time.monotonic()
        self._display.bars.update(
            self._bar,
            description=progress.headline,
            completed=progress.total - progress.left,
            total=progress.total,
            count=progress.count,
        )
        self._count_down()

    def _count_down(self) -> None:
        # The estimate changes only when a run ends; between runs it decreases with the clock.
        left = self._seconds_left
        if left is not None:
            left = max(0.0, left - (time.monotonic() - self._since))
        self._display.bars.update(self._bar, left=about(left))
