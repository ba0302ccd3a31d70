"""The demos: two runs side by side, and what to notice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.experiments.demos.demo import Act, Acted, Cells, Demo, lines_figure, times
from downpour.experiments.running.cutting import cuts_of
from downpour.record.record_lines import AggregatedLine, DisturbedLine, EvaluatedLine
from downpour.show.figures.timeline_figure import timelines_figure
from downpour.show.tables.report_tables import percent
from downpour.show.tables.table import Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SLOW = {"worker-2": 0.25}
SMALL_STEPS = {"shards": 2, "epochs": 6, "batch_size": 1, "learning_rate": 0.002}
"""Steps of one example each, so that a shard of the digits takes about a second and can change
hands. We use two workers, because a laptop with two cores has a core for each."""

Measured = tuple[Column, Cells]
TRAINING: Measured = (
    Column("train_seconds", "training\ns", 1),
    lambda act: act.result.train_seconds,
)
SLOW_TASKS: Measured = (
    Column("slow_tasks", "shards by\nworker-2", 0),
    lambda act: sum(task.worker in SLOW for task in act.result.tasks),
)
ACCURACY: Measured = (
    Column("accuracy", "accuracy\n%", 1),
    lambda act: percent(act.result.accuracy),
)


def _stragglers_act(policy: str, title: str) -> Act:
    name = f"demo-stragglers-{policy}"
    fields = {"name": name, "policy": policy, **SMALL_STEPS}
    return Act(title=title, fields=fields, workers=2, slow=SLOW)


def _stragglers_notice(acted: Sequence[Acted]) -> str:
    wait, handoff = acted
    longer = times(wait.result.train_seconds, handoff.result.train_seconds)
    models = "the same bytes" if wait.model == handoff.model else "different bytes"
    return f"Waiting took {longer} as long as handing over work; both models have {models}."


STRAGGLERS = Demo(
    about="one worker at a quarter of its speed: wait for it, or hand its work over",
    acts=(
        _stragglers_act("wait", "wait for the slow worker"),
        _stragglers_act("handoff", "hand its work over"),
    ),
    title="One slow worker of two",
    columns=(
        (Column("policy", "policy"), lambda act: act.spec.policy),
        TRAINING,
        (
            Column("round_seconds", "a round\ns", 2),
            lambda act: act.result.train_seconds / max(1, len(act.result.rounds)),
        ),
        (
            Column("moves", "moves", 0),
            lambda act: act.result.stragglers.moves if act.result.stragglers else 0,
        ),
        SLOW_TASKS,
        ACCURACY,
    ),
    notice=_stragglers_notice,
    figure=lambda acted: timelines_figure({act.act.title: act.result.spans for act in acted}),
)


_EARLY = 2
"""The epoch after which the table compares; later, both may be good."""


def _splits_act(split: str, title: str) -> Act:
    fields = {"name": f"demo-splits-{split}", "split": split, "shards": 5, "epochs": 15}
    return Act(title=title, fields=fields, workers=2)


def _classes(act: Acted) -> str:
    """Say how many classes a shard has: "10", or "2 to 3"."""
    [cut] = cuts_of(act.spec, [], act.result.shards, act.shared)
    fewest, most = cut.classes_held.min(), cut.classes_held.max()
    return f"{fewest}" if fewest == most else f"{fewest} to {most}"


def _early_accuracy(act: Acted) -> float | None:
    return next((percent(e.accuracy) for e in act.result.epochs if e.epoch == _EARLY), None)


def _splits_notice(acted: Sequence[Acted]) -> str:
    random, by_class = ((percent(act.result.accuracy) or 0.0) for act in acted)
    return (
        f"With all classes in each shard, the model reaches {random:.1f} %; with few classes in "
        f"each, {by_class:.1f} %. Averaging models that know different classes loses accuracy."
        if random > by_class
        else f"Both splits end near each other here: {random:.1f} % and {by_class:.1f} %."
    )


def _splits_figure(acted: Sequence[Acted]) -> Figure:
    lines = {
        act.act.title: [(each.epoch, 100 * (each.accuracy or 0.0)) for each in act.result.epochs]
        for act in acted
    }
    return lines_figure(lines, "epoch")


SPLITS = Demo(
    about="shards with all classes, or with a few classes each: the effect on averaging",
    acts=(_splits_act("random", "random split"), _splits_act("class", "class split")),
    title="Two ways to cut the same data into shards",
    columns=(
        (Column("split", "split"), lambda act: act.spec.split),
        (Column("classes", "classes\nper shard"), _classes),
        (Column("early", f"accuracy after\nepoch {_EARLY}, %", 1), _early_accuracy),
        (Column("final", "at the\nend, %", 1), lambda act: percent(act.result.accuracy)),
    ),
    notice=_splits_notice,
    figure=_splits_figure,
)


_DIGITS_SHOWN = 12


def _crash_act(title: str, kill: Sequence[str] = ()) -> Act:
    fields = {"name": "demo-crash", "shards": 2, "epochs": 8, "batch_size": 1}
    fields |= {"learning_rate": 0.002}
    return Act(title=title, fields=fields, workers=2, kill=kill)


def _crash_notice(acted: Sequence[Acted]) -> str:
    calm, killed = acted
    later = killed.wall_seconds - calm.wall_seconds
    cost = f"cost {later:.1f} s" if later > 0 else "cost no visible time"
    if calm.model == killed.model:
        return f"The crash {cost}, and both models are the same, byte for byte."
    return f"The crash {cost}, but the models differ. That is a bug: please report it."


def _crash_figure(acted: Sequence[Acted]) -> Figure:
    spans = {act.act.title: act.result.spans for act in acted}
    disturbed = {act.act.title: act.result.disturbed_seconds for act in acted}
    return timelines_figure(spans, disturbed=disturbed)


CRASH = Demo(
    about="kill a manager in the third round, and another one continues: the same bytes",
    acts=(_crash_act("undisturbed"), _crash_act("manager killed", ["manager@round3"])),
    title="A manager killed and resumed",
    columns=(
        (Column("run", "run"), lambda act: act.act.title),
        (Column("kills", "kills", 0), lambda act: len(act.moments(DisturbedLine))),
        (Column("wall_seconds", "start to\nend, s", 1), lambda act: act.wall_seconds),
        (
            Column("again", "shards\ntrained again", 0),
            lambda act: sum(not failure.blameless for failure in act.result.failures),
        ),
        ACCURACY,
        (
            Column("sha256", "SHA-256\nof the model"),
            lambda act: hashlib.sha256(act.model).hexdigest()[:_DIGITS_SHOWN],
        ),
    ),
    notice=_crash_notice,
    figure=_crash_figure,
)


def _asynchrony_act(mode: str, title: str) -> Act:
    fields = {"name": f"demo-asynchrony-{mode}", "mode": mode, "policy": "wait", **SMALL_STEPS}
    return Act(title=title, fields=fields, workers=2, slow=SLOW)


def _stalest(act: Acted) -> int:
    """Return the largest staleness of a run's updates, in versions."""
    made = (line.staleness for _, line in act.moments(AggregatedLine))
    return max((max(staleness, default=0) for staleness in made), default=0)


def _asynchrony_notice(acted: Sequence[Acted]) -> str:
    barrier, free = acted
    longer = times(barrier.result.train_seconds, free.result.train_seconds)
    return (
        f"With a barrier the same passes over the data took {longer} as long; without "
        f"one, updates came from models up to {_stalest(free)} versions old, and the "
        "bytes differ each time."
    )


def _asynchrony_figure(acted: Sequence[Acted]) -> Figure:
    lines = {
        act.act.title: [(at, 100 * line.metrics["accuracy"]) for at, line in measured]
        for act in acted
        if (measured := act.moments(EvaluatedLine))
    }
    return lines_figure(lines, "seconds since the first assignment")


ASYNCHRONY = Demo(
    about="a barrier after each round, or Downpour SGD without one, with a slow worker",
    acts=(
        _asynchrony_act("sync", "sync: a barrier"),
        _asynchrony_act("downpour", "downpour: no barrier"),
    ),
    title="A barrier, or none, with one slow worker of two",
    columns=(
        (Column("mode", "mode"), lambda act: act.spec.mode),
        TRAINING,
        (Column("versions", "model\nversions", 0), lambda act: len(act.moments(AggregatedLine))),
        (Column("stalest", "most stale\nupdate", 0), _stalest),
        SLOW_TASKS,
        ACCURACY,
    ),
    notice=_asynchrony_notice,
    figure=_asynchrony_figure,
)


DEMOS = {"stragglers": STRAGGLERS, "splits": SPLITS, "crash": CRASH, "asynchrony": ASYNCHRONY}
