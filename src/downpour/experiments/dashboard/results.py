"""Versions and evaluations of an experiment, and the bytes that made them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from downpour.base.evaluations import LOSS, Goal
from downpour.experiments.dashboard.plain import Fields, measured
from downpour.experiments.dashboard.versioned import RowTable
from downpour.experiments.reading.measures import Measure
from downpour.files.records.record_lines import AggregatedLine, EvaluatedLine


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
        self.staleness: float | None = None
        self.has_parts = False
        self.metrics: dict[str, None] = {LOSS: None}
        self.last: EvaluatedLine | None = None
        self._model_bytes = 0

    def prepared(self, size_bytes: int) -> None:
        """Note the initial model."""
        self._model_bytes = size_bytes
        self.bytes_written += size_bytes

    def began(self) -> None:
        """Note that an attempt has begun."""
        self.bytes_read += self._model_bytes

    def saved(self, size_bytes: int) -> None:
        """Note a snapshot."""
        self.bytes_written += size_bytes

    def updated(self, size_bytes: int) -> None:
        """Note an update that counts."""
        self.bytes_written += size_bytes
        self.bytes_read += size_bytes
        self.bytes_for_versions += size_bytes

    def aggregated(self, at: float, made: AggregatedLine, updates: int, line: int) -> None:
        """Note a version, which was made from `updates` updates."""
        self._model_bytes = made.bytes
        self.bytes_written += made.bytes
        self.bytes_for_versions += made.bytes
        self.has_parts = self.has_parts or bool(made.parts)
        stale = made.staleness or ((0,) if not made.parts else ())
        self.staleness = median(stale) if stale else None
        row = (
            made.version,
            at,
            made.round + 1,
            round(made.seconds, 3),
            round(made.train_seconds, 3),
            finite(made.loss),
            made.bytes,
            min(stale, default=None),
            self.staleness,
            max(stale, default=None),
            len(made.parts) or updates,
        )
        self.versions.put(made.version, row, line)

    def evaluated(self, at: float, told: EvaluatedLine, line: int) -> None:
        """Note how good the model is after a round."""
        self.last = told
        self.metrics |= dict.fromkeys(told.metrics)
        row = (
            told.round + 1,
            told.part,
            at,
            finite(told.loss),
            {name: finite(value) for name, value in told.metrics.items()},
            [finite(value) for value in told.class_accuracy],
            self.bytes_for_versions,
            round(told.seconds, 3),
        )
        self.evaluations.put((told.round, told.part), row, line)

    def measures(self) -> list[Mapping[str, Any]]:
        """Return the model's measures: the metrics in their order, then the loss."""
        names = [*(name for name in self.metrics if name != LOSS), LOSS]
        return [
            {
                "name": name,
                "words": Measure(name).words,
                "percent": Measure(name).is_share,
                "higher_is_better": not Goal.of(name).minimised,
            }
            for name in names
            if name.isprintable() and name.strip() == name != ""
        ]


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it, with as many digits as people may want."""
    return measured(round(value, 6)) if value - value == 0 else None


def size_of(fields: Fields) -> int:
    """Return the bytes that a line reports."""
    size = fields["bytes"]
    if type(size) is not int or size < 0:
        raise ValueError(f"not a size: {size!r:.50}")
    return size
