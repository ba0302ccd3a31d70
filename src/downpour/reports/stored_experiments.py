"""The experiments in a shared directory, read from their records, for when no manager answers."""

from __future__ import annotations

from pathlib import Path

from downpour.errors import StoreError
from downpour.reports.result import Result
from downpour.rpc.messages import ExperimentSummary, metrics_of
from downpour.spec import Meetings
from downpour.store.layout import RECORD_NAME


def experiments_in(folder: Path) -> tuple[ExperimentSummary, ...]:
    """Sum up the experiments whose folders lie in this one, by when their records last changed.

    States are those that were written last: an experiment that lost its manager is still running.
    Folders without a record that can be read are left out.
    """
    records = [path for path in folder.glob(f"*/{RECORD_NAME}") if path.is_file()]
    summaries = []
    for record in sorted(records, key=lambda path: path.stat().st_mtime_ns):
        try:
            summaries.append(_summary(Result.read(record.parent)))
        except StoreError:
            continue
    return tuple(summaries)


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
