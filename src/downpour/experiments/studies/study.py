"""A study, the runs that one file describes, and a run, which is one experiment.

The folder, the backends and the runner know grids and searches as `StudySpec` and `StudyPlan`. Runs
that differ only in their seed are a group; each run of a group is a repetition of its settings.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter

from downpour.base.errors import FileCorrupt, SpecError, spoken
from downpour.base.states import LOSS, ExperimentState
from downpour.core.resolve import SAID_BY_TASK, decided_in, resolve
from downpour.core.spec import ResolvedSpec, Spec, toml_fields
from downpour.files.spec_file import read_toml
from downpour.learning.auto import trainer_of
from downpour.record import Result
from downpour.record.result_parts import RoundResult, in_words
from downpour.record.study_result import SearchRun

WORKERS_MAX = 100_000
OPTIONS = (
    "task_options",
    "dataset_options",
    "model_options",
    "policy_options",
    "outer",
    "inside",
    "shard_needs",
)
"""The fields whose values are tables."""

Value = Any
"""The value of a field in a file: anything that TOML can express."""


def check_name(field: str, value: Value, others: Sequence[str]) -> None:
    """Refuse a name that is neither a spec's field nor in `others`; suggest the nearest one."""
    if field in others or field in Spec.model_fields:
        return
    nearest = difflib.get_close_matches(field, [*others, *Spec.model_fields], n=1)
    if nearest and nearest[0] in others:
        raise SpecError(field, value, f"no such field; did you mean {nearest[0]}?")
    Spec.make({field: value})  # refuses it with the spec's own suggestion


def name_in(fields: dict[str, Value]) -> str:
    """Take the name of a study from the fields of its file."""
    if "name" not in fields:
        raise SpecError("name", None, 'must be given, as in name = "first"')
    return Spec.make({"name": fields.pop("name")}).name


def whole_number(field: str, value: Value, most: int, *, least: int = 1) -> int:
    """Return a value that is a whole number within limits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(field, value, f"must be a whole number from {least} to {most}")
    return value


def resolved_defaults(*, has_task: bool) -> dict[str, Value]:
    """Return the spec's defaults as a file has them, without the name and empty values.

    A study's own file holds them, so that a new version's defaults don't change a study in
    progress. But a task may say some fields itself, so those stay open; seeds are the study's.
    """
    said = {*SAID_BY_TASK} - {"seed"} if has_task else set[str]()
    fields = Spec().model_dump(mode="json", exclude={"name", *said})
    return {field: value for field, value in fields.items() if value not in (None, {}, [])}


def about(seconds: float | None) -> str:
    """Format an estimate: "about 12 min", or "unknown time" for None."""
    return "unknown time" if seconds is None else f"about {spoken(seconds)}"


@dataclass(frozen=True)
class Run:
    """One experiment of a study.

    Before its end, its `spec` needs the code of a user's task. All else follows from `asked`, so
    that reading results needs no such code.
    """

    asked: Spec
    workers: int | None
    """None if the backend decides."""
    number: int | None = None
    """From 1 in a search; a grid identifies its runs by their spec."""
    setting: str = field(default="", compare=False)
    """Its place in a grid: "split class, aggregate first"."""
    trained: ResolvedSpec | None = field(default=None, compare=False)
    """The spec that it was trained with; None before it has ended."""

    @classmethod
    def of(cls, fields: Mapping[str, Value], workers: int | None, number: int | None = None) -> Run:
        """Make the run of a spec's fields; by default, each worker has a shard."""
        if workers is None and fields.get("shards") is None:
            raise SpecError("workers", workers, "is required, unless shards is given")
        spec = Spec.make({"shards": workers, **fields})
        resolve(spec, workers)  # refuses values that are wrong with any optimizer of a task
        return cls(spec, workers, number)

    @cached_property
    def spec(self) -> ResolvedSpec:
        """The resolved spec."""
        trainer = trainer_of(self.asked, self.workers) if self.trained is None else None
        return self.trained or resolve(self.asked, self.workers, trainer=trainer)

    def trained_with(self, spec: ResolvedSpec) -> Run | None:
        """Return this run after its end; None if another run was trained with this spec."""
        asked = self.asked.replace(**decided_in(self.asked, spec))
        return replace(self, trained=spec) if resolve(asked, self.workers) == spec else None

    @cached_property
    def id(self) -> str:
        """The identifier of the run: readable, a safe folder name, different for every other run.

        It follows from spec and workers alone. So subgrids may share a run, and a growing grid
        keeps its runs. We leave out the name, because it changes nothing in the training.
        """
        spec = self.spec if self.asked.task is None else self.asked
        fields = spec.model_dump(exclude_defaults=True, exclude={"name"})
        content = json.dumps({**fields, "workers": self.workers}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        size = f"n{spec.shards}" if self.workers is None else f"w{self.workers}"
        readable = f"{size}-{spec.split}-{spec.aggregate}-s{spec.seed}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{readable}-{digest}")

    @property
    def name(self) -> str:
        """The name of the folder of its results."""
        return self.id if self.number is None else f"{self.number:04d}"

    @property
    def title(self) -> str:
        """The run's name on a progress bar."""
        if self.number is not None:
            return f"run {self.number}"
        return ", ".join(filter(None, (self.setting, f"seed {self.asked.seed}")))

    @cached_property
    def group(self) -> str:
        """The key of the run's group: equal for runs that differ only in their seed."""
        return self.asked.replace(seed=0).to_toml() + str(self.workers)


Measured = Mapping[str, float | None]
"""Measurements after an epoch, by name, with the loss on the test examples as "loss"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The outcome of a run."""

    experiment: str
    state: ExperimentState
    reason: str | None
    asked_wrongly: bool = False
    """Whether the run failed because of its spec."""
    failure: str | None = None
    """The kind of the failed attempt that ended the run; None if the run ended otherwise."""
    workers: int | None
    seed: int
    epochs: tuple[Measured, ...]
    """The measurements after each epoch; empty if there were none."""
    train_seconds: float
    aggregate_seconds: float
    evaluate_seconds: float
    total_seconds: float
    wall_seconds: float
    """With the start and the end of the processes; if Downpour found the run again at a manager,
    from that moment on."""
    checksum: str | None = None
    """Covers the record and the spec beside the summary; None before they are written."""

    @property
    def is_finished(self) -> bool:
        """Whether the run has a model; other runs do not count."""
        return self.state == "finished"

    @property
    def last(self) -> Measured:
        """The last measurements."""
        return next((epoch for epoch in reversed(self.epochs) if epoch), {})

    @property
    def in_words(self) -> str:
        """The first metric, or the loss, at the end: "accuracy 91.82%"."""
        metrics = {name: value for name, value in self.last.items() if name != LOSS}
        return in_words(metrics, self.last.get(LOSS))

    @classmethod
    def of(cls, result: Result, workers: int | None, wall_seconds: float) -> RunSummary:
        """Make the summary of a result."""
        last = result.failures[-1] if result.failures else None
        names_it = last is not None and (result.reason or "").endswith(last.reason)
        return cls(
            experiment=result.experiment,
            state=result.state,
            reason=result.reason,
            asked_wrongly=result.asked_wrongly,
            failure=last.failure if last and names_it and result.state == "failed" else None,
            workers=workers,
            seed=int(result.spec["seed"]),
            epochs=tuple(_measured(epoch) for epoch in result.epochs),
            train_seconds=result.train_seconds,
            aggregate_seconds=result.aggregate_seconds,
            evaluate_seconds=result.evaluate_seconds,
            total_seconds=result.total_seconds,
            wall_seconds=wall_seconds,
        )

    @classmethod
    def from_json(cls, text: str | bytes, source: str) -> RunSummary:
        """Read what `to_json` wrote."""
        try:
            return _READER.validate_python(json.loads(text))
        except (ValueError, TypeError, AttributeError):
            raise FileCorrupt(source, "not the summary of a run") from None

    def to_json(self) -> str:
        """Write the summary as indented JSON."""
        # Without `allow_nan=False`, other readers could get NaN, which is invalid JSON.
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False) + "\n"


_READER = TypeAdapter(RunSummary)


def _measured(epoch: RoundResult) -> Measured:
    loss = {} if epoch.test_loss is None and not epoch.metrics else {LOSS: epoch.test_loss}
    return {**epoch.metrics, **loss}


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended, and its outcome."""

    run: Run
    summary: RunSummary


class StudySpec(ABC):
    """A grid or a search; methods that read a file raise SpecError."""

    kind: ClassVar[str]
    """The word for such a study in messages: "grid" or "search"."""
    file_name: ClassVar[str]
    """The name of the study's own file in its folder."""
    runs_folder: ClassVar[str]
    """The name of the folder of its runs in the study's folder."""
    shares_workers: ClassVar[bool]
    """Whether the same manager and workers train all runs."""

    name: str
    """The study's name, and that of its experiments."""

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a study; all runs that it may make are valid."""
        return cls.make(toml_fields(text))

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a study from a user's file."""
        return cls.make(read_toml(path))

    @classmethod
    @abstractmethod
    def make(cls, fields: Mapping[str, Value]) -> Self:
        """Make a study from the fields of a file; all runs that it may make are valid."""

    @abstractmethod
    def to_toml(self) -> str:
        """Write the study with every field resolved; `from_toml` reads back an equal study."""

    @abstractmethod
    def samples(self) -> Iterator[Run]:
        """Yield runs that together need every dataset and number of workers of the study."""

    @abstractmethod
    def has_run(self, name: str) -> bool:
        """Whether a run of this study may have a folder of this name."""

    @abstractmethod
    def run_of(self, name: str, spec: ResolvedSpec) -> Run | None:
        """Return the run of this name; None if that run has another spec."""

    @abstractmethod
    def keeps_runs_of(self, former: Self) -> bool:
        """Whether runs made for an earlier version of the file may count for this one."""

    @abstractmethod
    def plan(self, ended: Iterable[EndedRun]) -> StudyPlan:
        """Return the plan of the study's other runs; `ended` are the runs that ended before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyProgress:
    """How far a study is."""

    total: int
    left: int
    """How many of the runs must still be made, or repeated."""
    is_successful: bool
    """Whether no run is left, and the study has its result."""
    seconds_left: float | None
    """An estimate; None before a run has ended."""
    headline: str
    """Stands next to the bar."""
    text: str
    """A sentence for people."""
    fields: dict[str, Any]
    """JSON values for programs."""
    running: str | None = None
    """The process that runs the study now, in words, if any."""

    @property
    def count(self) -> str:
        """The number of finished runs, and of all runs: "3/12"."""
        return f"{self.total - self.left}/{self.total}"

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return {**self.fields, "running": self.running, "seconds_left": self.seconds_left}

    def __str__(self) -> str:
        if not self.left:
            return self.text
        runs_it = f"{self.running} runs it" if self.running else "no process runs it now"
        return f"{self.text}, {about(self.seconds_left)} left, {runs_it}"


OnEpoch = Callable[[int, Measured], bool]
"""Called with an epoch, from 1, and its measurements; returns whether to end the run.

Raises SpecError if the study compares runs by a measure that the run does not have.
"""


class StudyPlan(ABC):
    """Chooses the runs of a study one after the other."""

    @property
    def best(self) -> Run | None:
        """The best run so far; None if the study does not look for one or has none yet."""
        return None

    on_epoch: OnEpoch | None = None
    """Takes the measurements of the current run; None if the plan ends no run early."""

    @property
    @abstractmethod
    def progress(self) -> StudyProgress:
        """How far the study is now."""

    @abstractmethod
    def next(self) -> Run | None:
        """Return the next run; None if no run is left."""

    def judge(self, summary: RunSummary) -> RunSummary:
        """Return the outcome of the current run as the study counts it."""
        return summary

    @abstractmethod
    def learn(self, ended: EndedRun) -> None:
        """Take in the run that `next` returned, after its end."""

    @abstractmethod
    def line(self, ended: EndedRun) -> str:
        """Return a line for people about a run that has just ended."""


def outcome(ended: RunSummary | SearchRun, measured: str) -> str:
    """Say how a run ended, what it measured, and how long it took."""
    reason = f": {ended.reason}" if ended.reason else ""
    parts = [str(ended.state), *([measured] if measured else [])]
    return f"{' '.join(parts)}{reason} in {spoken(ended.wall_seconds)}"


def seconds_left(ended: Iterable[tuple[str, float]], missing: Sequence[str]) -> float | None:
    """Estimate the seconds of the missing runs: their groups' means, else the usual run's.

    `ended` has the group of each ended run with its seconds, `missing` the groups of the others.
    """
    by_group: defaultdict[str, list[float]] = defaultdict(list)
    for group, seconds in ended:
        by_group[group].append(seconds)
    means = {group: fmean(seconds) for group, seconds in by_group.items()}
    if missing and not means:
        return None
    # We average the groups' means, so that a group with many repetitions counts no more than
    # others.
    usual = fmean(means.values()) if means else 0.0
    return sum((means.get(group, usual) for group in missing), start=0.0)
