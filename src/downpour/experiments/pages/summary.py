"""A single experiment in a few figures, for the top of its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from downpour.base.evaluations import LOSS
from downpour.experiments.reading.measures import Measure, first_of
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.study_result import RunResult
from downpour.experiments.reading.verification import NOT_VERIFIED


class Fact(NamedTuple):
    """A number, its meaning, and optionally a remark."""

    name: str
    value: str
    note: str = ""


def facts_of(run: RunResult) -> list[Fact]:
    """Return how good the model is, how long it took, and which workers trained it on what data."""
    result = run.result
    workers = {span.worker for span in run.attempt_spans}
    facts = [*_quality(result), *_course(result)]
    if workers:
        facts.append(Fact("workers", f"{len(workers):,}", _ends(run)))
    facts.append(Fact("shards", f"{result.shards:,}", f"split {result.spec.get('split', '')}"))
    if result.train_samples:
        note = f"{result.test_samples:,} test examples"
        facts.append(Fact("training examples", f"{result.train_samples:,}", note))
        model = str(result.spec.get("model", ""))
        facts.append(Fact("parameters", f"{result.parameters:,}", model))
    if result.verified is False:
        facts.append(Fact("repeatable", "not verified", NOT_VERIFIED.partition(": ")[2]))
    return facts


def _quality(result: Result) -> Iterator[Fact]:
    first = first_of(result.metrics, result.test_loss)
    if first is not None and first[0].name != LOSS:
        measure, value = first
        yield Fact(f"{result.last_part} {measure.words}", measure.text(value))
    losses = (r.train_loss for r in reversed(result.rounds))
    trained = next((loss for loss in losses if loss is not None), None)
    note = "" if trained is None else f"{Measure(LOSS).text(trained)} in training"
    if result.test_loss is not None:
        yield Fact(f"{result.last_part} loss", Measure(LOSS).text(result.test_loss), note)


def _course(result: Result) -> Iterator[Fact]:
    rounds, epochs = len(result.rounds), len(result.epochs)
    asked = result.spec.get("epochs", epochs)
    yield Fact(
        "epochs",
        f"{epochs:,}" if epochs == asked else f"{epochs:,} of {asked:,}",
        f"{rounds:,} round{'s' * (rounds != 1)}",
    )
    trained = f"{result.train_seconds:,.1f} s training"
    yield Fact("total time", f"{result.total_seconds:,.1f} s", trained)


def _ends(run: RunResult) -> str:
    """List the ends of attempts other than updates."""
    outcomes = [span.outcome for span in run.attempt_spans]
    moved, failed = outcomes.count("moved"), outcomes.count("failed")
    words = [f"{moved:,} moved on"] if moved else []
    words += [f"{failed:,} failed"] if failed else []
    return ", ".join(words) or f"{len(outcomes):,} attempts"
