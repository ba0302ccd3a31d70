"""A demo: acts, each a run that a command line can repeat, and the lesson of both.

It downloads nothing. The data are scikit-learn's digits, or random clouds of points if scikit-learn
is not installed. A file next to the results stores the clouds, so that a command line can use them
again.
"""

from __future__ import annotations

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
from downpour.experiments.running.surroundings import Surroundings
from downpour.experiments.running.training import train
from downpour.experiments.running.watching import Watching
from downpour.files.store.layout import RECORD_NAME
from downpour.record import Result
from downpour.record.record import read_record
from downpour.record.record_lines import AssignedLine, Dated
from downpour.show.figures.style import WIDTH_INCHES, keep_per_cent, new_figure, series, styled
from downpour.show.tables.table import Cell, Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Line = TypeVar("Line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A run of a demo: its title, its spec's fields, and further arguments of `downpour run`."""

    title: str
    fields: Mapping[str, Any]
    workers: int
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


def lines_figure(lines: Mapping[str, Sequence[tuple[float, float]]], along: str) -> Figure:
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
