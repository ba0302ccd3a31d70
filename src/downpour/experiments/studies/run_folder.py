"""The folder of an ended run: spec.toml, record.jsonl and summary.json.

It appears whole, by renaming, so if a run's folder exists, the run has ended. `study_folder.py`
decides to which study a run belongs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash
from pydantic import TypeAdapter

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, StoreError
from downpour.base.states import LOSS, ExperimentState
from downpour.core.spec import ResolvedSpec
from downpour.files.store import SPEC_NAME
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.publish import explain, sync_directory
from downpour.record import Result
from downpour.record.result_parts import RoundResult, in_words
from downpour.record.study_result import RunResult, read_run

Measured = Mapping[str, float | None]
"""Measurements after an epoch, by name, with the loss on the test examples as "loss"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The outcome of a run; `asked_wrongly` is true if it failed because of its spec.

    `failure` is the kind of the failed attempt that ended the run, None if the run ended otherwise.
    `epochs` has the measurements after each epoch: the loss on the test examples and the metrics,
    by name, or nothing. `wall_seconds` include starting and stopping the processes. If Downpour
    found the run again at a manager, they count from that moment. `checksum` covers the record and
    the spec next to the summary; it is None before they are written.
    """

    experiment: str
    state: ExperimentState
    reason: str | None
    asked_wrongly: bool = False
    failure: str | None = None
    workers: int | None
    seed: int
    epochs: tuple[Measured, ...]
    train_seconds: float
    aggregate_seconds: float
    evaluate_seconds: float
    total_seconds: float
    wall_seconds: float
    checksum: str | None = None

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
        return cls(
            experiment=result.experiment,
            state=result.state,
            reason=result.reason,
            asked_wrongly=result.asked_wrongly,
            failure=_failure(result),
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


def _measured(epoch: RoundResult) -> Measured:
    loss = {} if epoch.test_loss is None and not epoch.metrics else {LOSS: epoch.test_loss}
    return {**epoch.metrics, **loss}


def _failure(result: Result) -> str | None:
    """Return the kind of the failed attempt that failed the experiment; None if none did."""
    last = result.failures[-1] if result.failures else None
    names_it = last is not None and (result.reason or "").endswith(last.reason)
    return last.failure if last and names_it and result.state == "failed" else None


_READER = TypeAdapter(RunSummary)


SUMMARY_NAME = "summary.json"
_UNFINISHED = ".new-"


def refusal(path: Path, reason: str) -> SpecError:
    """Return the error for an unusable folder of results."""
    return SpecError("folder", str(path), reason)


def write_run(place: Path, spec: ResolvedSpec, record: bytes, summary: RunSummary) -> None:
    """Write the files of a run, replacing the files of an earlier try."""
    new = place.with_name(f"{_UNFINISHED}{place.name}")
    text = spec.to_toml().encode()
    sealed = replace(summary, checksum=_checksum(record, text))
    # We write contents to disk before the rename. Otherwise, after a power failure, the final
    # folder could hold empty files, and would count as a run.
    try:
        new.mkdir()
        _write(new / RECORD_NAME, record)
        _write(new / SPEC_NAME, text)
        _write(new / SUMMARY_NAME, sealed.to_json().encode())
        sync_directory(new)
        if place.exists():  # the run failed before, and we repeated it
            shutil.rmtree(place)
        new.rename(place)
        sync_directory(place.parent)
    except OSError as error:
        raise refusal(place.parent.parent, explain(error)) from None


def remove_unfinished(folder: Path) -> None:
    """Remove the folders of runs whose writing was interrupted."""
    for leftover in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)


def names_in(folder: Path) -> list[str]:
    """Return the names of the runs in a folder, which need not exist."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - the names alone are wanted
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(folder, explain(error)) from None
    return sorted(name for name in names if not name.startswith("."))


def read_summary(place: Path) -> RunSummary:
    """Read the outcome of a run."""
    try:
        summary = RunSummary.from_json((place / SUMMARY_NAME).read_bytes(), SUMMARY_NAME)
    except (OSError, StoreError) as error:
        raise _unreadable(place, SUMMARY_NAME, error) from None
    if not summary.state.ended:
        raise refusal(place, f"has not ended: {summary.state}")
    return summary


def read_spec(place: Path) -> ResolvedSpec:
    """Read the spec of a run."""
    try:
        return ResolvedSpec.from_toml((place / SPEC_NAME).read_text("utf-8"))
    except (OSError, ValueError, SpecError) as error:
        raise _unreadable(place, SPEC_NAME, error) from None


def check_run(place: Path, workers: int | None = None) -> RunResult:
    """Read all of a run's files, and return its record for a report."""
    summary = read_summary(place)
    try:
        run = read_run(place, workers=workers)
        checksum = _checksum((place / RECORD_NAME).read_bytes(), (place / SPEC_NAME).read_bytes())
    except (OSError, ValueError, StoreError) as error:
        raise _unreadable(place, RECORD_NAME, error) from None
    if run.result.experiment != summary.experiment:
        raise mismatch(place)
    if summary.checksum != checksum:
        raise refusal(place, f"{RECORD_NAME} or {SPEC_NAME} has changed since the run")
    return run


def mismatch(place: Path) -> SpecError:
    """Return the error for a folder that holds another run than its name says."""
    return refusal(place, "holds a different run than its name says")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old content or the new one."""
    new = path.with_name(f"{_UNFINISHED}{path.name}")
    _write(new, content)
    new.replace(path)
    sync_directory(path.parent)


def _unreadable(place: Path, name: str, error: Exception) -> SpecError:
    match error:
        case OSError(strerror=str(reason)):
            pass
        case FileMissing():
            reason = "No such file"
        case FileCorrupt():
            reason = error.reason
        case _:
            reason = str(error)
    return refusal(place, f"{name} cannot be read: {reason}")


def _checksum(record: bytes, spec: bytes) -> str:
    digest = xxhash.xxh3_128(record)
    digest.update(spec)
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
