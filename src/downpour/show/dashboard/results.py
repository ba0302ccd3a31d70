"""Versions, workers, and the history of a task."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any, Literal

from downpour.base.errors import size_in_words
from downpour.base.states import BLAMELESS, LOSS
from downpour.record import record_lines as told
from downpour.record.result_parts import Measure, number
from downpour.record.timeline import decision
from downpour.show.dashboard.columns import Row, RowTable


class Results:
    """Folds versions and evaluations.

    `bytes_read` and `bytes_written` follow from the record: each attempt reads the model version
    that is newest when it begins, and the manager reads each update that counts.
    """

    def __init__(self) -> None:
        self.versions: RowTable[int] = RowTable()
        self.evaluations: RowTable[tuple[int, str]] = RowTable()
        self.bytes_read = 0
        self.bytes_written = 0
        self.bytes_for_versions = 0
        self.has_parts = False
        self.metrics: dict[str, None] = {LOSS: None}
        self.last: told.EvaluatedLine | None = None
        self._model_bytes = 0

    def prepared(self, size_bytes: int) -> None:
        """Note the initial model."""
        self._model_bytes = size_bytes
        self.bytes_written += size_bytes

    def began(self) -> None:
        """Note that an attempt has begun."""
        self.bytes_read += self._model_bytes

    def updated(self, size_bytes: int) -> None:
        """Note an update that counts."""
        self.bytes_written += size_bytes
        self.bytes_read += size_bytes
        self.bytes_for_versions += size_bytes

    def aggregated(self, at: float, made: told.AggregatedLine, line: int) -> None:
        """Note a version."""
        self._model_bytes = made.bytes
        self.bytes_written += made.bytes
        self.bytes_for_versions += made.bytes
        self.has_parts = self.has_parts or bool(made.parts)
        stale = made.staleness or ((0,) if not made.parts else ())
        staleness = (min(stale), median(stale), max(stale)) if stale else None
        row = made.version, at, made.round + 1, finite(made.loss), staleness
        self.versions.put(made.version, row, line)

    def evaluated(self, at: float, measured: told.EvaluatedLine, line: int) -> None:
        """Note how good the model is after a round."""
        self.last = measured
        self.metrics |= dict.fromkeys(measured.metrics)
        row = (
            measured.round + 1,
            measured.part,
            at,
            finite(measured.loss),
            {name: finite(value) for name, value in measured.metrics.items()},
            [finite(value) for value in measured.class_accuracy],
            self.bytes_for_versions,
        )
        self.evaluations.put((measured.round, measured.part), row, line)

    def measures(self) -> list[Mapping[str, Any]]:
        """Return the model's measures: the metrics in their order, then the loss."""
        names = [*(name for name in self.metrics if name != LOSS), LOSS]
        return [
            {"name": name, "words": Measure(name).words, "percent": Measure(name).is_share}
            for name in names
            if name.isprintable() and name.strip() == name != ""
        ]


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it, with as many digits as people may want."""
    return round(value, 6) if math.isfinite(value) else None


@dataclass(slots=True)
class WorkerRow:
    """A worker; times are seconds since the experiment's submission, `changed` is a line."""

    number: int
    name: str
    changed: int = 0
    state: Literal["training", "idle", "lost", "left"] = "idle"
    joined: float | None = None
    left: float | None = None
    numeric_class: str = ""
    address: str = ""
    tasks_done: int = 0
    samples_per_second: float | None = None
    cpu_share: float | None = None
    memory_bytes: int | None = None
    doing: str = ""
    running: dict[int, None] = field(default_factory=dict)

    def trained(self, update: told.UpdatedLine, line: int) -> None:
        """Note an update that counts."""
        seconds, samples = update.train_seconds, update.samples
        self.tasks_done += 1
        self.samples_per_second = round(samples / seconds, 1) if seconds > 1e-6 else None
        self.changed = line


_sent = attrgetter(
    *("number", "name", "state", "joined", "left", "numeric_class", "tasks_done"),
    *("samples_per_second", "cpu_share", "memory_bytes", "address", "doing"),
)
"""Returns a worker's row as the page receives it."""


class WorkerTable:
    """All workers by name, numbered in the order in which the record first names them."""

    def __init__(self) -> None:
        self._by_name: dict[str, WorkerRow] = {}
        self._names: list[str] = []

    def named(self, name: str) -> WorkerRow:
        """Return a worker, or a new one if the record has not named it before."""
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = WorkerRow(len(self._names), name)
            self._names.append(name)
        return known

    def at(self, number: int) -> WorkerRow:
        """Return a worker by its number."""
        return self._by_name[self._names[number]]

    def began(self, number: int, attempt: int, line: int) -> None:
        """Note that a worker trains an attempt."""
        worker = self.at(number)
        worker.running[attempt] = None
        worker.state, worker.doing, worker.changed = "training", "", line

    def stopped(self, number: int, attempt: int, line: int) -> None:
        """Note that a worker no longer trains an attempt."""
        worker = self.at(number)
        if worker.running.pop(attempt, attempt) is None and not worker.running:
            if worker.state == "training":
                worker.state = "idle"
            worker.changed = line

    def works(self, phase: told.PhaseLine, line: int) -> None:
        """Note what a worker does besides training."""
        worker = self.named(phase.worker)
        worker.doing, worker.changed = "" if phase.phase == "training" else str(phase), line

    def used(self, resources: told.ResourcesUsedLine, line: int) -> None:
        """Note what a worker's process used last."""
        if resources.samples:
            worker, last = self.named(resources.worker), resources.samples[-1]
            worker.cpu_share, worker.memory_bytes = round(last.cpu_share, 2), last.memory_bytes
            worker.changed = line

    def since(self, after: int, upto: int) -> Iterator[Row]:
        """Yield the workers that changed last after line `after`, up to line `upto`.

        If `after` is 0, yield all of them, because every attempt names its worker by number.
        """
        for worker in self._by_name.values():
            if after < worker.changed <= upto or (after == 0 and worker.changed):
                yield _sent(worker)


Told = tuple[float, str, int | None]
"""Seconds since the experiment was submitted, a sentence, and the attempt within the task."""


def histories(record: Iterable[told.Dated], start: float) -> Iterator[Told]:
    """Yield a sentence for each line about a task.

    `start` is when the user submitted the experiment, by the record's clock.
    """
    for at, line in record:
        said = _said(line)
        if said:
            yield round(at - start, 3), said, getattr(line, "attempt", None)


def _said(line: told.RecordLine) -> str:  # noqa: PLR0911 - one arm a line
    match line:
        case told.AssignedLine():
            return _assigned(line)
        case told.ForeseenLine():
            done = f"{line.worker} had done {line.done:.0%} after {line.elapsed_seconds:.1f} s"
            band = _band(line)
            return f"{done}; the forecast for the whole task was {band}" if band else done
        case told.SavedLine():
            size = size_in_words(line.bytes)
            return f"{line.worker} saved a snapshot after step {line.step}, {size}"
        case told.WithheldLine():
            return f"{line.worker} published its update; an audit compares it with another worker's"
        case told.HandOverAskedLine() | told.ContradictedLine() | told.QuarantinedLine():
            return str(decision(line))
        case told.UpdatedLine():
            return _updated(line)
        case told.ResourcesUsedLine():
            return _used(line)
        case told.AttemptFailedLine():
            how = "ended" if line.failure in BLAMELESS else "failed"
            return f"{line.worker} {how} ({line.failure}): {line.reason}"
        case _:
            return ""


def _assigned(line: told.AssignedLine) -> str:
    begun = f" from step {line.from_step}" if line.from_step else ""
    part = f", {line.share:.0%} of its steps" if line.share != 1.0 else ""
    band = _band(line)
    forecast = f"; the forecast was {band}" if band else ""
    return f"the manager gave it to {line.worker}{begun}{part}: {line.reason}{forecast}"


def _updated(line: told.UpdatedLine) -> str:
    seconds = (
        f"loading {line.load_seconds:.1f} s, training {line.train_seconds:.1f} s, "
        f"publishing {line.publish_seconds:.1f} s"
    )
    trained = f"{line.samples:,} samples in {line.steps:,} steps, loss {number(line.loss)}"
    return f"{line.worker} published its update, {size_in_words(line.bytes)}: {trained}; {seconds}"


def _used(line: told.ResourcesUsedLine) -> str:
    if not line.samples:
        return ""
    cores = sum(sample.cpu_share for sample in line.samples) / len(line.samples)
    memory = max(sample.memory_bytes for sample in line.samples)
    return f"{line.worker} used {cores:.1f} cores on average and {size_in_words(memory)} at most"


def _band(line: told.AssignedLine | told.ForeseenLine) -> str:
    low, middle, high = line.q10_seconds, line.q50_seconds, line.q90_seconds
    if low is None or middle is None or high is None:
        return ""
    return f"{middle:.1f} s ({low:.1f} to {high:.1f} s in eight cases of ten)"
