"""Compares shards that mix all classes with shards that have only a few classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.experiments.demos.demo import Act, Acted, Demo, percent
from downpour.experiments.demos.lines import lines_figure
from downpour.experiments.running.cutting import cuts_of
from downpour.experiments.tables.table import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EARLY = 2
"""The epoch after which the table compares; later, both may be good."""


def _act(split: str, title: str) -> Act:
    fields = {"name": f"demo-splits-{split}", "split": split, "shards": 5, "epochs": 15}
    return Act(title=title, fields=fields, workers=2)


def _classes(one: Acted) -> str:
    """Say how many classes a shard has: "10", or "2 to 3"."""
    [cut] = cuts_of(one.spec, [], one.result.shards, one.shared)
    held = cut.classes_held
    return f"{held.min()}" if held.min() == held.max() else f"{held.min()} to {held.max()}"


def _accuracy(one: Acted, epoch: int) -> float | None:
    """Return the accuracy after an epoch, in percent."""
    found = [each.accuracy for each in one.result.epochs if each.epoch == epoch]
    return percent(found[0]) if found else None


def _table(acted: Sequence[Acted]) -> Table:
    columns = (
        Column("split", "split"),
        Column("classes", "classes\nper shard"),
        Column("early", f"accuracy after\nepoch {_EARLY}, %", 1),
        Column("final", "at the\nend, %", 1),
    )
    rows = tuple(
        (
            one.spec.split,
            _classes(one),
            _accuracy(one, _EARLY),
            percent(one.result.accuracy),
        )
        for one in acted
    )
    return Table("splits", "Two ways to cut the same data into shards", columns, rows)


def _notice(acted: Sequence[Acted]) -> str:
    random, by_class = ((percent(one.result.accuracy) or 0.0) for one in acted)
    return (
        f"With all classes in each shard, the model reaches {random:.1f} %; with few classes in "
        f"each, {by_class:.1f} %. Averaging models that know different classes loses accuracy."
        if random > by_class
        else f"Both splits end near each other here: {random:.1f} % and {by_class:.1f} %."
    )


def _figure(acted: Sequence[Acted]) -> Figure:
    lines = {
        one.act.title: [(each.epoch, 100 * (each.accuracy or 0.0)) for each in one.result.epochs]
        for one in acted
    }
    return lines_figure(lines, "epoch")


DEMO = Demo(
    about="shards with all classes, or with a few classes each: the effect on averaging",
    acts=(
        _act("random", "random split"),
        _act("class", "class split"),
    ),
    table=_table,
    notice=_notice,
    figure=_figure,
)
