"""A demo: two acts, each a run that a command line can repeat, and the lesson of both."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from downpour.cluster.disturbing.disturbances import Disturbances
from downpour.core.spec import Spec
from downpour.experiments.reading import Result
from downpour.experiments.reading.study_result import RunResult
from downpour.experiments.tables.table import Table
from downpour.files.records.attempt_lines import AssignedLine
from downpour.files.records.view import Dated

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
        """Refuse changes with which the act cannot run.

        Raises:
            SpecError: a field is invalid, or a kill is in none of the act's rounds.
        """
        rounds = self.spec(changes).meetings.rounds
        self.disturbances.check(self.workers, rounds, is_local=True)

    def words(self, changes: Mapping[str, Any]) -> list[str]:
        """Return the words of the command line that repeats the act with these changes."""
        options = {**self.fields, **changes, "workers": self.workers}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        words += [f"--slow={name}={speed:g}" for name, speed in self.slow.items()]
        words += [f"--kill={one}" for one in self.kill]
        return ["downpour", "run", *words]

    def command(self, changes: Mapping[str, Any]) -> str:
        """Return the same command line as one text, as people type it."""
        return shlex.join(self.words(changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """A finished act: its spec, its run, its record and the shared directory.

    `wall_seconds` run from its start to its end. Unlike the record's clock, they do not stand still
    while no manager runs.
    """

    act: Act
    spec: Spec
    run: RunResult
    record: Sequence[Dated]
    shared: Path
    wall_seconds: float

    @property
    def result(self) -> Result:
        """The result of its run."""
        return self.run.result

    def moments(self, kind: type[Line]) -> list[tuple[float, Line]]:
        """Return the record's lines of a kind, each with its seconds since the first assignment."""
        begun = next((at for at, line in self.record if isinstance(line, AssignedLine)), 0.0)
        return [(at - begun, line) for at, line in self.record if isinstance(line, kind)]

    @property
    def model(self) -> bytes:
        """The bytes of the final model's file."""
        file = self.result.model_file
        return b"" if file is None else file.read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A lesson.

    Args:
        about: what it shows, in one line.
        acts: its runs, in order.
        table: what happened, one row per act.
        notice: one sentence on what to notice, from the measurements.
        figure: draws both acts; needs matplotlib.
    """

    about: str
    acts: Sequence[Act]
    table: Callable[[Sequence[Acted]], Table]
    notice: Callable[[Sequence[Acted]], str]
    figure: Callable[[Sequence[Acted]], Figure]


def percent(share: float | None) -> float | None:
    """Return a share in percent, as tables show it."""
    return None if share is None else 100 * share


def times(one: float, other: float) -> str:
    """Say how many times as long one duration is as another: "2.4 times"."""
    return f"{one / other:.1f} times" if other > 0 else "many times"
