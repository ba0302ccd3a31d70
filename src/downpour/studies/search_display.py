"""How far a search is, for people: bars with the best so far on a terminal, a line a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Self

from rich.console import Console

from downpour.reports.progress import ProgressDisplay
from downpour.reports.tables import shortened
from downpour.reports.tuned import Field, Trial, Tuned
from downpour.rpc.messages import Status
from downpour.studies.grid import Cell
from downpour.studies.grid_display import about, spoken


class SearchDisplay:
    """A context manager that watches a search being run; bars are drawn on a terminal only.

    Args:
        console: Where the bars go.
        say: Takes a line for each trial that has ended.
        tuned: The search, with the trials that have ended before.
    """

    def __init__(self, console: Console, say: Callable[[str], None], tuned: Tuned) -> None:
        self._display = ProgressDisplay(console)
        self._say = say
        self._tuned = tuned
        self._bar = self._display.bars.add_task("trials", total=tuned.asked, count="", left="")

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__()

    def begins(self, number: int, cell: Cell) -> None:
        """Show a trial's own bars from the start."""
        del cell
        self._display.again(f"trial {number}")
        self._draw()

    def shows(self, status: Status) -> None:
        """Draw the trial as it is now."""
        self._display.show(status)

    def ends(self, trial: Trial) -> None:
        """Tell what the trial came to, and which is the best."""
        others = (other for other in self._tuned.trials if other.number != trial.number)
        self._tuned = replace(self._tuned, trials=(*others, trial))
        accuracy = "" if trial.accuracy is None else f" accuracy {trial.accuracy:.2%}"
        reason = f", {trial.reason}" if trial.reason else ""
        chosen = described(self._tuned.fields, trial.values)
        self._say(
            f"{self._count()} trial {trial.number} {trial.state}"
            f"{accuracy}{reason} in {spoken(trial.wall_seconds)}: {chosen}{self._best(trial)}"
        )
        self._draw()

    def _best(self, trial: Trial) -> str:
        return " (the best so far)" if self._tuned.best is trial else ""

    def _count(self) -> str:
        return f"{self._tuned.asked - self._tuned.left}/{self._tuned.asked}"

    def _draw(self) -> None:
        best = self._tuned.best
        self._display.bars.update(
            self._bar,
            description=f"trials, best {best.accuracy:.2%}" if best and best.accuracy else "trials",
            completed=self._tuned.asked - self._tuned.left,
            count=self._count(),
            left=about(seconds_left(self._tuned)),
        )


def seconds_left(tuned: Tuned) -> float | None:
    """Say how long the other trials will take, as those that ended; None before the first has."""
    if not tuned.trials:
        return None
    return tuned.left * fmean(trial.wall_seconds for trial in tuned.trials)


def described(fields: Sequence[Field], values: Mapping[str, Any]) -> str:
    """Write the values of a trial for people: "learning rate 0.012, batch size 32"."""
    return ", ".join(f"{field.words} {shortened(values[field.name])}" for field in fields)
