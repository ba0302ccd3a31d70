"""Compares rounds with a barrier and Downpour SGD without one, with a slow worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.experiments.demos.demo import Act, Acted, Demo, percent, times
from downpour.experiments.demos.lines import lines_figure
from downpour.experiments.demos.stragglers import SLOW, SMALL_STEPS
from downpour.experiments.tables.table import Column, Table
from downpour.files.records.record_lines import AggregatedLine, EvaluatedLine

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _act(mode: str, title: str) -> Act:
    fields = {"name": f"demo-asynchrony-{mode}", "mode": mode, "policy": "wait", **SMALL_STEPS}
    return Act(title=title, fields=fields, workers=2, slow=SLOW)


def _versions(one: Acted) -> list[AggregatedLine]:
    return [line for _, line in one.moments(AggregatedLine)]


def _stalest(one: Acted) -> int:
    """Return the largest staleness of a run's updates, in versions."""
    return max((max(line.staleness, default=0) for line in _versions(one)), default=0)


def _table(acted: Sequence[Acted]) -> Table:
    columns = (
        Column("mode", "mode"),
        Column("train_seconds", "training\ns", 1),
        Column("versions", "model\nversions", 0),
        Column("stalest", "most stale\nupdate", 0),
        Column("slow_tasks", "shards by\nworker-2", 0),
        Column("accuracy", "accuracy\n%", 1),
    )
    rows = tuple(
        (
            one.spec.mode,
            one.result.train_seconds,
            len(_versions(one)),
            _stalest(one),
            sum(task.worker in SLOW for task in one.result.tasks),
            percent(one.result.accuracy),
        )
        for one in acted
    )
    return Table("asynchrony", "A barrier, or none, with one slow worker of two", columns, rows)


def _notice(acted: Sequence[Acted]) -> str:
    barrier, free = acted
    longer = times(barrier.result.train_seconds, free.result.train_seconds)
    return (
        f"With a barrier the same passes over the data took {longer} as long; without "
        f"one, updates came from models up to {_stalest(free)} versions old, and the "
        "bytes differ each time."
    )


def _figure(acted: Sequence[Acted]) -> Figure:
    lines = {
        one.act.title: [(at, 100 * line.metrics["accuracy"]) for at, line in measured]
        for one in acted
        if (measured := one.moments(EvaluatedLine))
    }
    return lines_figure(lines, "seconds since the first assignment")


DEMO = Demo(
    about="a barrier after each round, or Downpour SGD without one, with a slow worker",
    acts=(_act("sync", "sync: a barrier"), _act("downpour", "downpour: no barrier")),
    table=_table,
    notice=_notice,
    figure=_figure,
)
