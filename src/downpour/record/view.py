"""The record that people read: a projection of an experiment's journal, computed on demand.

`View.take` is pure: it takes the lines of a journal in order, and returns the lines of the record
(`record_lines.py`) that follow from each. A fact makes a line on its own. If a line of the record
needs more than its entry says, the manager writes an `Observed` before the entry (`observed`,
`aggregating`). The view keeps it until the entry comes, so work that a crash cut off makes no line.
"""

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from downpour.base.states import ExperimentState
from downpour.base.values import Forecast
from downpour.core.node.journal import Line
from downpour.core.scheduler import Journaled, Observed
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import REQUIRED
from downpour.files.aggregators.passes import ORDER
from downpour.record import record_lines as told
from downpour.record.record_lines import Dated

_MEASURED = "loss", "metrics", "class_accuracy", "step_losses", "step_rates"
"""Fields with numbers that may be NaN or infinite; both are null in JSON, which has neither."""
LACKS_FIELD = "Object missing required field"
"""How an error begins if an older build left out a field; the words are those of `msgspec`."""
_AGGREGATING = "aggregating"


def observed(experiment: str, line: told.RecordLine) -> Observed:
    """Return the entry for a line that only the manager can make."""
    return Observed(experiment=experiment, line=to_fields(line))


def aggregating(command: out.Aggregate) -> Observed:
    """Return the entry that begins an aggregation; the record's line comes with the result."""
    samples = sum(update.samples for update in command.updates)
    weighted = sum(update.samples * update.loss for update in command.updates)
    line = {
        "kind": _AGGREGATING,
        "train_seconds": command.train_seconds,
        "loss": weighted / samples if samples else 0.0,
        "parts": command.parts,
        "summed": ORDER if command.in_step else "",
        "whole": command.whole,
        "staleness": tuple(push.staleness for push in command.pushes) if command.parts else (),
    }
    return Observed(experiment=command.experiment, line=line)


class View:
    """Projects one journal; takes each of its lines once, in order."""

    def __init__(self) -> None:
        self._submitted_at: float | None = None
        self._prepared: told.RecordLine | None = None
        self._aggregating: tuple[float, dict[str, Any]] | None = None

    def take(self, line: Line) -> list[Dated]:
        """Return the lines of the record that follow from a line of the journal."""
        return list(self._made(line.at_seconds, line.entry))

    def _made(self, at: float, entry: Journaled) -> Iterator[Dated]:
        match entry:
            case Observed():
                yield from self._observed(at, entry.line)
            case on.Prepared():
                # A manager that continues an experiment prepares it as well, but observes nothing.
                if self._prepared is not None:
                    yield at, self._prepared
                self._prepared = None
            case on.Aggregated():
                yield from self._aggregated(at, entry)
            case out.Concluded():
                yield at, self._concluded(at, entry)
            case _:
                if isinstance(entry, on.ExperimentSubmitted):
                    self._submitted_at = at
                line = line_of(entry)
                if line is not None:
                    yield at, line

    def _observed(self, at: float, fields: dict[str, Any]) -> Iterator[Dated]:
        if fields["kind"] == _AGGREGATING:
            self._aggregating = at, fields
            return
        line = from_fields(fields)
        if isinstance(line, told.PreparedLine):
            self._prepared = line
        elif line is not None:
            yield at, line

    def _aggregated(self, at: float, event: on.Aggregated) -> Iterator[Dated]:
        if self._aggregating is None:
            return
        began, known = self._aggregating
        self._aggregating = None
        yield (
            at,
            told.AggregatedLine(
                round=event.round,
                version=event.round + 1,
                file=event.model.name,
                bytes=event.model.size_bytes,
                seconds=at - began,
                train_seconds=known["train_seconds"],
                loss=known["loss"],
                parts=tuple((number, shard) for number, shard in known["parts"]),
                staleness=tuple(known["staleness"]),
                summed=known["summed"],
                whole=known["whole"],
                checksum=event.model.checksum,
                mean=event.mean.checksum if event.mean is not None else "",
            ),
        )

    def _concluded(self, at: float, ended: out.Concluded) -> told.RecordLine:
        if ended.ending is ExperimentState.FINISHED and ended.model is not None:
            began = self._submitted_at if self._submitted_at is not None else at
            return told.FinishedLine(
                file=ended.model.name,
                total_seconds=at - began,
                reason=ended.reason,
                checksum=ended.model.checksum,
            )
        if ended.ending is ExperimentState.CANCELLED:
            return told.CancelledLine(reason=ended.reason)
        return told.FailedLine(reason=ended.reason, asked_wrongly=ended.asked_wrongly)


def line_of(entry: Journaled) -> told.RecordLine | None:
    """Return the line for an entry that has all of the line's values; None for other entries."""
    kind = _LINES.get(type(entry))
    if kind is None:
        return None
    known = _renamed(entry)
    names = [name for name in kind.__struct_fields__ if name not in known]
    return kind(**known, **{name: _found(entry, name) for name in names})


_LINES: dict[type[Journaled], type[told.RecordLine]] = {
    on.ExperimentSubmitted: told.SubmittedLine,
    on.Evaluated: told.EvaluatedLine,
    out.Assigned: told.AssignedLine,
    out.HandOverAsked: told.HandOverAskedLine,
    out.ForecastRecorded: told.ForeseenLine,
    out.Accepted: told.UpdatedLine,
    out.Withheld: told.WithheldLine,
    out.Quarantined: told.QuarantinedLine,
    out.Saved: told.SavedLine,
    out.Contradicted: told.ContradictedLine,
    out.GivenUp: told.AttemptFailedLine,
    out.Rescheduled: told.RescheduledLine,
    out.Dropped: told.DroppedLine,
    out.Resized: told.ResizedLine,
    out.Improved: told.ImprovedLine,
    out.WorkerRequested: told.WorkerRequestedLine,
    out.Explained: told.ExplainedLine,
    out.Dismissed: told.WorkerLeftLine,
}
"""Lines whose fields have the same names in the entry, or in a part of it."""

_PARTS = "attempt", "update", "evaluation"


def _found(entry: Journaled, name: str) -> Any:
    parts = (getattr(entry, part, None) for part in _PARTS)
    return getattr(next((part for part in parts if hasattr(part, name)), entry), name)


def _renamed(entry: Journaled) -> dict[str, Any]:  # noqa: PLR0911 - one arm an entry
    """Return the fields of an entry's line that have other names in the entry."""
    match entry:
        case on.ExperimentSubmitted():
            spec = entry.spec
            return {"name": spec.name, "spec": spec.model_dump(mode="json"), "shards": spec.shards}
        case on.Evaluated():
            return {"metrics": dict(entry.evaluation.metrics)}
        case out.Assigned():
            from_step = entry.snapshot.steps_done if entry.snapshot else 0
            return {"from_step": from_step, **_quantiles(entry.forecast)}
        case out.ForecastRecorded():
            # We count from the assignment, so that readers can compare this with the forecast
            # there.
            return _quantiles(entry.remaining.later(entry.elapsed_seconds))
        case out.Accepted():
            file = entry.update.file
            return {"bytes": file.size_bytes, "checksum": file.checksum}
        case out.Withheld():
            return {"checksum": entry.update.file.checksum}
        case out.Saved():
            snapshot = entry.snapshot
            return {"step": snapshot.steps_done, "bytes": snapshot.file.size_bytes}
        case out.Contradicted():
            accepted = entry.accepted.file.checksum
            return {"checksum": entry.update.file.checksum, "accepted_checksum": accepted}
        case out.Improved():
            return {"file": entry.model.name if entry.model is not None else ""}
        case _:
            return {}


def _quantiles(forecast: Forecast | None) -> dict[str, Any]:
    return {f"{name}_seconds": getattr(forecast, name, None) for name in ("q10", "q50", "q90")}


def to_fields(fact: told.RecordLine) -> dict[str, Any]:
    """Turn a fact into its kind and plain fields that JSON can hold."""
    return {"kind": told.kind_of(fact), **plain(msgspec.structs.asdict(fact))}


def from_fields(fields: dict[str, Any]) -> told.RecordLine | None:
    """Turn plain fields back into a fact; None for a kind that this version does not know."""
    kind = told.KINDS.get(fields["kind"])
    if kind is None:
        msgspec.convert(fields["kind"], str)  # a later version's word
        return None
    if "loss" in fields:
        measured = {name: _measured(fields[name]) for name in _MEASURED if name in fields}
        fields = {**fields, **measured}
    line = msgspec.convert(fields, kind)
    if isinstance(line, told.SubmittedLine) and (lacking := set(REQUIRED) - set(line.spec)):
        raise ValueError(f"{LACKS_FIELD} `{min(lacking)}` in the spec")
    return line


def dated(fields: Any) -> told.MaybeKnown:
    """Turn the plain fields of a line into its time and its fact."""
    try:
        at, line = fields["at"], from_fields(fields)
        at = at if type(at) is float else msgspec.convert(at, float)
    except (TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(repr(error)) from None
    if not math.isfinite(at):
        raise ValueError(f"a line at {at}")
    return at, line


def _measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _measured(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_measured(inner) for inner in value]
    return math.nan if value is None else value


def plain(value: Any) -> Any:
    """Return a value with None in place of numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
