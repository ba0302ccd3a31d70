"""The rows of a result, as queries on the tables of its record.

A long experiment has millions of tasks. So these rows are packed, and we forget a round's lines
once the round is over.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self, cast, get_args

import msgspec

from downpour.base.names import AUTO, CPU
from downpour.base.states import LOSS, ExperimentState, Goal
from downpour.core.spec import Meetings
from downpour.files.store.layout import BEST_NAME
from downpour.record import record_lines as told
from downpour.record.record_lines import MaybeKnown
from downpour.record.result_parts import (
    BestModel,
    FailureResult,
    RoundResult,
    TaskResult,
    TestResult,
)
from downpour.record.tables import (
    MANAGER,
    Outcome,
    Packed,
    RecordedRound,
    RoundForgottenError,
    Tables,
)
from downpour.record.timeline import AttemptSpan, Cost, cost_of, span_fields, span_of, stragglers_of

_ROUNDS_KEPT = 64
"""Rounds that are over, and about which lines may still come, such as that of a stopped copy."""
UNUSED = frozenset({"resources-used", "explained"})
"""Kinds of lines without which a result is the same."""
_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_OF_UPDATE = {
    **dict.fromkeys(("round", "shard", "attempt", "samples", "steps"), "i"),
    **dict.fromkeys(("loss", "load_seconds", "train_seconds", "publish_seconds"), "d"),
    "completion_seconds": "d",
    "bytes": "q",
    "processes": "i",
    "shortages": "i",
}
"""The columns of tasks that come from an update, and their types in a `struct`."""
_BY_BEGIN = 3, 1
"""The places of a span's begin and shard."""
_of_update = attrgetter(*_OF_UPDATE)


class _RoundRow(NamedTuple):
    """A round that has become a model; `losses` sums up the losses of its samples."""

    number: int
    samples: int
    losses: float
    loss: float
    train_seconds: float
    aggregate_seconds: float
    bytes: int
    cost: Cost | None = None


class Rows:
    """The rows of rounds, tasks and attempts, in this order of the rounds.

    `update_bytes` and `step_bytes` are the sizes of the largest update, and of the largest version
    that is a step. `retrained` counts tasks. Without `details`, there are no tasks and no attempts.
    """

    def __init__(self, tables: Tables, *, details: bool = True) -> None:
        self.tables = tables
        self._details = details
        self.rounds: dict[int, _RoundRow] = {}
        self.tasks: Packed[TaskResult] = Packed("?" + "".join(_OF_UPDATE.values()))
        self.spans: Packed[AttemptSpan] = Packed("iiiddB?")
        self._paces: dict[str, float] = {}
        self.update_bytes = self.step_bytes = self.retrained = 0

    @classmethod
    def of(cls, record: Callable[[], Iterable[MaybeKnown]], *, details: bool = True) -> Self:
        """Fold a record; we read it again if a line is about a round that was over long ago."""
        rows = cls(Tables(), details=details)
        rows.tables.forgotten = rows.rounds
        try:
            for at, line in record():
                rows.tables.take(at, line)
                if isinstance(line, told.AggregatedLine):
                    rows._forget()
            return rows.finished()
        except RoundForgottenError:
            return cls(Tables.of(record()), details=details).finished()

    def finished(self) -> Self:
        """Add the rounds that are still in the tables, and return this."""
        for number in sorted(self.tables.rounds):
            self._add(self.tables.rounds[number])
        self.tasks.make = partial(_task, self.tables.meetings)
        self.spans.make = partial(_span, self.tables.start)
        return self

    def attempt_spans(self) -> Sequence[AttemptSpan]:
        """Return the attempts in the order in which they began."""
        self.spans.sort(*_BY_BEGIN)
        return self.spans

    def _forget(self) -> None:
        rounds = self.tables.rounds
        self.tables.versions.clear()
        while len(rounds) > _ROUNDS_KEPT:
            oldest = next(iter(rounds.values()))  # rounds begin in order
            if oldest.version is None:
                return
            self._add(oldest)
            del rounds[oldest.number]

    def _add(self, of_round: RecordedRound) -> None:
        number, version = of_round.number, of_round.version
        updates = [one.updated for _, one in sorted(of_round.accepted.items()) if one.updated]
        self.update_bytes = max([self.update_bytes, *[update.bytes for update in updates]])
        self.retrained += len(of_round.retrained & of_round.accepted.keys())
        for update in updates if self._details else ():
            self.tasks.add(update.worker, update.shard in of_round.retrained, *_of_update(update))
        spans = span_fields(of_round, self.tables.now) if self._details else ()
        for worker, *numbers, outcome, last in spans:
            self.spans.add(worker, *numbers, _OUTCOMES.index(outcome), last)
        if version is not None:
            row = _row(self.tables, of_round, version)
            cost = cost_of(self.tables, of_round, self._paces)
            self.rounds[number] = row._replace(cost=cost)
            self.step_bytes = max(self.step_bytes, 0 if version.whole else version.bytes)


def _task(meetings: Meetings, worker: str, retrained: bool, *numbers: Any) -> TaskResult:  # noqa: FBT001
    fields = dict(zip(_OF_UPDATE, numbers, strict=True))
    fields |= {"round": fields["round"] + 1, "loss": _measured(fields["loss"])}
    epoch = meetings.epoch_of(numbers[0]) + 1
    return TaskResult(epoch=epoch, worker=worker, retrained=retrained, **fields)


def _span(start: float, *fields: Any) -> AttemptSpan:
    *others, outcome, last = fields
    return span_of(start, (*others, _OUTCOMES[outcome], last))


def _row(tables: Tables, of_round: RecordedRound, version: told.AggregatedLine) -> _RoundRow:
    updates = tables.updates(of_round.number)
    return _RoundRow(
        number=of_round.number,
        samples=sum([update.samples for update in updates]),
        losses=sum([update.samples * update.loss for update in updates]),
        loss=version.loss,
        train_seconds=version.train_seconds,
        aggregate_seconds=version.seconds,
        bytes=sum([update.bytes for update in updates]) + version.bytes,
    )


def state_of(tables: Tables) -> ExperimentState:
    """Return the state that the lines show."""
    if tables.ended is not None:
        return ExperimentState(told.kind_of(tables.ended))
    if not tables.begun:
        return ExperimentState.WAITING
    return ExperimentState.RUNNING if tables.prepared else ExperimentState.PREPARING


def reason_of(rows: Rows) -> str | None:
    """Return why the experiment ended, if it did so before its last epoch; or that it is paused."""
    tables = rows.tables
    if isinstance(tables.ended, told.FinishedLine):
        is_early = len(rows.rounds) < tables.meetings.rounds
        return tables.ended.reason if is_early and tables.submitted is not None else None
    if tables.paused and tables.ended is None:
        return "paused"
    return tables.ended.reason if tables.ended is not None else None


def rounds_of(rows: Rows, *, with_costs: bool) -> tuple[RoundResult, ...]:
    """Return the rounds that have become a model, perhaps with the costs of their stragglers."""
    return tuple(_merged(rows.tables, [row], with_costs=with_costs) for row in rows.rounds.values())


def epochs_of(rows: Rows, *, with_costs: bool) -> tuple[RoundResult, ...]:
    """Return the epochs: the sums over their rounds, and how good their last models are."""
    epoch_of = rows.tables.meetings.epoch_of
    by_epoch = groupby(rows.rounds.values(), key=lambda row: epoch_of(row.number))
    return tuple(_merged(rows.tables, [*several], with_costs=with_costs) for _, several in by_epoch)


def epoch_until(tables: Tables, number: int) -> RoundResult:
    """Return a round's epoch up to this round, without the cost of stragglers."""
    epoch_of = tables.meetings.epoch_of
    rounds = [one for each, one in sorted(tables.rounds.items()) if each <= number]
    own = (one for one in rounds if epoch_of(one.number) == epoch_of(number))
    return _merged(tables, [_row(tables, one, one.version) for one in own if one.version])


def _merged(tables: Tables, rows: Sequence[_RoundRow], *, with_costs: bool = False) -> RoundResult:
    """Merge rounds of one epoch into one."""
    last = rows[-1] if len(rows) == 1 else _summed(rows)
    _, evaluated = tables.evaluated.get(last.number, (0.0, None))
    costs = [row.cost for row in rows if with_costs and row.cost is not None]
    return RoundResult(
        epoch=tables.meetings.epoch_of(last.number) + 1,
        round=last.number + 1,
        metrics=_finite(evaluated.metrics) if evaluated else {},
        class_accuracy=_all_measured(evaluated.class_accuracy) if evaluated else (),
        train_loss=_measured(last.loss),
        test_loss=_measured(evaluated.loss) if evaluated else None,
        train_seconds=last.train_seconds,
        aggregate_seconds=last.aggregate_seconds,
        evaluate_seconds=evaluated.seconds if evaluated else 0.0,
        bytes=last.bytes,
        stragglers=stragglers_of(costs) if costs else None,
    )


def _summed(rows: Sequence[_RoundRow]) -> _RoundRow:
    samples, losses = sum(row.samples for row in rows), sum(row.losses for row in rows)
    return _RoundRow(
        number=rows[-1].number,
        samples=samples,
        losses=losses,
        loss=losses / (samples or 1),
        train_seconds=sum(row.train_seconds for row in rows),
        aggregate_seconds=sum(row.aggregate_seconds for row in rows),
        bytes=sum(row.bytes for row in rows),
    )


class StepPoint(NamedTuple):
    """Numbers by name after a stretch of steps; `step` counts those of the whole training."""

    step: int
    scalars: dict[str, float]


class StepCurve:
    """Turns the updates of a record's rounds into points, as the rounds close.

    A point is a mean over the shards. A round has as many steps as its longest task, and a shorter
    one counts at the same share of its steps. Before a resumed experiment, we assume its own steps.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._round = self._step = 0

    def points(self) -> Iterator[StepPoint]:
        """Yield the points of the rounds that have closed since the last call."""
        while (of_round := self._tables.rounds.get(self._round)) and of_round.closed is not None:
            updates = self._tables.updates(self._round)
            steps = max((update.steps for update in updates), default=0)
            if self._round == 0:
                self._step = self._tables.meetings.before * steps
            told = [one for one in updates if one.samples and one.step_losses]
            curves = [[*zip(one.step_losses, one.step_rates, strict=False)] for one in told]
            count = max(map(len, curves), default=0)
            for place in range(count):
                found = zip(*[curve[place * len(curve) // count] for curve in curves], strict=True)
                means = (fmean(each, [one.samples for one in told]) for each in found)
                scalars = dict(zip(("step/loss", "step/learning_rate"), means, strict=True))
                yield StepPoint(self._step - (-steps * (place + 1) // count), scalars)
            self._round, self._step = self._round + 1, self._step + steps


def failures_of(tables: Tables) -> tuple[FailureResult, ...]:
    """Return the failed attempts, in order."""
    return tuple(
        FailureResult(
            epoch=tables.meetings.epoch_of(line.round) + 1,
            update_lost=update_lost,
            **{**msgspec.structs.asdict(line), "round": line.round + 1},
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
        class_accuracy=_all_measured(tested.class_accuracy),
        loss=_measured(tested.loss),
    )


def best_of(tables: Tables, folder: Path | None) -> BestModel | None:
    """Return the best model so far, if the spec compares models."""
    best, goal = tables.improved, tables.spec.get("keep_best")
    if best is None:
        return None
    name = BEST_NAME if isinstance(tables.ended, told.FinishedLine) else best.file
    return BestModel(
        epoch=tables.meetings.epoch_of(best.round) + 1,
        metric=Goal.of(goal or LOSS).metric,
        value=best.value,
        file=folder / name if folder is not None and goal else None,
    )


# The line's own dictionary and tuple, if we can: a long experiment has one for each round.
def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    if all(map(math.isfinite, metrics.values())):
        return cast("dict[str, float | None]", metrics)
    return {name: _measured(value) for name, value in metrics.items()}


def _all_measured(values: tuple[float, ...]) -> tuple[float | None, ...]:
    return values if all(map(math.isfinite, values)) else tuple(map(_measured, values))


def _measured(value: float) -> float | None:
    return value if math.isfinite(value) else None
