"""What a report is about: runs at their places in a grid, or one run alone.

A value of results and labels; where its folder lies and how it is laid out, others know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downpour.reports.result import Result
from downpour.reports.timeline import ResourceSample, Stint, resources, stints
from downpour.runtime.record import RECORD_NAME, read_record

UNEVEN_SPLITS = ("class", "dirichlet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One experiment; `values` are its place on the axes of its group, `trial` counts from 1."""

    values: tuple[Any, ...] = ()
    trial: int = 1
    workers: int | None = None
    result: Result
    stints: tuple[Stint, ...] = ()
    resources: tuple[ResourceSample, ...] = ()

    @property
    def has_uneven_data(self) -> bool:
        """Whether its shards differ in the classes they hold."""
        return str(self.result.spec.get("split", "")).startswith(UNEVEN_SPLITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs along common axes.

    `settings` are all places that were asked for, in order, and `trials` how often each. `runs`
    count; `failed` came to nothing.
    """

    name: str
    axes: tuple[str, ...]
    trials: int
    settings: tuple[tuple[Any, ...], ...]
    runs: tuple[Run, ...]
    failed: tuple[Run, ...] = ()

    def at(self, values: Sequence[Any]) -> list[Run]:
        """Return the runs at a place, in the order of their trials."""
        found = [run for run in self.runs if run.values == tuple(values)]
        return sorted(found, key=lambda run: run.trial)

    @property
    def measured(self) -> list[tuple[tuple[Any, ...], list[Run]]]:
        """Every place that has a run, with its runs."""
        return [(values, runs) for values in self.settings if (runs := self.at(values))]

    @property
    def lost(self) -> list[tuple[Any, ...]]:
        """Every place at which whatever was run failed."""
        return [
            values
            for values in self.settings
            if not self.at(values) and any(run.values == values for run in self.failed)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Groups of runs under one name."""

    name: str
    groups: tuple[Group, ...]

    @property
    def asked(self) -> int:
        """How many runs were asked for, those counted twice that two groups share."""
        return sum(group.trials * len(group.settings) for group in self.groups)

    @property
    def failed(self) -> list[Run]:
        """The runs that came to nothing, once each."""
        return list({r.result.experiment: r for g in self.groups for r in g.failed}.values())

    @property
    def done(self) -> int:
        """How many of those asked for there are."""
        return sum(len(group.runs) for group in self.groups)


def read_run(folder: Path, *, workers: int | None = None) -> Run:
    """Read the run whose record lies in a folder.

    Raises:
        FileMissing: the folder has no record.
        FileCorrupt: the record was altered.
    """
    record = read_record(folder / RECORD_NAME)
    return Run(
        workers=workers,
        result=Result.from_record(record, folder),
        stints=stints(record),
        resources=resources(record),
    )


def read_one(folder: Path) -> Study:
    """Read a single experiment's folder as a study of one run; it need not have ended.

    Raises:
        FileMissing: the folder has no record.
        FileCorrupt: the record was altered.
    """
    run = read_run(folder)
    group = Group(name=run.result.name, axes=(), trials=1, settings=((),), runs=(run,))
    return Study(name=run.result.name, groups=(group,))


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
            return ", ".join(f"{key} {label(inner)}" for key, inner in value.items()) or "none"
        case _:
            return str(value)


def natural(name: str) -> list[tuple[int, str]]:
    """Return what to sort names by, so that worker-2 comes before worker-10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name)]
