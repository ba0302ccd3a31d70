"""The history of one task in words: which worker got it and why, its progress and its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from downpour.base.states import BLAMELESS
from downpour.experiments.reading.decisions import decision
from downpour.experiments.reading.measures import number
from downpour.files.records.attempt_lines import (
    AssignedLine,
    AttemptFailedLine,
    ContradictedLine,
    ForeseenLine,
    HandOverAskedLine,
    ResourcesUsedLine,
    SavedLine,
    UpdatedLine,
)
from downpour.files.records.record import task_lines
from downpour.files.records.record_lines import RecordLine
from downpour.files.records.view import Dated

Told = tuple[float, str, int | None]
"""Seconds since the experiment was submitted, a sentence, and the attempt within the task."""
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def task_history(folder: Path, start: float, task: tuple[int, int]) -> list[Told]:
    """Return the history of a task from a record.

    Args:
        folder: the experiment's folder.
        start: when the user submitted it, by the record's clock.
        task: round and shard, from 0.

    Raises:
        StoreError: the record cannot be read.
    """
    return list(histories(task_lines(folder, *task), start))


def histories(record: Iterable[Dated], start: float) -> Iterator[Told]:
    """Yield a sentence for each line about a task."""
    for at, line in record:
        said = _said(line)
        if said:
            yield round(at - start, 3), said, getattr(line, "attempt", None)


def _said(line: RecordLine) -> str:  # noqa: PLR0911 - one arm a line
    match line:
        case AssignedLine():
            return _assigned(line)
        case ForeseenLine():
            done = f"{line.worker} had done {line.done:.0%} after {line.elapsed_seconds:.1f} s"
            band = _band(line)
            return f"{done}; the forecast for the whole task was {band}" if band else done
        case SavedLine():
            return f"{line.worker} saved a snapshot after step {line.step}, {_size(line.bytes)}"
        case HandOverAskedLine() | ContradictedLine():
            return str(decision(line))
        case UpdatedLine():
            return _updated(line)
        case ResourcesUsedLine():
            return _used(line)
        case AttemptFailedLine():
            how = "ended" if line.failure in BLAMELESS else "failed"
            return f"{line.worker} {how} ({line.failure}): {line.reason}"
        case _:
            return ""


def _assigned(line: AssignedLine) -> str:
    begun = f" from step {line.from_step}" if line.from_step else ""
    part = f", {line.share:.0%} of its steps" if line.share != 1.0 else ""
    band = _band(line)
    forecast = f"; the forecast was {band}" if band else ""
    return f"the manager gave it to {line.worker}{begun}{part}: {line.reason}{forecast}"


def _updated(line: UpdatedLine) -> str:
    seconds = (
        f"loading {line.load_seconds:.1f} s, training {line.train_seconds:.1f} s, "
        f"publishing {line.publish_seconds:.1f} s"
    )
    trained = f"{line.samples:,} samples in {line.steps:,} steps, loss {number(line.loss)}"
    return f"{line.worker} published its update, {_size(line.bytes)}: {trained}; {seconds}"


def _used(line: ResourcesUsedLine) -> str:
    if not line.samples:
        return ""
    cores = sum(sample.cpu_share for sample in line.samples) / len(line.samples)
    memory = max(sample.memory_bytes for sample in line.samples)
    return f"{line.worker} used {cores:.1f} cores on average and {_size(memory)} at most"


def _band(line: AssignedLine | ForeseenLine) -> str:
    low, middle, high = line.q10_seconds, line.q50_seconds, line.q90_seconds
    if low is None or middle is None or high is None:
        return ""
    return f"{middle:.1f} s ({low:.1f} to {high:.1f} s in eight cases of ten)"


def _size(size_bytes: int) -> str:
    size, unit = float(size_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"
