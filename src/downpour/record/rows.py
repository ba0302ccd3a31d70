"""The rows of a result, as queries on the tables of its record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from downpour.base.devices import AUTO, CPU
from downpour.base.states import LOSS, ExperimentState, Goal
from downpour.files.store.layout import BEST_NAME
from downpour.record.mitigation import Cost, stragglers_of
from downpour.record.record_lines import CancelledLine, FailedLine, FinishedLine
from downpour.record.result_parts import (
    BestModel,
    FailureResult,
    RoundResult,
    TaskResult,
    TestResult,
)
from downpour.record.tables import MANAGER, Tables

_NO_COSTS: Mapping[int, Cost] = {}
_UNSHOWN = "checksum", "trial"
"""A result is for people and tables; `downpour replay` reads checksums from the record."""


def state_of(tables: Tables) -> ExperimentState:
    """Return the state that the lines show."""
    match tables.ended:
        case FinishedLine():
            return ExperimentState.FINISHED
        case FailedLine():
            return ExperimentState.FAILED
        case CancelledLine():
            return ExperimentState.CANCELLED
        case None:
            return ExperimentState.RUNNING if tables.prepared else ExperimentState.PREPARING


def reason_of(tables: Tables) -> str | None:
    """Return why the experiment ended, if it did so before its last epoch."""
    if isinstance(tables.ended, FinishedLine):
        is_early = len(tables.closed_rounds()) < tables.meetings.rounds
        return tables.ended.reason if is_early and tables.submitted is not None else None
    return tables.ended.reason if tables.ended is not None else None


def rounds_of(tables: Tables, costs: Mapping[int, Cost]) -> tuple[RoundResult, ...]:
    """Return the rounds that have become a model, each with the cost of its stragglers if known."""
    return tuple(_merged(tables, [number], costs) for number in tables.closed_rounds())


def epochs_of(tables: Tables, costs: Mapping[int, Cost]) -> tuple[RoundResult, ...]:
    """Return the epochs: the sums over their rounds, and how good their last models are."""
    by_epoch = groupby(tables.closed_rounds(), key=tables.meetings.epoch_of)
    return tuple(_merged(tables, [*numbers], costs) for _, numbers in by_epoch)


def epoch_until(tables: Tables, number: int) -> RoundResult:
    """Return a round's epoch up to this round, without the cost of stragglers."""
    epoch_of = tables.meetings.epoch_of
    numbers = [n for n in tables.closed_rounds() if epoch_of(n) == epoch_of(number)]
    return _merged(tables, [n for n in numbers if n <= number], _NO_COSTS)


def _merged(tables: Tables, numbers: Sequence[int], costs: Mapping[int, Cost]) -> RoundResult:
    """Merge rounds of one epoch into one."""
    _, evaluated = tables.evaluated.get(numbers[-1], (0.0, None))
    versions = [version for number in numbers if (version := tables.rounds[number].version)]
    updates = [update for number in numbers for update in tables.updates(number)]
    known_costs = [costs[number] for number in numbers if number in costs]
    samples = sum(update.samples for update in updates)
    loss = sum(update.samples * update.loss for update in updates) / (samples or 1)
    return RoundResult(
        epoch=tables.meetings.epoch_of(numbers[-1]) + 1,
        round=numbers[-1] + 1,
        metrics=_finite(evaluated.metrics) if evaluated else {},
        class_accuracy=tuple(map(_measured, evaluated.class_accuracy)) if evaluated else (),
        train_loss=_measured(versions[0].loss if len(versions) == 1 else loss),
        test_loss=_measured(evaluated.loss) if evaluated else None,
        train_seconds=sum(version.train_seconds for version in versions),
        aggregate_seconds=sum(version.seconds for version in versions),
        evaluate_seconds=evaluated.seconds if evaluated else 0.0,
        bytes=sum(update.bytes for update in updates) + sum(one.bytes for one in versions),
        stragglers=stragglers_of(known_costs) if known_costs else None,
    )


def tasks_of(tables: Tables) -> tuple[TaskResult, ...]:
    """Return the tasks whose updates count, by round and shard."""
    return tuple(
        _task(tables, number, shard)
        for number in sorted(tables.rounds)
        for shard in sorted(tables.rounds[number].accepted)
    )


def _task(tables: Tables, number: int, shard: int) -> TaskResult:
    of_round = tables.rounds[number]
    update = of_round.accepted[shard].updated
    assert update is not None  # noqa: S101 - it was accepted
    fields = {**dataclasses.asdict(update), "loss": _measured(update.loss), "round": number + 1}
    for name in _UNSHOWN:
        del fields[name]
    epoch = tables.meetings.epoch_of(number) + 1
    return TaskResult(epoch=epoch, retrained=shard in of_round.retrained, **fields)


def failures_of(tables: Tables) -> tuple[FailureResult, ...]:
    """Return the failed attempts, in order."""
    return tuple(
        FailureResult(
            epoch=tables.meetings.epoch_of(line.round) + 1,
            update_lost=update_lost,
            **{**dataclasses.asdict(line), "round": line.round + 1},
        )
        for line, update_lost in tables.failures
    )


def numeric_classes_of(tables: Tables) -> dict[str, tuple[str, ...]]:
    """Return the processes that computed in each numeric class, as far as the record shows."""
    device, trained = tables.spec.get("device"), tables.trained
    on_processor = device == CPU or (
        device == AUTO and any(f" on {CPU} (" in name for name in trained)
    )
    processes = {tables.drawn_with: [MANAGER]} if on_processor and trained else {}
    for name, workers in trained.items():
        processes.setdefault(name, []).extend(workers)
    return {name: tuple(several) for name, several in processes.items() if name}


def test_of(tables: Tables) -> TestResult | None:
    """Return the test results, if the epochs were evaluated on other examples."""
    if not tables.tested:
        return None
    _, tested = list(tables.tested.values())[-1]
    return TestResult(
        epoch=tables.meetings.epoch_of(tested.round) + 1,
        metrics=_finite(tested.metrics),
        class_accuracy=tuple(map(_measured, tested.class_accuracy)),
        loss=_measured(tested.loss),
    )


def best_of(tables: Tables, folder: Path | None) -> BestModel | None:
    """Return the best model so far, if the spec compares models."""
    best, goal = tables.improved, tables.spec.get("keep_best")
    if best is None:
        return None
    name = BEST_NAME if isinstance(tables.ended, FinishedLine) else best.file
    return BestModel(
        epoch=tables.meetings.epoch_of(best.round) + 1,
        metric=Goal.of(goal or LOSS).metric,
        value=best.value,
        file=folder / name if folder is not None and goal else None,
    )


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _measured(value) for name, value in metrics.items()}


def _measured(value: float) -> float | None:
    return value if math.isfinite(value) else None
