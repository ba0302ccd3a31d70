"""The subject of a report: runs at their places in a grid, or a single run.

It holds results and labels, and does not know the layout of a grid's folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downpour.core.splitters.cut import ShardCounts
from downpour.experiments.reading.recorded_split import split_of
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.timeline import (
    AttemptSpan,
    ResourceSample,
    resources,
)
from downpour.files.records.record import read_record
from downpour.files.store.layout import RECORD_NAME

UNEVEN_SPLITS = ("class", "dirichlet")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run; `values` are its place on the axes of its subgrid, `repetition` counts from 1.

    `split` is set if the record counts the examples of each class in each shard. `folder` holds the
    record. `disturbed_seconds` are when someone slowed or killed a process; like spans, they count
    from the first assignment.
    """

    values: tuple[Any, ...] = ()
    repetition: int = 1
    workers: int | None = None
    result: Result
    attempt_spans: tuple[AttemptSpan, ...] = ()
    disturbed_seconds: tuple[float, ...] = ()
    resources: tuple[ResourceSample, ...] = ()
    split: ShardCounts | None = None
    folder: Path | None = None

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
        return [
            values
            for values in self.settings
            if not self.at(values) and any(run.values == values for run in self.failed)
        ]

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
    """Read the run whose record is in a folder.

    Raises:
        FileMissing: the folder has no record.
        FileCorrupt: someone altered the record.
    """
    record = read_record(folder / RECORD_NAME)
    result = Result.from_record(record, folder)
    return RunResult(
        workers=workers,
        result=result,
        attempt_spans=result.spans,
        disturbed_seconds=result.disturbed_seconds,
        resources=resources(record),
        split=split_of(record),
        folder=folder,
    )


def read_one(folder: Path) -> StudyResult:
    """Read a single experiment's folder as a study of one run; it need not have ended.

    Raises:
        FileMissing: the folder has no record.
        FileCorrupt: someone altered the record.
    """
    run = read_run(folder)
    subgrid = SubgridResult(
        name=run.result.name, axes=(), repetitions=1, settings=((),), runs=(run,)
    )
    return StudyResult(name=run.result.name, subgrids=(subgrid,))


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
