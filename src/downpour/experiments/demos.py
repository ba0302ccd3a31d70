"""The demos: two runs side by side, and what to notice.

A demo has acts, each a run that a command line can repeat, and the lesson of both. It downloads
nothing. The data are scikit-learn's digits, or random clouds of points if scikit-learn is not
installed. A file next to the results stores the clouds, so that a command line can use them again.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from downpour.base.errors import SpecError, is_installed
from downpour.cluster.disturbances import Disturbances
from downpour.core.spec import Spec
from downpour.experiments.client import OnStatus
from downpour.experiments.following import Watching
from downpour.experiments.surroundings import Surroundings, cuts_of
from downpour.experiments.training import train
from downpour.files.store.layout import RECORD_NAME
from downpour.record import Result
from downpour.record.record import read_record
from downpour.record.record_lines import (
    AggregatedLine,
    AssignedLine,
    Dated,
    DisturbedLine,
    EvaluatedLine,
)
from downpour.show.figures.style import WIDTH_INCHES, keep_per_cent, new_figure, series, styled
from downpour.show.figures.timeline_figure import timelines_figure
from downpour.show.tables.report_tables import Cell, Column, Table, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Line = TypeVar("Line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A run of a demo: its title, its spec's fields, and further arguments of `downpour run`."""

    title: str
    fields: Mapping[str, Any]
    workers: int = 2
    slow: Mapping[str, float] = field(default_factory=dict)
    kill: Sequence[str] = ()

    def spec(self, changes: Mapping[str, Any]) -> Spec:
        """Return the act's spec, with some fields changed."""
        return Spec.make({**self.fields, **changes})

    @property
    def disturbances(self) -> Disturbances:
        """Which workers are slow, and which processes die when."""
        return Disturbances.of(self.slow, self.kill)

    def check(self, changes: Mapping[str, Any]) -> None:
        """Refuse changes with which the act cannot run."""
        rounds = self.spec(changes).meetings.rounds
        self.disturbances.check(self.workers, rounds, is_local=True)

    def command(self, changes: Mapping[str, Any]) -> str:
        """Return the command line that repeats the act with these changes, as people type it."""
        options = {**self.fields, **changes, "workers": self.workers}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        words += [f"--slow={name}={speed:g}" for name, speed in self.slow.items()]
        words += [f"--kill={process}" for process in self.kill]
        return shlex.join(["downpour", "run", *words])


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """A finished act: its spec, its result, its record and the shared directory.

    `wall_seconds` run from its start to its end. Unlike the record's clock, they do not stand still
    while no manager runs.
    """

    act: Act
    spec: Spec
    result: Result
    record: Sequence[Dated]
    shared: Path
    wall_seconds: float

    def moments(self, kind: type[Line]) -> list[tuple[float, Line]]:
        """Return the record's lines of a kind, each with its seconds since the first assignment."""
        begun = next((at for at, line in self.record if isinstance(line, AssignedLine)), 0.0)
        return [(at - begun, line) for at, line in self.record if isinstance(line, kind)]

    @property
    def model(self) -> bytes:
        """The bytes of the final model's file."""
        file = self.result.model_file
        return b"" if file is None else file.read_bytes()


Cells = Callable[[Acted], Cell]
"""Returns an act's cell in a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A lesson."""

    about: str
    """The lesson, in one line."""
    acts: Sequence[Act]
    title: str
    """The title of its table, which has a row for each act."""
    columns: Sequence[tuple[Column, Cells]]
    notice: Callable[[Sequence[Acted]], str]
    """One sentence on what to notice, from the measurements."""
    figure: Callable[[Sequence[Acted]], Figure]
    """Draws all acts; needs matplotlib."""

    def table(self, acted: Sequence[Acted]) -> Table:
        """Return what happened, one row per act."""
        rows = tuple(tuple(cell(act) for _, cell in self.columns) for act in acted)
        return Table("demo", self.title, tuple(column for column, _ in self.columns), rows)


def times(seconds: float, other: float) -> str:
    """Say how many times as long one duration is as another: "2.4 times"."""
    return f"{seconds / other:.1f} times" if other > 0 else "many times"


def _lines_figure(lines: Mapping[str, Sequence[tuple[float, float]]], along: str) -> Figure:
    """Draw accuracy in percent by epochs or seconds, a line of points for each title."""
    with styled():
        figure = new_figure(WIDTH_INCHES, 3.0)
        axis = figure.subplots()
        for place, (title, points) in enumerate(lines.items()):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axis.plot(xs, ys, label=title, clip_on=False, **series(place))
        axis.set_xlabel(along)
        axis.set_ylabel("test accuracy, %")
        axis.set_xlim(left=0)
        keep_per_cent(axis)
        figure.legend(loc="outside lower center", ncols=len(lines))
    return figure


CLOUDS_NAME = "clouds.npz"
_CLASSES = 10
_SIDE = 8
_TRAIN, _TEST = 1440, 360
_NOISE = 60.0


def play(act: Act, changes: Mapping[str, Any], shared: Path, on_status: OnStatus) -> Acted:
    """Train an act to its end; `changes` replace fields of its spec."""
    spec = act.spec(changes)
    place = Surroundings(shared, disturbances=act.disturbances)
    began = time.monotonic()
    result = train(spec, act.workers, place, Watching(on_status=on_status, progress=False))
    wall_seconds = time.monotonic() - began
    return Acted(
        act=act,
        spec=spec,
        result=result,
        record=read_record(shared / "experiments" / result.experiment / RECORD_NAME),
        shared=shared,
        wall_seconds=wall_seconds,
    )


def data_in(folder: Path) -> dict[str, Any]:
    """Return the spec fields that name a demo's data; write the data to a folder if needed."""
    if is_installed("sklearn"):
        return {}
    path = folder / CLOUDS_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, **clouds())
    except OSError as error:
        raise SpecError("to", str(folder), f"cannot be written ({error.strerror})") from None
    return {"dataset": "npz", "data_path": str(path), "model": "mlp"}


def clouds() -> dict[str, Any]:
    """Return images of 8 x 8 pixels in 10 classes: a random center per class, plus noise.

    Returns:
        Training images `x`, uint8 of shape (1440, 8, 8), with labels `y`. Test images `x_test` of
        shape (360, 8, 8), with labels `y_test`.
    """
    random = np.random.default_rng(0)
    centers = random.uniform(64, 192, (_CLASSES, _SIDE, _SIDE))

    def drawn(count: int) -> tuple[Any, Any]:
        labels = np.arange(count) % _CLASSES
        noisy = centers[labels] + random.normal(0, _NOISE, (count, _SIDE, _SIDE))
        return np.clip(noisy, 0, 255).astype(np.uint8), labels.astype(np.int64)

    x, y = drawn(_TRAIN)
    x_test, y_test = drawn(_TEST)
    return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}


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


def _slowed_act(title: str, name: str, **fields: str | int) -> Act:
    return Act(title=title, fields={"name": name, **fields, **SMALL_STEPS}, slow=SLOW)


def _stragglers_notice(acted: Sequence[Acted]) -> str:
    wait, handoff = acted
    longer = times(wait.result.train_seconds, handoff.result.train_seconds)
    models = "the same bytes" if wait.model == handoff.model else "different bytes"
    return f"Waiting took {longer} as long as handing over work; both models have {models}."


STRAGGLERS = Demo(
    about="one worker at a quarter of its speed: wait for it, or hand its work over",
    acts=(
        _slowed_act("wait for the slow worker", "demo-stragglers-wait", policy="wait"),
        _slowed_act("hand its work over", "demo-stragglers-handoff", policy="handoff"),
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
    return Act(title=title, fields=fields)


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
    return _lines_figure(lines, "epoch")


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
    return Act(title=title, fields={"name": "demo-crash", **SMALL_STEPS, "epochs": 8}, kill=kill)


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
    return _lines_figure(lines, "seconds since the first assignment")


ASYNCHRONY = Demo(
    about="a barrier after each round, or Downpour SGD without one, with a slow worker",
    acts=(
        _slowed_act("sync: a barrier", "demo-asynchrony-sync", mode="sync", policy="wait", meet=1),
        _slowed_act(
            "downpour: no barrier", "demo-asynchrony-downpour", mode="downpour", policy="wait"
        ),
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
