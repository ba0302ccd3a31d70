"""Turns each fact of the scheduler into a line of the record, which is flat, for people to read."""

from __future__ import annotations

from typing import TypedDict, assert_never

from downpour.core.scheduler import facts
from downpour.files.records.record_lines import (
    AssignedLine,
    AttemptFailedLine,
    ContradictedLine,
    DroppedLine,
    ForeseenLine,
    HandOverAskedLine,
    ImprovedLine,
    RecordLine,
    ResizedLine,
    SavedLine,
    UpdatedLine,
    WorkerLeftLine,
    WorkerRequestedLine,
)

RecordedFact = (
    facts.Assigned
    | facts.HandOverAsked
    | facts.ForecastRecorded
    | facts.Accepted
    | facts.Saved
    | facts.Contradicted
    | facts.GivenUp
    | facts.Dropped
    | facts.Resized
    | facts.Improved
    | facts.WorkerRequested
    | facts.Dismissed
)
"""All facts but `Concluded`, whose line needs the time of submission, which the recorder has."""


def line_of(fact: RecordedFact) -> RecordLine:  # noqa: C901, PLR0911, PLR0912 - one arm a fact
    """Return the line that a fact makes."""
    match fact:
        case facts.Assigned():
            return _assigned(fact)
        case facts.HandOverAsked():
            meant_for, reason = fact.meant_for, fact.reason
            return HandOverAskedLine(**_whose(fact), meant_for=meant_for, reason=reason)
        case facts.ForecastRecorded():
            return _foreseen(fact)
        case facts.Accepted():
            return _updated(fact)
        case facts.Saved():
            step, size = fact.snapshot.steps_done, fact.snapshot.file.size_bytes
            return SavedLine(**_whose(fact), step=step, bytes=size)
        case facts.Contradicted():
            return ContradictedLine(
                **_whose(fact),
                accepted_from=fact.accepted_from,
                checksum=fact.update.file.checksum,
                accepted_checksum=fact.accepted.file.checksum,
            )
        case facts.GivenUp():
            return AttemptFailedLine(**_whose(fact), failure=fact.failure, reason=fact.reason)
        case facts.Dropped():
            return DroppedLine(round=fact.round, shards=fact.shards, reason=fact.reason)
        case facts.Resized():
            return ResizedLine(round=fact.round, samples=fact.samples, reason=fact.reason)
        case facts.Improved():
            return ImprovedLine(round=fact.round, value=fact.value, file=fact.model.name)
        case facts.WorkerRequested():
            return WorkerRequestedLine(reason=fact.reason)
        case facts.Dismissed():
            return WorkerLeftLine(worker=fact.worker, reason=fact.reason, lost=fact.lost)
        case _:
            assert_never(fact)


def _assigned(fact: facts.Assigned) -> AssignedLine:
    forecast = fact.forecast
    return AssignedLine(
        **_whose(fact),
        reason=fact.reason,
        from_step=fact.snapshot.steps_done if fact.snapshot else 0,
        share=fact.share,
        q10_seconds=forecast.q10 if forecast else None,
        q50_seconds=forecast.q50 if forecast else None,
        q90_seconds=forecast.q90 if forecast else None,
    )


def _foreseen(fact: facts.ForecastRecorded) -> ForeseenLine:
    # Counted from the assignment, so that it can be compared with the forecast of that line.
    forecast = fact.remaining.later(fact.elapsed_seconds)
    return ForeseenLine(
        **_whose(fact),
        done=fact.done,
        elapsed_seconds=fact.elapsed_seconds,
        q10_seconds=forecast.q10,
        q50_seconds=forecast.q50,
        q90_seconds=forecast.q90,
    )


def _updated(fact: facts.Accepted) -> UpdatedLine:
    update = fact.update
    return UpdatedLine(
        **_whose(fact),
        samples=update.samples,
        steps=update.steps,
        loss=update.loss,
        load_seconds=update.load_seconds,
        train_seconds=update.train_seconds,
        publish_seconds=update.publish_seconds,
        completion_seconds=fact.completion_seconds,
        bytes=update.file.size_bytes,
        checksum=update.file.checksum,
    )


class _Whose(TypedDict):
    round: int
    shard: int
    attempt: int
    worker: str


def _whose(fact: facts.AttemptFact) -> _Whose:
    attempt = fact.attempt
    return _Whose(
        round=attempt.round, shard=attempt.shard, attempt=attempt.attempt, worker=fact.worker
    )
