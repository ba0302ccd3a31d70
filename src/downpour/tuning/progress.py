"""How far a search is, for people: bars with the best so far on a terminal, a line a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Self

from rich.console import Console

from downpour.experiments.grid import Cell
from downpour.experiments.progress import about, spoken
from downpour.reports.progress import ProgressDisplay
from downpour.reports.tables import shortened
from downpour.reports.tuned import Field, Trial, Tuned, best_of
from downpour.rpc.messages import Status


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
        self._trials = list(tuned.trials)
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
        self._trials.append(trial)
        accuracy = "" if trial.accuracy is None else f" accuracy {trial.accuracy:.2%}"
        reason = f", {trial.reason}" if trial.reason else ""
        chosen = described(self._tuned.fields, trial.values)
        self._say(
            f"{len(self._trials)}/{self._tuned.asked} trial {trial.number} {trial.state}"
            f"{accuracy}{reason} in {spoken(trial.wall_seconds)}: {chosen}{self._best(trial)}"
        )
        self._draw()

    def _best(self, trial: Trial) -> str:
        return " (the best so far)" if best_of(self._trials) is trial else ""

    def _draw(self) -> None:
        best, done = best_of(self._trials), len(self._trials)
        self._display.bars.update(
            self._bar,
            description=f"trials, best {best.accuracy:.2%}" if best and best.accuracy else "trials",
            completed=done,
            count=f"{done}/{self._tuned.asked}",
            left=about(seconds_left(self._trials, self._tuned.asked)),
        )


def seconds_left(trials: Sequence[Trial], asked: int) -> float | None:
    """Say how long the other trials will take, as those that ended; None before the first has."""
    if not trials:
        return None
    return max(0, asked - len(trials)) * fmean(trial.wall_seconds for trial in trials)


def described(fields: Sequence[Field], values: Mapping[str, Any]) -> str:
    """Write the values of a trial for people: "learning rate 0.012, batch size 32"."""
    return ", ".join(f"{field.words} {shortened(values[field.name])}" for field in fields)
