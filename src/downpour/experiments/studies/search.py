"""A search: fields of the spec, axes to vary, and a number of runs; it chooses the runs.

The file is a spec with a `[search]` table, which gives an axis for each searched field. The search
ignores the spec's own value of such a field. The file calls the number of runs `trials`. Nothing
here reads a clock.

Epochs that a pruned run trained after the decision do not count. If a run fails because of its
values, for example because it diverges, it counts as the worst, and the search does not repeat it.
If a run failed for another reason (workers died, say), or a user cancelled it, the next plan
repeats it with the same values.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import tomli_w

from downpour.base.errors import ExperimentFailed, SpecError
from downpour.base.states import LOSS, ExperimentState, FailureKind, Goal
from downpour.core.spec import ResolvedSpec, Spec
from downpour.experiments.studies import study
from downpour.experiments.studies.folder import BEST_NAME, StudyFolder
from downpour.experiments.studies.sampler import Pruner, Sampler, axis_of
from downpour.files.spec_file import refuse_grid
from downpour.record.study_result import (
    Axis,
    SearchResult,
    SearchRun,
    SearchRunState,
    field_words,
)
from downpour.show.tables.terminal_tables import shortened

_SEARCH = "search"
_ABOVE = ("name", "workers", _SEARCH)
_TABLE_FIELDS = ("trials", "seed", "pruner", "objective")
_RUNS = 20
_RUNS_MAX = 10_000
_SEED_MAX = 2**63 - 1
_ACCURACY = "accuracy"
_CORNERS_MAX = 10_000  # fourteen ranges have more, and we validate a spec for each
_NEVER = {
    "name": "names the search",
    "workers": "changes no result; set one number above [search]",
    "device": "must be the same for all runs; set it above [search]",
    "evaluate_every": "decides which results the search sees; set it above [search]",
}


@dataclass(frozen=True)
class Search(study.StudySpec):
    """A study that chooses its runs as it goes.

    `fields` are the spec's own, `axes` the searched ones. `goal` is the metric or loss to improve.
    """

    kind: ClassVar[str] = "search"
    file_name: ClassVar[str] = "tune.toml"
    runs_folder: ClassVar[str] = "trials"
    # A run of a search is often shorter than the seconds that a manager and workers need to start.
    shares_workers: ClassVar[bool] = True

    name: str
    fields: Mapping[str, study.Value]
    workers: int | None
    axes: Mapping[str, Axis]
    asked: int
    seed: int
    pruner: Pruner
    goal: Goal

    @classmethod
    def make(cls, fields: Mapping[str, study.Value]) -> Search:
        """Make a search from a file's fields; the spec accepts all choices and ends of ranges."""
        fields = dict(fields)
        table = fields.pop(_SEARCH, None)
        if table is None:
            refuse_grid(fields)
        if not isinstance(table, dict):
            raise SpecError(_SEARCH, table, "must be a table [search] with the fields to search")
        for field, value in fields.items():
            if field == "experiment":
                raise SpecError(field, value, "is for `downpour grid`, not for a search")
            if field in _TABLE_FIELDS and field not in Spec.model_fields:
                raise SpecError(field, value, "must come below [search]")
            study.check_name(field, value, _ABOVE)
        settings = dict(table)
        name = study.name_in(fields)
        workers = fields.pop("workers", None)
        if workers is not None:
            study.whole_number("workers", workers, study.WORKERS_MAX)
        has_task = fields.get("task") is not None or "task" in settings
        goal = _goal(settings.pop("objective", None), has_task=has_task)
        trials = settings.pop("trials", _RUNS)
        seed = settings.pop("seed", 0)
        pruner = Pruner.of(settings.pop("pruner", Pruner().name))
        axes = _axes(settings)
        resolved = {**study.resolved_defaults(has_task=has_task), **fields}
        search = cls(
            name=name,
            fields={field: value for field, value in resolved.items() if field not in axes},
            workers=workers,
            axes=axes,
            asked=study.whole_number(f"{_SEARCH}.trials", trials, _RUNS_MAX),
            seed=study.whole_number(f"{_SEARCH}.seed", seed, _SEED_MAX, least=0),
            pruner=pruner,
            goal=goal,
        )
        for run in search.samples():
            if not run.asked.evaluate_every:
                accepted = f"must be at least 1, because the search optimizes {goal.metric}"
                raise SpecError("evaluate_every", 0, accepted)
        return search

    def to_toml(self) -> str:
        """Write the search with every field resolved."""
        workers = {} if self.workers is None else {"workers": self.workers}
        table = {
            "trials": self.asked,
            "seed": self.seed,
            "objective": str(self.goal),
            "pruner": self.pruner.to_toml(),
            **{field: axis.to_toml() for field, axis in self.axes.items()},
        }
        return tomli_w.dumps({"name": self.name, **self.fields, **workers, _SEARCH: table})

    def run(self, values: Mapping[str, study.Value], number: int | None = None) -> study.Run:
        """Make the run with these values in the searched fields."""
        fields = {"name": self.name, **self.fields}
        for axis, value in values.items():
            field, dot, option = axis.partition(".")
            fields[field] = {**fields.get(field, {}), option: value} if dot else value
        return study.Run.of(fields, self.workers, number)

    def values_of(self, spec: Spec) -> dict[str, study.Value]:
        """Return a spec's values in the searched fields; None for a missing option."""
        fields = spec.model_dump(mode="json")
        values: dict[str, study.Value] = {}
        for axis in self.axes:
            field, dot, option = axis.partition(".")
            values[axis] = fields[field].get(option) if dot else fields[field]
        return values

    def allows(self, values: Mapping[str, study.Value]) -> bool:
        """Whether a run may have these values."""
        return all(axis.holds(values.get(name)) for name, axis in self.axes.items())

    def samples(self) -> Iterator[study.Run]:
        """Yield the runs at the ends of all ranges, with every choice; at most ten thousand.

        If the spec accepts these, it accepts all runs, because intervals limit its fields.
        """
        ends = itertools.product(*(axis.ends for axis in self.axes.values()))
        for values in itertools.islice(ends, _CORNERS_MAX):
            yield self.run(dict(zip(self.axes, values, strict=True)))

    def has_run(self, name: str) -> bool:
        """Whether the name is the number of a run, as folders have it: four digits or more."""
        return name.isdecimal() and name == f"{int(name):04d}"

    def run_of(self, name: str, spec: ResolvedSpec) -> study.Run | None:
        """Return the run of this number if the search allows its values; None for another spec."""
        values = self.values_of(spec)
        if not self.allows(values):
            return None
        return self.run(values, int(name)).trained_with(spec)

    def keeps_runs_of(self, former: Search) -> bool:
        """Whether the runs of a former search count for this one.

        They do if only the number of runs differs. The number of workers may also differ, if the
        file gives the number of shards.
        """
        has_shards = "shards" in self.fields or "shards" in self.axes
        workers = self.workers if has_shards else former.workers
        return replace(former, asked=self.asked, workers=workers) == self

    def plan(self, ended: Iterable[study.EndedRun]) -> SearchPlan:
        """Return the plan of the missing runs."""
        return SearchPlan(self, ended)


def _goal(objective: study.Value, *, has_task: bool) -> Goal:
    """Read the goal of a search; a user's task may have any metric, which only its code knows."""
    if objective is None:
        return Goal.of(LOSS if has_task else _ACCURACY)
    metric = 'a metric of the task, as NAME, "min:NAME" or "max:NAME",' if has_task else "accuracy"
    accepted = f"must be {metric} or loss"
    try:
        goal = Goal.of(objective if isinstance(objective, str) else "")
    except ValueError:
        raise SpecError(f"{_SEARCH}.objective", objective, accepted) from None
    if not has_task and goal.metric not in {LOSS, _ACCURACY}:
        raise SpecError(f"{_SEARCH}.objective", objective, accepted)
    return goal


def _axes(table: Mapping[str, study.Value]) -> dict[str, Axis]:
    """Read the axes, sorted by name; `model_options.dropout = …` may also have quotes.

    We sort them because the sampler draws values field by field. A search must not depend on the
    order of lines in its file, which has no meaning in TOML.
    """
    flat: dict[str, study.Value] = {}
    for field, value in table.items():
        if field in study.OPTIONS and isinstance(value, dict):
            flat |= {f"{field}.{option}": inner for option, inner in value.items()}
        else:
            flat[field] = value
    if not flat:
        accepted = "must name a field, such as learning_rate = { low = 0.001, high = 0.3 }"
        raise SpecError(_SEARCH, dict(table), accepted)
    for field, value in flat.items():
        _check_field(field, value, flat)
    return {field: axis_of(field, value) for field, value in sorted(flat.items())}


def _check_field(field: str, value: Any, beside: Mapping[str, study.Value]) -> None:
    top, dot, option = field.partition(".")
    if field in _NEVER:
        raise SpecError(f"{_SEARCH}.{field}", value, f"cannot be searched: {_NEVER[field]}")
    if not dot and field not in Spec.model_fields:
        study.check_name(field, value, _TABLE_FIELDS)
    if dot and (top not in study.OPTIONS or not option):
        options = ", ".join(f"{table}.NAME" for table in study.OPTIONS)
        raise SpecError(f"{_SEARCH}.{field}", value, f"no such field; options are {options}")
    if dot and top in beside:
        raise SpecError(f"{_SEARCH}.{field}", value, f"the search already varies {top} as a whole")


_STATES: dict[str, SearchRunState] = {
    "finished": "finished",
    "cancelled": "pruned",
    "failed": "failed",
}
_NOT_BY_ITS_VALUES = {FailureKind.LOST, FailureKind.STORE}
"""Failures that do not depend on a run's values: dead workers, unreadable files."""


class SearchPlan(study.StudyPlan):
    """Chooses the runs of a search; a repeated run keeps its number."""

    def __init__(self, search: Search, ended: Iterable[study.EndedRun]) -> None:
        self._search = search
        self._runs = {run.number: run for run in (_searched(search, each) for each in ended)}
        done = {number for number, run in self._runs.items() if not run.to_repeat}
        self._missing = deque(n for n in range(1, search.asked + 1) if n not in done)

    @cached_property
    def _sampler(self) -> Sampler:
        """The sampler, which knows the runs that ended before.

        We make it when it is first needed: importing Optuna takes time, and `progress` does not
        need it.
        """
        search = self._search
        sampler = Sampler(search.axes, search.goal, search.pruner, search.seed)
        for run in self.result.runs:
            if not run.to_repeat:
                sampler.restore(run)
        return sampler

    @property
    def result(self) -> SearchResult:
        """The ended runs, in the order of their numbers."""
        search, runs = self._search, tuple(self._runs[number] for number in sorted(self._runs))
        return SearchResult(
            name=search.name, goal=search.goal, fields=search.axes, asked=search.asked, runs=runs
        )

    @property
    def progress(self) -> study.StudyProgress:
        """How far the search is now."""
        result = self.result
        value = "" if result.best is None else result.written(result.best)
        spent = [(str(run.number), run.wall_seconds) for run in result.runs]
        return study.StudyProgress(
            total=result.asked,
            left=result.left,
            is_successful=not result.left and result.best is not None,
            # We don't know yet which values come next, so each run is its own group.
            seconds_left=study.seconds_left(spent, [""] * result.left),
            headline=f"runs, best {value}" if value else "runs",
            text=str(result),
            fields=result.to_dict(),
        )

    @property
    def best(self) -> study.Run | None:
        """The finished run with the best value."""
        best = self.result.best
        return self._search.run(best.values, best.number) if best else None

    def next(self) -> study.Run | None:
        """Return the first missing run, with the sampler's values, or None."""
        if not self._missing:
            return None
        number = self._missing.popleft()
        sampler, former = self._sampler, self._runs.get(number)
        # A repeated run keeps its values, because the sampler chose them from the runs before it.
        values = sampler.repeat(former.values) if former else sampler.propose(number)
        run = self._search.run(values, number)
        self._judge = _Judge(sampler, self._search.goal, run.spec.epochs)
        return run

    def on_epoch(self, epoch: int, measured: study.Measured) -> bool:
        """Take the measurements of the current run, and decide whether it ends; see `OnEpoch`."""
        name = self._search.goal.metric
        if name not in measured:
            names = ", ".join(measured)
            raise SpecError("search.objective", name, f"no such metric; these are known: {names}")
        return self._judge.take(epoch, measured[name])

    def judge(self, summary: study.RunSummary) -> study.RunSummary:
        """Leave out the epochs after the one at which the plan pruned the run."""
        counted = self._judge.counted(summary)
        if counted.state == "cancelled" and self._judge.ended_at is None:
            raise ExperimentFailed(summary.experiment, summary.reason or "it was cancelled")
        return counted

    def learn(self, ended: study.EndedRun) -> None:
        """Give the sampler the outcome of the values that it proposed."""
        run = _searched(self._search, ended)
        self._runs[run.number] = run
        self._sampler.learn(run)

    def line(self, ended: study.EndedRun) -> str:
        """Return a line about a run that has just ended: its values, and whether it is the best."""
        run = self._runs[ended.run.number or 0]
        values = run.values.items()
        chosen = ", ".join(f"{field_words(name)} {shortened(value)}" for name, value in values)
        best = " (the best so far)" if self.result.best is run else ""
        value = self.result.written(run)
        end = study.outcome(run, f"{self.result.measure.words} {value}" if value else "")
        return f"{self.progress.count} {ended.run.title} {end}: {chosen}{best}"


@dataclass(slots=True)
class _Judge:
    """Takes the values of a run in order, and decides once at which epoch it ends."""

    sampler: Sampler
    goal: Goal
    epochs: int
    last_epoch: int = 0
    ended_at: int | None = None

    def take(self, epoch: int, value: float | None) -> bool:
        """Take the value of an epoch, perhaps again; return whether the run should end.

        A missing value, or one that is not a number, decides nothing.
        """
        is_new = self.ended_at is None and epoch > self.last_epoch
        if is_new and value is not None and math.isfinite(value):
            self.last_epoch = epoch
            if self.sampler.is_hopeless(epoch, value) and epoch < self.epochs:
                self.ended_at = epoch
        return self.ended_at is not None

    def counted(self, summary: study.RunSummary) -> study.RunSummary:
        """Take the remaining epochs, and return the outcome without those after the end.

        The client may have missed the last epochs, if the run ended before it asked for them.
        """
        for epoch, measured in enumerate(summary.epochs, 1):
            self.take(epoch, measured.get(self.goal.metric))
        if self.ended_at is None:
            return summary
        return replace(
            summary,
            state=ExperimentState.CANCELLED,
            reason=f"pruned after epoch {self.ended_at} of {self.epochs}",
            asked_wrongly=False,
            epochs=summary.epochs[: self.ended_at],
        )


def _searched(search: Search, ended: study.EndedRun) -> SearchRun:
    """Return a run with its values in the searched fields."""
    run, summary = ended.run, ended.summary
    values = tuple(measured.get(search.goal.metric) for measured in summary.epochs)
    return SearchRun(
        number=run.number or 0,
        values=search.values_of(run.spec),
        state=_STATES[summary.state],
        reason=summary.reason,
        value=next((value for value in reversed(values) if value is not None), None),
        epoch_values=values,
        train_seconds=summary.train_seconds,
        wall_seconds=summary.wall_seconds,
        experiment=summary.experiment,
        to_repeat=summary.state == "failed" and summary.failure in _NOT_BY_ITS_VALUES,
    )


FIGURE_STEM = "search"
_FIGURES = f"{FIGURE_STEM}.png", f"{FIGURE_STEM}.svg"


def draw_search(folder: StudyFolder[Search]) -> None:
    """Draw the runs of a search so far, if any has a value."""
    from downpour.show.figures.result_figure import search_figure
    from downpour.show.figures.style import to_png, to_svg

    result = folder.study.plan(folder.ended()).result
    if any(run.value is not None for run in result.runs):
        figure = search_figure(result)
        contents = to_png(figure), to_svg(figure, FIGURE_STEM).encode()
        for name, content in zip(_FIGURES, contents, strict=True):
            folder.write(name, content)


def search_files(folder: StudyFolder[Search]) -> list[Path]:
    """Return the paths of the best run's spec and of the figure, if they exist."""
    files = (folder.path / name for name in (BEST_NAME, *_FIGURES))
    return [file for file in files if file.exists()]
