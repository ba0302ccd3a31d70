"""The results of a study: of a grid's runs, or of a search.

They do not know where the runs are stored, how a grid's folder is laid out, or how a search chose
its values.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from downpour.base.states import Goal
from downpour.core.splitters import ShardCounts
from downpour.record.record_lines import Sample
from downpour.record.result import Result, result_of, rows_in
from downpour.record.result_parts import Measure, split_of
from downpour.record.timeline import resources

UNEVEN_SPLITS = ("class", "dirichlet")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run; `values` are its place on the axes of its subgrid, `repetition` counts from 1.

    `split` is set if the record counts the examples of each class in each shard. `resources`
    are by worker; they count seconds from the first assignment.
    """

    values: tuple[Any, ...] = ()
    repetition: int = 1
    workers: int | None = None
    result: Result
    resources: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    split: ShardCounts | None = None

    @property
    def has_uneven_data(self) -> bool:
        """Whether its shards differ in the classes they hold."""
        return str(self.result.spec.get("split", "")).startswith(UNEVEN_SPLITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubgridResult:
    """Runs along common axes: the groups of one part of a grid.

    `settings` are all requested places, in order, and `repetitions` how often each is to run.
    `runs` finished and count; `failed` did not.
    """

    name: str
    axes: tuple[str, ...]
    repetitions: int
    settings: tuple[tuple[Any, ...], ...]
    runs: tuple[RunResult, ...]
    failed: tuple[RunResult, ...] = ()

    def at(self, values: Sequence[Any]) -> list[RunResult]:
        """Return the runs at a place, in the order of their repetitions."""
        runs = [run for run in self.runs if run.values == tuple(values)]
        return sorted(runs, key=lambda run: run.repetition)

    @property
    def measured(self) -> list[tuple[tuple[Any, ...], list[RunResult]]]:
        """Every place that has a run, with its runs."""
        return [(values, runs) for values in self.settings if (runs := self.at(values))]

    @property
    def lost(self) -> list[tuple[Any, ...]]:
        """Every place at which all runs failed."""
        failed = [run.values for run in self.failed]
        return [values for values in self.settings if values in failed and not self.at(values)]

    @property
    def splits(self) -> list[ShardCounts]:
        """The first cut for each name of a split and each number of shards in these runs."""
        splits: dict[tuple[str, int], ShardCounts] = {}
        for _, runs in self.measured:
            if (split := runs[0].split) is not None:
                splits.setdefault((split.split, len(split.sizes)), split)
        return list(splits.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """The results of a grid, or of a single run."""

    name: str
    subgrids: tuple[SubgridResult, ...]

    @property
    def asked(self) -> int:
        """How many runs the user asked for; a run that two subgrids share counts twice."""
        return sum(subgrid.repetitions * len(subgrid.settings) for subgrid in self.subgrids)

    @property
    def is_single(self) -> bool:
        """Whether the study is a single experiment."""
        return self.asked == 1

    @property
    def failed(self) -> list[RunResult]:
        """The failed runs, once each."""
        return list({r.result.experiment: r for g in self.subgrids for r in g.failed}.values())

    @property
    def done(self) -> int:
        """How many of the requested runs exist."""
        return sum(len(subgrid.runs) for subgrid in self.subgrids)


def read_run(folder: Path, *, workers: int | None = None) -> RunResult:
    """Read the run whose record is in a folder."""
    rows = rows_in(folder)
    result, used = result_of(rows, folder), resources(rows.tables)
    return RunResult(workers=workers, result=result, resources=used, split=split_of(rows.tables))


def read_one(folder: Path) -> StudyResult:
    """Read a single experiment's folder as a study of one run; it need not have ended."""
    run = read_run(folder)
    name = run.result.name
    subgrid = SubgridResult(name=name, axes=(), repetitions=1, settings=((),), runs=(run,))
    return StudyResult(name=name, subgrids=(subgrid,))


def label(value: Any) -> str:
    """Write a value of an axis for people."""
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(label, value))
        case dict():
            named = [(key, inner) for key, inner in value.items() if inner not in ([], (), {})]
            return ", ".join(f"{key} {label(inner)}" for key, inner in named) or "none"
        case _:
            return str(value)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key for names, so that worker-2 comes before worker-10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name)]


SearchRunState = Literal["finished", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; if `log`, a search samples their logarithm.

    If `whole`, only whole numbers, because the field takes no others.
    """

    low: float
    high: float
    log: bool
    whole: bool

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: if the spec accepts both ends, it accepts all between them."""
        return self.low, self.high

    def holds(self, value: Any) -> bool:
        """Whether a value is in the range."""
        return is_number(value) and bool(self.low <= value <= self.high)

    def to_toml(self) -> dict[str, Any]:
        """Write the range as a file has it."""
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class Choices:
    """A list of values, in no order."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values to check: all of them."""
        return self.values

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the choices."""
        return value in self.values

    def to_toml(self) -> list[Any]:
        """Write the choices as a file has them."""
        return list(self.values)


Axis = Range | Choices
"""The values that a search may give a field."""


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are not."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return numeric and math.isfinite(value)


def field_words(name: str) -> str:
    """Name a searched field for people: the last part of its name, with spaces."""
    return name.rpartition(".")[2].replace("_", " ")


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
    """A search as far as it has come; `asked` is the number of runs that it asks for.

    `fields` are the searched ones, by name; that of an option is `model_options.NAME`.
    """

    name: str
    goal: Goal
    fields: Mapping[str, Axis]
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
        # Each value stands under the name of its measure.
        of = {"value": self.goal.metric, "epoch_values": f"epoch_{self.goal.metric}"}
        return {
            "name": self.name,
            "asked": self.asked,
            "objective": str(self.goal),
            "best": self.best and self.best.number,
            "trials": [{of.get(n, n): v for n, v in asdict(run).items()} for run in self.runs],
        }

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
