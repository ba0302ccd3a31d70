"""One worker at a quarter of its speed: wait for it, or let others take over its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.experiments.demos.demo import Act, Acted, Demo, percent, times
from downpour.experiments.figures.timeline_figure import timelines_figure
from downpour.experiments.tables.table import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOW = {"worker-2": 0.25}
SMALL_STEPS = {"shards": 2, "epochs": 6, "batch_size": 1, "learning_rate": 0.002}
"""Steps of one example each, so that a shard of the digits takes about a second and can change
hands. We use two workers, because a laptop with two cores has a core for each."""


def _act(policy: str, title: str) -> Act:
    name = f"demo-stragglers-{policy}"
    fields = {"name": name, "policy": policy, **SMALL_STEPS}
    return Act(title=title, fields=fields, workers=2, slow=SLOW)


def _table(acted: Sequence[Acted]) -> Table:
    columns = (
        Column("policy", "policy"),
        Column("train_seconds", "training\ns", 1),
        Column("round_seconds", "a round\ns", 2),
        Column("moves", "moves", 0),
        Column("slow_tasks", "shards by\nworker-2", 0),
        Column("accuracy", "accuracy\n%", 1),
    )
    rows = tuple(
        (
            one.result.spec["policy"],
            one.result.train_seconds,
            one.result.train_seconds / max(1, len(one.result.rounds)),
            one.result.stragglers.moves if one.result.stragglers else 0,
            sum(task.worker in SLOW for task in one.result.tasks),
            percent(one.result.accuracy),
        )
        for one in acted
    )
    return Table("stragglers", "One slow worker of two", columns, rows)


def _notice(acted: Sequence[Acted]) -> str:
    wait, handoff = acted
    longer = times(wait.result.train_seconds, handoff.result.train_seconds)
    models = "the same bytes" if wait.model == handoff.model else "different bytes"
    return f"Waiting took {longer} as long as handing over work; both models have {models}."


def _figure(acted: Sequence[Acted]) -> Figure:
    return timelines_figure({one.act.title: one.run.attempt_spans for one in acted})


DEMO = Demo(
    about="one worker at a quarter of its speed: wait for it, or hand its work over",
    acts=(
        _act("wait", "wait for the slow worker"),
        _act("handoff", "hand its work over"),
    ),
    table=_table,
    notice=_notice,
    figure=_figure,
)
