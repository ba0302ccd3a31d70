"""The experiments in a shared directory, read from their records, for when no manager answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from downpour.errors import StoreError
from downpour.reports.result import Result
from downpour.rpc.messages import ExperimentSummary, metrics_of
from downpour.spec import Meetings
from downpour.store.layout import RECORD_NAME


def experiments_in(folder: Path, last: int | None = None) -> tuple[ExperimentSummary, ...]:
    """Sum up the experiments whose folders lie in this one, by when their records last changed.

    States are those that were written last: an experiment that lost its manager is still running.
    Folders without a record that can be read are left out. No more than `last` are read; None: all.
    """
    return tuple(islice(_newest(folder), last))[::-1]


def _newest(folder: Path) -> Iterator[ExperimentSummary]:
    for record in sorted(_records(folder), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(StoreError):
            yield _summary(Result.read(record.parent))


def _records(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"*/{RECORD_NAME}") if path.is_file()]


def _summary(result: Result) -> ExperimentSummary:
    meetings, done = Meetings.of(result.spec), len(result.rounds)
    return ExperimentSummary(
        experiment=result.experiment,
        name=result.name,
        state=result.state,
        rounds_done=done,
        rounds_total=meetings.rounds,
        epochs_done=meetings.epoch_of(done),
        epochs_total=meetings.epochs,
        reason=result.reason,
        metrics=metrics_of(result.metrics),
        loss=result.test_loss,
        part=result.last_part,
    )
