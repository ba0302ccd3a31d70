"""The demos: two runs side by side, and what to notice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from downpour.experiments.demos.demo import Act, Acted, Demo, lines_figure, percent, times
from downpour.experiments.running.cutting import cuts_of
from downpour.record.record_lines import AggregatedLine, DisturbedLine, EvaluatedLine
from downpour.show.figures.timeline_figure import timelines_figure
from downpour.show.tables.table import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SLOW = {"worker-2": 0.25}
SMALL_STEPS = {"shards": 2, "epochs": 6, "batch_size": 1, "learning_rate": 0.002}
"""Steps of one example each, so that a shard of the digits takes about a second and can change
hands. We use two workers, because a laptop with two cores has a core for each."""


def _stragglers_act(policy: str, title: str) -> Act:
    name = f"demo-stragglers-{policy}"
    fields = {"name": name, "policy": policy, **SMALL_STEPS}
    return Act(title=title, fields=fields, workers=2, slow=SLOW)


def _stragglers_table(acted: Sequence[Acted]) -> Table:
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


def _stragglers_notice(acted: Sequence[Acted]) -> str:
    wait, handoff = acted
    longer = times(wait.result.train_seconds, handoff.result.train_seconds)
    models = "the same bytes" if wait.model == handoff.model else "different bytes"
    return f"Waiting took {longer} as long as handing over work; both models have {models}."


def _stragglers_figure(acted: Sequence[Acted]) -> Figure:
    return timelines_figure({one.act.title: one.run.attempt_spans for one in acted})


STRAGGLERS = Demo(
    about="one worker at a quarter of its speed: wait for it, or hand its work over",
    acts=(
        _stragglers_act("wait", "wait for the slow worker"),
        _stragglers_act("handoff", "hand its work over"),
    ),
    table=_stragglers_table,
    notice=_stragglers_notice,
    figure=_stragglers_figure,
)


_EARLY = 2
"""The epoch after which the table compares; later, both may be good."""


def _splits_act(split: str, title: str) -> Act:
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


def _splits_table(acted: Sequence[Acted]) -> Table:
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


def _splits_notice(acted: Sequence[Acted]) -> str:
    random, by_class = ((percent(one.result.accuracy) or 0.0) for one in acted)
    return (
        f"With all classes in each shard, the model reaches {random:.1f} %; with few classes in "
        f"each, {by_class:.1f} %. Averaging models that know different classes loses accuracy."
        if random > by_class
        else f"Both splits end near each other here: {random:.1f} % and {by_class:.1f} %."
    )


def _splits_figure(acted: Sequence[Acted]) -> Figure:
    lines = {
        one.act.title: [(each.epoch, 100 * (each.accuracy or 0.0)) for each in one.result.epochs]
        for one in acted
    }
    return lines_figure(lines, "epoch")


SPLITS = Demo(
    about="shards with all classes, or with a few classes each: the effect on averaging",
    acts=(
        _splits_act("random", "random split"),
        _splits_act("class", "class split"),
    ),
    table=_splits_table,
    notice=_splits_notice,
    figure=_splits_figure,
)


_DIGITS_SHOWN = 12


def _crash_act(title: str, kill: Sequence[str] = ()) -> Act:
    fields = {"name": "demo-crash", "shards": 2, "epochs": 8, "batch_size": 1}
    fields |= {"learning_rate": 0.002}
    return Act(title=title, fields=fields, workers=2, kill=kill)


def _crash_table(acted: Sequence[Acted]) -> Table:
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


def _crash_notice(acted: Sequence[Acted]) -> str:
    calm, killed = acted
    later = killed.wall_seconds - calm.wall_seconds
    cost = f"cost {later:.1f} s" if later > 0 else "cost no visible time"
    if calm.model == killed.model:
        return f"The crash {cost}, and both models are the same, byte for byte."
    return f"The crash {cost}, but the models differ. That is a bug: please report it."


def _crash_figure(acted: Sequence[Acted]) -> Figure:
    spans = {one.act.title: one.run.attempt_spans for one in acted}
    disturbed = {one.act.title: one.run.disturbed_seconds for one in acted}
    return timelines_figure(spans, disturbed=disturbed)


CRASH = Demo(
    about="kill a manager in the third round, and another one continues: the same bytes",
    acts=(_crash_act("undisturbed"), _crash_act("manager killed", ["manager@round3"])),
    table=_crash_table,
    notice=_crash_notice,
    figure=_crash_figure,
)


def _asynchrony_act(mode: str, title: str) -> Act:
    fields = {"name": f"demo-asynchrony-{mode}", "mode": mode, "policy": "wait", **SMALL_STEPS}
    return Act(title=title, fields=fields, workers=2, slow=SLOW)


def _versions(one: Acted) -> list[AggregatedLine]:
    return [line for _, line in one.moments(AggregatedLine)]


def _stalest(one: Acted) -> int:
    """Return the largest staleness of a run's updates, in versions."""
    return max((max(line.staleness, default=0) for line in _versions(one)), default=0)


def _asynchrony_table(acted: Sequence[Acted]) -> Table:
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
        one.act.title: [(at, 100 * line.metrics["accuracy"]) for at, line in measured]
        for one in acted
        if (measured := one.moments(EvaluatedLine))
    }
    return lines_figure(lines, "seconds since the first assignment")


ASYNCHRONY = Demo(
    about="a barrier after each round, or Downpour SGD without one, with a slow worker",
    acts=(
        _asynchrony_act("sync", "sync: a barrier"),
        _asynchrony_act("downpour", "downpour: no barrier"),
    ),
    table=_asynchrony_table,
    notice=_asynchrony_notice,
    figure=_asynchrony_figure,
)


DEMOS: dict[str, Demo] = {
    "stragglers": STRAGGLERS,
    "splits": SPLITS,
    "crash": CRASH,
    "asynchrony": ASYNCHRONY,
}
