"""Folds the lines of a record into the parts of a result; of repeated lines, the latest counts."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from downpour.base.devices import AUTO, CPU
from downpour.base.states import LOSS, ExperimentState, Goal
from downpour.core.spec import Meetings
from downpour.files.store.layout import BEST_NAME
from downpour.record.attempt_lines import AttemptFailedLine, UpdatedLine
from downpour.record.mitigation import Cost, stragglers_of
from downpour.record.record_lines import (
    AggregatedLine,
    CancelledLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    ImprovedLine,
    PreparedLine,
    RecordLine,
    SubmittedLine,
    WorkerJoinedLine,
)
from downpour.record.result_parts import (
    MANAGER,
    BestModel,
    FailureResult,
    RoundResult,
    TaskResult,
    TestResult,
    Verification,
)


@dataclass(slots=True)
class RecordFold:
    """The lines of a record so far, by kind; of repeated lines, the latest.

    Each item of `failed` also says whether the manager had accepted the attempt's update before. If
    so, the update was damaged, or lost with the end of a journal. `retrained` are the tasks, by
    round and shard, of such updates.
    """

    submitted: SubmittedLine | None = None
    prepared: PreparedLine | None = None
    end: FinishedLine | FailedLine | CancelledLine | None = None
    updated: dict[int, dict[int, UpdatedLine]] = field(default_factory=dict)
    aggregated: dict[int, AggregatedLine] = field(default_factory=dict)
    versions: list[AggregatedLine] = field(default_factory=list)
    applied: Counter[int] = field(default_factory=Counter)
    evaluated: dict[int, EvaluatedLine] = field(default_factory=dict)
    tested: EvaluatedLine | None = None
    improved: ImprovedLine | None = None
    failed: list[tuple[AttemptFailedLine, bool]] = field(default_factory=list)
    retrained: set[tuple[int, int]] = field(default_factory=set)
    drawn_with: str = ""
    joined_with: dict[str, WorkerJoinedLine] = field(default_factory=dict)
    used: dict[str, dict[str, None]] = field(default_factory=dict)
    _verification: Verification = field(default_factory=Verification)

    def take(self, fact: RecordLine) -> None:
        """Take in the next line."""
        match fact:
            case WorkerJoinedLine():
                self.joined_with[fact.worker] = fact
            case SubmittedLine():
                self.submitted = fact
            case PreparedLine():
                self.prepared = fact
                self.drawn_with = self.drawn_with or fact.numeric_class
                self._verification.prepared(fact)
            case UpdatedLine():
                self._take_update(fact)
            case AttemptFailedLine():
                self._take_failure(fact)
            case AggregatedLine():
                self._take_version(fact)
            case EvaluatedLine():
                self._take_evaluation(fact)
            case ImprovedLine():
                self.improved = fact
            case FinishedLine() | FailedLine() | CancelledLine():
                self.end = fact

    def _take_update(self, fact: UpdatedLine) -> None:
        """Note a task's update; it replaces one that an interrupted manager had recorded."""
        of_round = self.updated.setdefault(fact.round, {})
        before = of_round.get(fact.shard)
        # If the attempt is the same, the record repeats the same update.
        if before is not None and before.attempt != fact.attempt:
            self.retrained.add((fact.round, fact.shard))
        of_round[fact.shard] = fact
        joined = self.joined_with.get(fact.worker)
        its = joined.class_for(self._asked_device) if joined is not None else ""
        self.used.setdefault(its, {})[fact.worker] = None
        self._verification.updated(fact.worker, its, fact.trial)

    def _take_failure(self, fact: AttemptFailedLine) -> None:
        """Note a failed attempt; if the manager had accepted its update, that no longer counts."""
        accepted = self.updated.get(fact.round, {}).get(fact.shard)
        was_lost = accepted is not None and accepted.attempt == fact.attempt
        if was_lost:
            del self.updated[fact.round][fact.shard]
            self.retrained.add((fact.round, fact.shard))
        self.failed.append((fact, was_lost))

    def _take_version(self, fact: AggregatedLine) -> None:
        """Note a version: a round's, or one of several between the ends of two rounds."""
        if not fact.parts:
            self.aggregated[fact.round] = fact
            return
        shards = self.submitted.shards if self.submitted is not None else 0
        self.versions.append(fact)
        for number, _ in fact.parts:
            self.applied[number] += 1
            if self.applied[number] == shards:
                self.aggregated[number] = self._together(number)
                self.versions = []

    def _together(self, number: int) -> AggregatedLine:
        """Merge the versions since the end of another round into one, which ends this round."""
        updates = self.updated.get(number, {}).values()
        samples = sum(update.samples for update in updates)
        last = self.versions[-1] if self.versions else self.aggregated[number - 1]
        return dataclasses.replace(
            last,
            round=number,
            bytes=sum(version.bytes for version in self.versions),
            seconds=sum(version.seconds for version in self.versions),
            train_seconds=sum(version.train_seconds for version in self.versions),
            loss=sum(update.samples * update.loss for update in updates) / (samples or 1),
        )

    def _take_evaluation(self, fact: EvaluatedLine) -> None:
        if self.validates and fact.part == "test":
            self.tested = fact
        else:
            self.evaluated[fact.round] = fact

    @property
    def validates(self) -> bool:
        """Whether training examples are set apart, and evaluated after rounds."""
        return self.submitted is not None and bool(self.submitted.spec.get("validation"))

    def numeric_classes(self) -> dict[str, tuple[str, ...]]:
        """Return the processes that computed in each numeric class, as far as the record shows."""
        asked = self._asked_device
        on_processor = asked == CPU or (
            asked == AUTO and any(f" on {CPU} (" in name for name in self.used)
        )
        drawn = [self.drawn_with] if on_processor and self.used else []
        who_by_class: dict[str, list[str]] = {name: [MANAGER] for name in drawn}
        for name, workers in self.used.items():
            who_by_class.setdefault(name, []).extend(workers)
        return {name: tuple(who) for name, who in who_by_class.items() if name}

    @property
    def verified(self) -> bool | None:
        """Whether two processes agree on the first steps of a user's code; None without any."""
        spec = self.submitted.spec if self.submitted is not None else {}
        return self._verification.of(spec) if self.prepared is not None else None

    @property
    def _asked_device(self) -> object:
        return self.submitted.spec.get("device") if self.submitted is not None else None

    @property
    def meetings(self) -> Meetings:
        """How rounds make up epochs."""
        return Meetings.of(self.submitted.spec if self.submitted is not None else {})

    def updates(self) -> list[UpdatedLine]:
        """Return all updates by round and shard."""
        return [
            self.updated[number][shard]
            for number in sorted(self.updated)
            for shard in sorted(self.updated[number])
        ]

    def rounds(self, costs: Mapping[int, Cost]) -> tuple[RoundResult, ...]:
        """Return the rounds, each with the cost of its stragglers if known."""
        return tuple(self._merged([number], costs) for number in sorted(self.aggregated))

    def epochs(self, costs: Mapping[int, Cost]) -> tuple[RoundResult, ...]:
        """Return the epochs: the sums over their rounds, and how good their last models are."""
        by_epoch = groupby(sorted(self.aggregated), key=self.meetings.epoch_of)
        return tuple(self._merged([*numbers], costs) for _, numbers in by_epoch)

    def epoch_until(self, number: int) -> RoundResult:
        """Return a round's epoch up to this round, without the cost of stragglers."""
        epoch = self.meetings.epoch_of(number)
        own = (n for n in sorted(self.aggregated) if self.meetings.epoch_of(n) == epoch)
        return self._merged([n for n in own if n <= number], {})

    def _merged(self, numbers: Sequence[int], costs: Mapping[int, Cost]) -> RoundResult:
        """Merge rounds of one epoch into one."""
        evaluated = self.evaluated.get(numbers[-1])
        lines = [self.aggregated[number] for number in numbers]
        updates = [one for number in numbers for one in self.updated.get(number, {}).values()]
        known = [costs[number] for number in numbers if number in costs]
        samples = sum(update.samples for update in updates)
        whole = sum(update.samples * update.loss for update in updates)
        return RoundResult(
            epoch=self.meetings.epoch_of(numbers[-1]) + 1,
            round=numbers[-1] + 1,
            metrics=_finite(evaluated.metrics) if evaluated else {},
            class_accuracy=tuple(map(_measured, evaluated.class_accuracy)) if evaluated else (),
            train_loss=_measured(lines[0].loss if len(lines) == 1 else whole / (samples or 1)),
            test_loss=_measured(evaluated.loss) if evaluated else None,
            train_seconds=sum(line.train_seconds for line in lines),
            aggregate_seconds=sum(line.seconds for line in lines),
            evaluate_seconds=evaluated.seconds if evaluated else 0.0,
            bytes=sum(one.bytes for one in updates) + sum(one.bytes for one in lines),
            stragglers=stragglers_of(known) if known else None,
        )

    def task_of(self, fact: UpdatedLine) -> TaskResult:
        """Return the task of an update."""
        fields = {**dataclasses.asdict(fact), "loss": _measured(fact.loss)}
        # A result is for people and tables; `downpour replay` reads checksums from the record.
        del fields["checksum"], fields["trial"]
        again = (fact.round, fact.shard) in self.retrained
        return TaskResult(epoch=self._epoch_of(fact), retrained=again, **_from_one(fields))

    def failure_of(self, fact: AttemptFailedLine, *, update_lost: bool) -> FailureResult:
        """Return the failed attempt."""
        fields = _from_one(dataclasses.asdict(fact))
        return FailureResult(epoch=self._epoch_of(fact), update_lost=update_lost, **fields)

    def _epoch_of(self, fact: UpdatedLine | AttemptFailedLine) -> int:
        return self.meetings.epoch_of(fact.round) + 1


def state_of(fold: RecordFold) -> ExperimentState:
    """Return the state that the lines show."""
    match fold.end:
        case FinishedLine():
            return ExperimentState.FINISHED
        case FailedLine():
            return ExperimentState.FAILED
        case CancelledLine():
            return ExperimentState.CANCELLED
        case None:
            return ExperimentState.RUNNING if fold.prepared else ExperimentState.PREPARING


def reason_of(fold: RecordFold) -> str | None:
    """Return why the experiment ended, if it did so before its last epoch."""
    match fold.end:
        case FailedLine() | CancelledLine():
            return fold.end.reason
        case FinishedLine() if fold.submitted is not None:
            return fold.end.reason if len(fold.aggregated) < fold.meetings.rounds else None
    return None


def test_of(fold: RecordFold) -> TestResult | None:
    """Return the test results, if the epochs were evaluated on other examples."""
    tested = fold.tested
    if tested is None:
        return None
    return TestResult(
        epoch=fold.meetings.epoch_of(tested.round) + 1,
        metrics=_finite(tested.metrics),
        class_accuracy=tuple(map(_measured, tested.class_accuracy)),
        loss=_measured(tested.loss),
    )


def best_of(fold: RecordFold, folder: Path | None) -> BestModel | None:
    """Return the best model so far, if the spec compares models."""
    best, spec = fold.improved, fold.submitted.spec if fold.submitted is not None else {}
    if best is None:
        return None
    kept = spec.get("keep_best")
    name = BEST_NAME if isinstance(fold.end, FinishedLine) else best.file
    return BestModel(
        epoch=fold.meetings.epoch_of(best.round) + 1,
        metric=Goal.of(kept or LOSS).metric,
        value=best.value,
        file=folder / name if folder is not None and kept else None,
    )


def _from_one(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line's fields with the round counted from 1."""
    return {**fields, "round": fields["round"] + 1}


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _measured(value) for name, value in metrics.items()}


def _measured(value: float) -> float | None:
    return value if math.isfinite(value) else None
