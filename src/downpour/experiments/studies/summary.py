"""A run's summary: the data that progress lines and programs need, without its record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from downpour.base.errors import FileCorrupt
from downpour.base.evaluations import LOSS
from downpour.base.states import ExperimentState
from downpour.experiments.reading import Result
from downpour.experiments.reading.measures import in_words
from downpour.experiments.reading.result_parts import RoundResult

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
        """Read what `to_json` wrote.

        Raises:
            FileCorrupt: the text is anything else.
        """
        try:
            return _READER.validate_python(_of_this_version(json.loads(text)))
        except (ValueError, TypeError, AttributeError):
            raise FileCorrupt(source, "not the summary of a run") from None

    def to_json(self) -> str:
        """Write the summary as indented JSON."""
        # Without `allow_nan=False`, other readers could get NaN, which is invalid JSON.
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False) + "\n"


def _of_this_version(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a summary; earlier versions had only the accuracy of each epoch."""
    former = fields.get("epoch_accuracy")
    if former is None:
        return fields
    return {**fields, "epochs": [{} if one is None else {"accuracy": one} for one in former]}


def _measured(epoch: RoundResult) -> Measured:
    loss = {} if epoch.test_loss is None and not epoch.metrics else {LOSS: epoch.test_loss}
    return {**epoch.metrics, **loss}


def _failure(result: Result) -> str | None:
    """Return the kind of the failed attempt that failed the experiment; None if none did."""
    last = result.failures[-1] if result.failures else None
    names_it = last is not None and (result.reason or "").endswith(last.reason)
    return last.failure if last and names_it and result.state == "failed" else None


_READER = TypeAdapter(RunSummary)
