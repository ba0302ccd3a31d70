"""Reads the experiments in a shared directory from records, for when no manager answers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from downpour.base.errors import StoreError
from downpour.core.spec import Meetings
from downpour.files.store import SharedDirectory
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.shared_directory import lost_its_manager
from downpour.network.rpc.messages import ExperimentSummary, metrics_of
from downpour.record.journal import segments
from downpour.record.mirror import MirrorCopy
from downpour.record.record import has_record, is_exported
from downpour.record.record_lines import KINDS
from downpour.record.result import Result, rounds_in

_USED = {"submitted", "prepared", "rescheduled", "dropped", "aggregated", "measured"}
_ENDED = {"finished", "failed", "cancelled"}
_UNUSED = KINDS.keys() - _USED - _ENDED
"""Kinds of lines without which a summary is the same."""
_LOST = "no manager has it now; the next one in this directory continues it"


@contextmanager
def stored_records(
    shared: SharedDirectory, *, experiment: str = "", last: int | None = None
) -> Iterator[Path]:
    """Yield a folder with the folders of experiments; for a bucket, a copy of its records.

    From a bucket, we copy all records, only this experiment's, or the `last` ones.
    """
    if shared.bucket is None:
        yield shared.experiments
        return
    with TemporaryDirectory(prefix="downpour-") as folder:
        MirrorCopy(shared, Path(folder)).fetch(experiment, last)
        yield Path(folder)


def experiments_in(folder: Path, last: int | None = None) -> tuple[ExperimentSummary, ...]:
    """Sum up the experiments whose folders are in this one, by when they last changed.

    States are the last written ones, so an experiment that lost its manager is still running. We
    leave out folders without a readable record. `last` is the most that we read; None: all.
    """
    return tuple(islice(_newest(folder), last))[::-1]


def _newest(folder: Path) -> Iterator[ExperimentSummary]:
    changed = {
        one: changed_seconds(one) for one in folder.glob("*") if one.is_dir() and has_record(one)
    }
    for one in sorted(changed, key=lambda one: changed[one], reverse=True):
        with suppress(StoreError):
            summary = _summary(rounds_in(one, _UNUSED))
            is_lost = not summary.state.ended and lost_its_manager(one)
            yield replace(summary, reason=_LOST) if is_lost else summary


def changed_seconds(folder: Path) -> float:
    """Return when an experiment's record grew last, in seconds since 1970."""
    record = folder / RECORD_NAME
    files = [record] if is_exported(record) else segments(folder)
    return max(path.stat().st_mtime for path in files)


def _summary(result: Result) -> ExperimentSummary:
    meetings, done = Meetings.of(result.spec), len(result.rounds)
    return ExperimentSummary(
        experiment=result.experiment,
        name=result.name,
        state=result.state,
        rounds_done=done,
        rounds_total=meetings.rounds,
        epochs_done=meetings.epoch_of(done),
        epochs_total=meetings.epochs_in_all,
        reason=result.reason,
        metrics=metrics_of(result.metrics),
        loss=result.test_loss,
        part=result.last_part,
    )


_STAMP = re.compile(r"-(\d{8}-\d{6})-[0-9a-f]+")


def submission_seconds(experiment: str) -> float:
    """Return when a user submitted an experiment, in seconds since 1970; 0 if its ID is short."""
    stamp = _STAMP.search(experiment)
    if stamp is None:
        return 0.0
    return datetime.strptime(stamp[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
