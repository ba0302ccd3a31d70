"""The main queries on recorded experiments give the stored values.

`UPDATE_QUERIES=1 pytest tests/record/test_queries.py` writes the values again, for review.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from downpour.record import rows
from downpour.record.record import read_record
from downpour.record.record_lines import Dated
from downpour.record.result import Result
from downpour.record.tables import Tables
from downpour.record.timeline import disturbed_seconds, resources
from downpour.record.view import to_fields
from downpour.show.dashboard.model import RecordTables
from tests.record.lines import costs_of

RECORDED = Path(__file__).parents[1] / "recorded"
STORED = sorted(record.parent.name for record in RECORDED.glob("*/record.jsonl"))


def short(value: Any) -> str:
    """A value as people read it; a number has five digits at most."""
    if isinstance(value, dict):
        return " ".join(f"{name} {short(inner)}" for name, inner in value.items())
    if isinstance(value, tuple | list):
        return f"({', '.join(map(short, value))})"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def counted(values: Iterator[Any]) -> str:
    """How often each value comes."""
    return short(dict(sorted(Counter(values).items()))) or "none"


def of_result(result: Result) -> Iterator[str]:
    """The rows of a result."""
    yield f"{result.experiment}: {result.state}, {short(result.total_seconds)} s"
    yield f"reason: {result.reason}"
    for row in result.rounds:
        yield (
            f"round {row.round}: train loss {short(row.train_loss)}, "
            f"{short(row.train_seconds)} s, {row.bytes} bytes"
        )
    yield f"last loss: {short(result.test_loss)}, metrics: {short(dict(result.metrics))}"
    yield f"tasks: {len(result.tasks)}, retrained: {sum(one.retrained for one in result.tasks)}"
    yield f"tasks by worker: {counted(one.worker for one in result.tasks)}"
    yield f"samples: {sum(one.samples for one in result.tasks)}"
    yield f"failures: {counted(one.failure for one in result.failures)}"
    yield f"updates refused or lost: {sum(one.update_lost for one in result.failures)}"


def of_timeline(result: Result, tables: Tables) -> Iterator[str]:
    """Attempts and workers over time."""
    yield f"attempts: {counted(one.outcome for one in result.spans)}"
    yield f"awaited by their rounds: {sum(one.last for one in result.spans)}"
    seconds = sum(one.end_seconds - one.begin_seconds for one in result.spans)
    yield f"seconds of attempts: {short(seconds)}"
    yield f"samples of resources: {sum(map(len, resources(tables).values()))}"
    yield f"disturbed: {short(disturbed_seconds(tables))}"
    yield from (f"worker: {change}" for change in result.worker_changes)


def of_versions(tables: Tables) -> Iterator[str]:
    """Versions, evaluations, and the cost of stragglers."""
    for number, version in tables.versions.items():
        tasks = " ".join(f"{of_round}/{shard}" for of_round, shard in version.updates)
        yield f"version {number}: at {short(version.at)}, of updates {tasks}"
    yield f"updates in no version: {short(list(tables.waiting))}"
    for number, (at, line) in tables.evaluated.items():
        yield f"evaluation of round {number}: at {short(at)}, loss {short(line.loss)}"
    for number, cost in costs_of(tables).items():
        yield f"cost of round {number}: {short(dataclasses.asdict(cost))}"


def of_page(record: list[Dated]) -> Iterator[str]:
    """The tables of the live page, and what it adds up."""
    model = RecordTables()
    for at, line in record:
        model.take({"at": at, **to_fields(line)})
    frame = model.since(0, model.line)
    yield f"page: {short(frame.pop('totals'))}"
    del frame["seq"], frame["experiment"]
    yield f"page rows: {short({name: len(rows) for name, rows in frame.items()})}"
    yield f"page ends: {counted(str(outcome) for *_, outcome in frame['ends'])}"
    yield from (f"page round: {short(row)}" for row in frame["rounds"])
    yield from (f"page decision: {short(row)}" for row in frame.get("decisions", ()))


@pytest.mark.parametrize("kept", [64, 0], ids="keeps {} rounds".format)
@pytest.mark.parametrize("name", STORED)
def test_queries_give_the_stored_values(
    name: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever changes in how a record is folded, and however soon a result forgets rounds."""
    monkeypatch.setattr(rows, "_ROUNDS_KEPT", kept)
    record = read_record(RECORDED / name / "record.jsonl")
    result, tables = Result.from_record(record), Tables.of(record)
    found = [*of_result(result), *of_timeline(result, tables), *of_versions(tables)]
    text = "\n".join([*found, *of_page(record)]) + "\n"
    stored = RECORDED / name / "queries.txt"
    if os.environ.get("UPDATE_QUERIES") == "1":
        stored.write_text(text, encoding="utf-8")
    assert text == stored.read_text(encoding="utf-8")
