"""Kills a manager in the middle of a run; another one continues."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.experiments.demos.demo import Act, Acted, Demo, percent
from downpour.experiments.figures.timeline_figure import timelines_figure
from downpour.experiments.tables.table import Column, Table
from downpour.files.records.record_lines import DisturbedLine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DIGITS_SHOWN = 12


def _act(title: str, kill: Sequence[str] = ()) -> Act:
    fields = {"name": "demo-crash", "shards": 2, "epochs": 8, "batch_size": 1}
    fields |= {"learning_rate": 0.002}
    return Act(title=title, fields=fields, workers=2, kill=kill)


def _table(acted: Sequence[Acted]) -> Table:
    columns = (
        Column("run", "run"),
        Column("kills", "kills", 0),
        Column("wall_seconds", "start to\nend, s", 1),
        Column("again", "shards\ntrained again", 0),
        Column("accuracy", "accuracy\n%", 1),
        Column("sha256", "SHA-256\nof the model"),
    )
    rows = tuple(
        (
            one.act.title,
            len(one.moments(DisturbedLine)),
            one.wall_seconds,
            sum(not failure.blameless for failure in one.result.failures),
            percent(one.result.accuracy),
            hashlib.sha256(one.model).hexdigest()[:_DIGITS_SHOWN],
        )
        for one in acted
    )
    return Table("crash", "A manager killed and resumed", columns, rows)


def _notice(acted: Sequence[Acted]) -> str:
    calm, killed = acted
    later = killed.wall_seconds - calm.wall_seconds
    cost = f"cost {later:.1f} s" if later > 0 else "cost no visible time"
    if calm.model == killed.model:
        return f"The crash {cost}, and both models are the same, byte for byte."
    return f"The crash {cost}, but the models differ. That is a bug: please report it."


def _figure(acted: Sequence[Acted]) -> Figure:
    spans = {one.act.title: one.run.attempt_spans for one in acted}
    disturbed = {one.act.title: one.run.disturbed_seconds for one in acted}
    return timelines_figure(spans, disturbed=disturbed)


DEMO = Demo(
    about="kill a manager in the third round, and another one continues: the same bytes",
    acts=(_act("undisturbed"), _act("manager killed", ["manager@round3"])),
    table=_table,
    notice=_notice,
    figure=_figure,
)
