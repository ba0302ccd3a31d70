"""A search so far, as a value: its runs, the outcome of each, and the best.

It knows neither where the runs are stored nor how the search chose their values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from downpour.base.evaluations import Goal
from downpour.experiments.reading.measures import Measure

SearchRunState = Literal["finished", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class SearchField:
    """A field that a search varies: among `choices`, or within a range if these are None.

    If `log`, the search draws the logarithm of values in the range. An option's name is
    `model_options.NAME`.
    """

    name: str
    choices: tuple[Any, ...] | None = None
    log: bool = False

    @property
    def words(self) -> str:
        """Name the field for people: the last part of its name, with spaces."""
        return self.name.rpartition(".")[2].replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One experiment of a search; `number` counts from 1, `values` are the values of the fields.

    `value` is the final model's value of the search's goal. If the search pruned the run, it is the
    value of the last model before that. `epoch_values` has one per epoch, None if none was
    measured. `reason` says why the run was pruned or failed. `experiment` is the manager's name for
    it. `to_repeat` is true if it failed for a reason other than its values, so that the search
    repeats it.
    """

    number: int
    values: Mapping[str, Any]
    state: SearchRunState
    reason: str | None
    value: float | None
    epoch_values: tuple[float | None, ...]
    train_seconds: float
    wall_seconds: float
    experiment: str
    to_repeat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """A search as far as it has come; `asked` is the number of runs that it asks for."""

    name: str
    goal: Goal
    fields: tuple[SearchField, ...]
    asked: int
    runs: tuple[SearchRun, ...]

    @property
    def left(self) -> int:
        """How many runs the search must still make or repeat."""
        return self.asked - sum(t.number <= self.asked and not t.to_repeat for t in self.runs)

    @property
    def best(self) -> SearchRun | None:
        """The finished run with the best value, or the first of equals; None before one."""
        return self._best_of(self.runs)

    def _best_of(self, runs: Sequence[SearchRun]) -> SearchRun | None:
        finished = [run for run in runs if run.state == "finished"]
        return max(finished, key=lambda run: self.goal.rank(run.value), default=None)

    @property
    def measure(self) -> Measure:
        """The measure of the values."""
        return Measure(self.goal.metric)

    @property
    def best_so_far(self) -> list[tuple[int, float]]:
        """Return the best value by the end of each run, with its number, once there is one."""
        bests = ((t.number, self._best_of(self.runs[:n])) for n, t in enumerate(self.runs, 1))
        return [(number, best.value) for number, best in bests if best and best.value is not None]

    def written(self, run: SearchRun) -> str:
        """Write a run's value with its unit; empty if it has none."""
        return "" if run.value is None else self.measure.text(run.value)

    def to_dict(self) -> dict[str, Any]:
        """Return the search as JSON values."""
        best = self.best
        return {
            "name": self.name,
            "asked": self.asked,
            "objective": str(self.goal),
            "best": best and best.number,
            "trials": [self._fields_of(run) for run in self.runs],
        }

    def _fields_of(self, run: SearchRun) -> dict[str, Any]:
        """Return a run's fields, with each value under the name of its measure."""
        of = {"value": self.goal.metric, "epoch_values": f"epoch_{self.goal.metric}"}
        return {of.get(field, field): value for field, value in asdict(run).items()}

    def __str__(self) -> str:
        repeated = [run for run in self.runs if run.to_repeat]
        counts = Counter(run.state for run in self.runs if not run.to_repeat)
        left_out = [f"{counts[state]} {state}" for state in ("pruned", "failed") if counts[state]]
        parts = [f"{self.name}: {counts.total()} of {self.asked} runs", *left_out]
        if repeated:
            first = f"run {repeated[0].number}: {repeated[0].reason}"
            parts.append(f"{len(repeated)} to repeat ({first})")
        if (best := self.best) and (value := self.written(best)):
            parts.append(f"the best is run {best.number} with {value}")
        return ", ".join(parts)
