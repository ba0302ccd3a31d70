"""A grid: a spec whose fields may be lists, and a number of trials; it expands to runs.

A list is an axis of the grid. Three kinds of fields need a rule. If a value is itself a list
(`betas`, `needs`, `prefers`), the axis is a list of lists. `*_options` take a list of tables, and a
list inside such a table is a value. `seed` and `name` are never lists, because the repetitions make
the seeds. Without `[[experiment]]` the file is one grid; with it, each table is a subgrid that
inherits the fields above it. The file calls the number of repetitions `trials`. Nothing here reads
a clock.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import tomli_w

from downpour.base.errors import FileCorrupt, FileMissing, SpecError
from downpour.core.spec import ResolvedSpec, Spec
from downpour.experiments.studies import study
from downpour.experiments.studies.folder import StudyFolder, check_run, read_folder
from downpour.experiments.studies.search import FIGURE_STEM, Search
from downpour.host.paths import path_of
from downpour.record.result import frame_of
from downpour.record.result_parts import names_of
from downpour.record.study_result import StudyResult, SubgridResult, label, read_one

if TYPE_CHECKING:
    import pandas as pd

RUNS_MAX = 100_000  # we make and validate each run before we train the first one
_REPETITIONS_MAX = 10_000
_SUBGRID = "experiment"
_BESIDE_SPEC = ("name", "workers", "trials", _SUBGRID)
_SINGLE = {"name", "seed"}
_LISTS = {"betas", "needs", "prefers"}


@dataclass(frozen=True, slots=True)
class Place:
    """A run's place in a subgrid: the values on its axes, and which repetition it is, from 1."""

    subgrid: str
    values: tuple[study.Value, ...]
    repetition: int
    run: study.Run


@dataclass(frozen=True)
class Subgrid:
    """A subgrid: fields of the spec. Fields with lists are the axes, in the order of the file."""

    name: str
    fields: Mapping[str, study.Value]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The names of the fields that are axes."""
        return tuple(field for field, value in self.fields.items() if _is_axis(field, value))

    def settings(self) -> Iterator[tuple[study.Value, ...]]:
        """Yield every combination of the axes' values; the last axis changes fastest."""
        return itertools.product(*(self.fields[axis] for axis in self.axes))

    def run(self, values: Sequence[study.Value], repetition: int) -> study.Run:
        """Make the run at a place of the grid."""
        fields = {**self.fields, **dict(zip(self.axes, values, strict=True))}
        # `workers` is not a field of the spec, because a model does not depend on their number.
        workers = fields.pop("workers", None)
        setting = ", ".join(f"{a} {label(v)}" for a, v in zip(self.axes, values, strict=True))
        run = replace(study.Run.of(fields, workers), setting=setting)
        if repetition > 1:  # validate again: the seed may exceed its limit
            return replace(run, asked=run.asked.replace(seed=run.asked.seed + repetition - 1))
        return run


@dataclass(frozen=True)
class Grid(study.StudySpec):
    """A study whose runs are known from the start; each combination of values is a group."""

    kind: ClassVar[str] = "grid"
    file_name: ClassVar[str] = "grid.toml"
    runs_folder: ClassVar[str] = "cells"
    # A grid measures its runs. With separate processes, a run's seconds, memory and first epoch
    # don't depend on the run before.
    shares_workers: ClassVar[bool] = False

    name: str
    repetitions: int
    subgrids: tuple[Subgrid, ...]

    @classmethod
    def make(cls, fields: Mapping[str, study.Value]) -> Grid:
        """Make a grid from the fields of a file; every run of it is valid."""
        if "search" in fields:
            raise SpecError("search", "[search]", "is for `downpour tune`; run it with this file")
        for field, value in fields.items():
            study.check_name(field, value, _BESIDE_SPEC)
        common = dict(fields)
        tables = common.pop(_SUBGRID, None)
        name = study.name_in(common)
        repetitions = study.whole_number("trials", common.pop("trials", 1), _REPETITIONS_MAX)
        if tables is None:
            tables = [{"name": name}]
        if not (isinstance(tables, list) and tables and all(isinstance(t, dict) for t in tables)):
            raise SpecError(_SUBGRID, tables, f"must be tables: write [[{_SUBGRID}]] above each")
        subgrids = tuple(_subgrid(name, common, table, n) for n, table in enumerate(tables, 1))
        names = [subgrid.name for subgrid in subgrids]
        if len(set(names)) < len(names):
            raise SpecError(f"{_SUBGRID}.name", names, "must differ in each table")
        settings = sum(math.prod(len(s.fields[axis]) for axis in s.axes) for s in subgrids)
        if (runs := repetitions * settings) > RUNS_MAX:
            raise SpecError("trials", repetitions, f"makes {runs} runs; at most {RUNS_MAX} are run")
        # We check the last repetition, because it has the largest seed.
        for subgrid in subgrids:
            for values in subgrid.settings():
                subgrid.run(values, repetitions)
        return cls(name=name, repetitions=repetitions, subgrids=subgrids)

    def to_toml(self) -> str:
        """Write the grid with every field resolved."""
        tables = [{**subgrid.fields, "name": subgrid.name} for subgrid in self.subgrids]
        return tomli_w.dumps({"name": self.name, "trials": self.repetitions, _SUBGRID: tables})

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All places, with the first repetition of every setting before the second of any.

        So if someone stops a grid halfway, it has results for every setting.
        """
        return tuple(
            Place(subgrid.name, values, repetition, subgrid.run(values, repetition))
            for repetition in range(1, self.repetitions + 1)
            for subgrid in self.subgrids
            for values in subgrid.settings()
        )

    @cached_property
    def runs(self) -> dict[str, study.Run]:
        """The runs by name, in the order in which to run them; subgrids may share runs."""
        return {place.run.name: place.run for place in self.places}

    def samples(self) -> Iterator[study.Run]:
        """Yield all runs."""
        yield from self.runs.values()

    def has_run(self, name: str) -> bool:
        """Whether the grid has a run of this name."""
        return name in self.runs

    def run_of(self, name: str, spec: ResolvedSpec) -> study.Run | None:
        """Return the run of this name, if it has this spec."""
        run = self.runs.get(name)
        return None if run is None else run.trained_with(spec)

    def keeps_runs_of(self, former: Grid) -> bool:  # noqa: ARG002
        """Return true: a run's name holds a digest of all its fields, so it is no other run's."""
        return True

    def plan(self, ended: Iterable[study.EndedRun]) -> GridPlan:
        """Return the plan of the missing runs."""
        return GridPlan(self, ended)


def _subgrid(
    grid: str, common: Mapping[str, study.Value], table: Mapping[str, study.Value], number: int
) -> Subgrid:
    """Resolve a subgrid: its table overrides the common fields, and these the defaults."""
    for field, value in table.items():
        study.check_name(field, value, _BESIDE_SPEC)
        if field in ("trials", _SUBGRID):
            raise SpecError(field, value, f"must come before the first [[{_SUBGRID}]]")
    fields = {**common, **table}
    name = fields.pop("name", f"{_SUBGRID}-{number}")
    Spec.make({"name": name})
    for field, value in fields.items():
        _check(field, value)
    # The file's fields come first, so that the axes keep their order, then the defaults. Tables
    # come last, as in the text that `to_toml` writes, so a grid that we read back has the same
    # axis order.
    defaults = study.resolved_defaults(has_task="task" in fields)
    fields = {**fields, **{f: v for f, v in defaults.items() if f not in fields}}
    fields["name"] = grid
    return Subgrid(name, dict(sorted(fields.items(), key=lambda item: item[0] in study.OPTIONS)))


def _check(field: str, value: study.Value) -> None:
    """Refuse a value that is wrong in every combination."""
    if value == [] or (field in _LISTS and isinstance(value, list) and [] in value):
        raise SpecError(field, value, "must not be an empty list; leave the field out instead")
    if field in _SINGLE and isinstance(value, list):
        raise SpecError(field, value, "must be one value; each repetition adds one to the seed")
    values = value if _is_axis(field, value) else [value]
    if any(each in values[:place] for place, each in enumerate(values)):
        raise SpecError(field, value, "names a value twice")
    if field == "workers":
        for number in values:
            study.whole_number(field, number, study.WORKERS_MAX)


def _is_axis(field: str, value: study.Value) -> bool:
    if not isinstance(value, list):
        return False
    return field not in _LISTS or all(isinstance(inner, list) for inner in value)


class GridPlan(study.StudyPlan):
    """Chooses the runs of a grid in the grid's order.

    If a run failed, the next plan repeats it, but no plan runs it twice. Its reason may hold for
    every try, and the grid must end.
    """

    def __init__(self, grid: Grid, ended: Iterable[study.EndedRun]) -> None:
        self._grid = grid
        self._summaries = {each.run.name: each.summary for each in ended}
        finished = {name for name, summary in self._summaries.items() if summary.is_finished}
        self._missing = deque(run for name, run in grid.runs.items() if name not in finished)

    @property
    def progress(self) -> study.StudyProgress:
        """How far the grid is now."""
        runs, ended = self._grid.runs, self._summaries.items()
        finished = {name: one.wall_seconds for name, one in ended if one.is_finished}
        failures = {name: one.reason or one.state for name, one in ended if not one.is_finished}
        text = f"{self._grid.name}: {len(finished)} of {len(runs)} runs"
        if failures:
            first, reason = next(iter(failures.items()))
            text += f", {len(failures)} failed ({first}: {reason})"
        spent = [(runs[name].group, seconds) for name, seconds in finished.items()]
        return study.StudyProgress(
            total=len(runs),
            left=len(runs) - len(finished),
            is_successful=len(finished) == len(runs),
            seconds_left=study.seconds_left(spent, [run.group for run in self._missing]),
            headline="runs",
            text=text,
            fields={
                "name": self._grid.name,
                "cells": len(runs),
                "finished": len(finished),
                "failures": failures,
            },
        )

    def next(self) -> study.Run | None:
        """Return the first run that is missing, or None."""
        # The run stays in the list until `learn`, so that the estimate of the time left includes
        # it.
        return self._missing[0] if self._missing else None

    def learn(self, ended: study.EndedRun) -> None:
        """Take the run off the list of missing ones."""
        self._missing.popleft()
        self._summaries[ended.run.name] = ended.summary

    def line(self, ended: study.EndedRun) -> str:
        """Return a line about a run that has just ended, with an estimate for the others."""
        progress = self.progress
        end = study.outcome(ended.summary, ended.summary.in_words)
        left = f", {study.about(progress.seconds_left)} left" if self._missing else ""
        return f"{progress.count} {ended.run.name} ({ended.run.title}) {end}{left}"


def grid_results(folder: StudyFolder[Grid]) -> StudyResult:
    """Read all ended runs of a grid, each at its place."""
    grid = folder.study
    results = {
        ended.run.name: check_run(folder.record(ended.run.name).parent, ended.run.workers)
        for ended in folder.ended()
    }
    subgrids = []
    for subgrid in grid.subgrids:
        ended = [
            replace(results[place.run.name], values=place.values, repetition=place.repetition)
            for place in grid.places
            if place.subgrid == subgrid.name and place.run.name in results
        ]
        subgrids.append(
            SubgridResult(
                name=subgrid.name,
                axes=subgrid.axes,
                repetitions=grid.repetitions,
                settings=tuple(subgrid.settings()),
                runs=tuple(run for run in ended if run.result.state == "finished"),
                failed=tuple(run for run in ended if run.result.state != "finished"),
            )
        )
    return StudyResult(name=grid.name, subgrids=tuple(subgrids))


@dataclass(frozen=True, slots=True)
class Study:
    """The results of a grid, or of a single experiment."""

    result: StudyResult

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a folder of `downpour grid`, or of one experiment; it need not have ended.

        Raises:
            SpecError: the folder holds neither.
        """
        place = path_of("FOLDER", folder)
        if (place / Grid.file_name).exists():
            grid = read_folder(place, Grid)
            grid.check()
            return cls(grid_results(grid))
        if (place / Search.file_name).exists():
            accepted = f"is a folder of `downpour tune`; its figure is {FIGURE_STEM}.svg"
            raise SpecError("FOLDER", str(folder), accepted)
        try:
            return cls(read_one(place))
        except FileMissing:
            here = "" if place.is_dir() else "no such folder; "
            example = "of one experiment, such as shared_dir/experiments/ID"
            accepted = f"{here}must be a folder of `downpour grid`, or {example}"
            raise SpecError("FOLDER", str(folder), accepted) from None
        except FileCorrupt as error:
            raise SpecError("FOLDER", str(folder), str(error)) from None

    def __repr__(self) -> str:
        """Say in one line which study it is, and how far it has come."""
        return f"<Study {self.result.name}: {self.result.done} of {self.result.asked} runs>"

    def to_frame(self) -> pd.DataFrame:
        """Turn the runs into a data frame, one row each, with failed runs.

        The columns are the subgrid, the values on the axes of all subgrids, the repetition, seed,
        experiment and state, the final metrics, the loss, and seconds. A shared run names all its
        subgrids: "a, b". An accuracy is a share in 0..1.

        Raises:
            MissingPackage: pandas is not installed.
        """
        rows: dict[str, dict[str, Any]] = {}
        every_axis = [axis for subgrid in self.result.subgrids for axis in subgrid.axes]
        for subgrid in self.result.subgrids:
            for run in (*subgrid.runs, *subgrid.failed):
                fields = {**run.result.spec, "workers": run.workers}
                row = rows.setdefault(
                    run.result.experiment,
                    {"subgrid": "", **{axis: fields.get(axis) for axis in every_axis}},
                )
                names = ", ".join(filter(None, (row["subgrid"], subgrid.name)))
                axes = dict(zip(subgrid.axes, run.values, strict=True))
                about = {"repetition": run.repetition, "seed": run.result.spec.get("seed")}
                ended = {"experiment": run.result.experiment, "state": run.result.state}
                seconds = {
                    "train_seconds": run.result.train_seconds,
                    "total_seconds": run.result.total_seconds,
                }
                measured = {**run.result.metrics, "test_loss": run.result.test_loss, **seconds}
                row |= {"subgrid": names, **axes, **about, **ended, **measured}
        return frame_of(list(rows.values()), names_of(rows.values()))
