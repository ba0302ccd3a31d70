"""Records of experiments that were never run, as large as a test wants them."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from downpour.record import record_lines as told
from downpour.record.record import line_text
from tests.record import lines as made

MODEL_BYTES = 90_000
REASON = "next shard in order for the worker idle longest"


def large_record(
    workers: int, rounds: int, *, round_seconds: float = 10.0, start: float = 1_790_000_000.0
) -> Iterator[tuple[float, told.RecordLine]]:
    """Yield the record of an experiment in step: a shard a worker, four forecasts an attempt."""
    spec: dict[str, Any] = {"name": "large", "epochs": rounds, "mode": "sync"}
    spec |= {"policy": "wait", "aggregate": "average", "split": "random", "dataset": "mnist"}
    yield start, made.submitted(workers, **spec)
    for number in range(workers):
        name, address = f"worker-{number + 1}", f"10.0.{number // 250}.{number % 250 + 1}:9091"
        yield start, made.joined(name, address=address)
    yield start + 2, made.prepared(*(60,) * workers, classes=10, bytes=MODEL_BYTES)
    draw = random.Random(1)
    for number in range(rounds):
        begin = start + 2 + number * round_seconds
        yield from sorted(_round(workers, number, begin, round_seconds, draw), key=lambda at: at[0])
    yield start + 2 + rounds * round_seconds, made.finished(rounds * round_seconds)


def _round(
    workers: int, number: int, begin: float, seconds: float, draw: random.Random
) -> Iterator[tuple[float, told.RecordLine]]:
    for shard in range(workers):
        name = f"worker-{(shard + number) % workers + 1}"
        about: Any = {"round": number, "shard": shard, "attempt": 0, "worker": name}
        takes = seconds * draw.uniform(0.6, 0.9)
        band: Any = {"q10_seconds": 0.9 * takes, "q50_seconds": takes, "q90_seconds": 1.2 * takes}
        yield begin + draw.uniform(0, 0.2), told.AssignedLine(**about, reason=REASON, **band)
        for quarter in (1, 2, 3):
            elapsed = takes * quarter / 4
            foreseen = told.ForeseenLine(**about, done=quarter / 4, elapsed_seconds=elapsed, **band)
            yield begin + elapsed, foreseen
        samples = [
            told.Sample(begin + second, draw.uniform(0.5, 1.0), 300_000_000 + shard, 9, 0.01)
            for second in range(int(takes))
        ]
        yield begin + takes, told.ResourcesUsedLine(**about, samples=tuple(samples))
        update: Any = {"loss": draw.uniform(0.1, 2.0), "bytes": MODEL_BYTES}
        update |= {"train_seconds": 0.8 * takes, "completion_seconds": takes}
        yield begin + takes, made.updated(shard, worker=name, round=number, **update)
    closed, loss = begin + 0.95 * seconds, 2.3 / (number + 1)
    yield closed, made.aggregated(number, bytes=MODEL_BYTES, train_seconds=0.9 * seconds, loss=loss)
    yield closed, made.measured(number, 2.0 / (number + 1), *[1 - 0.9 / (number + 1)] * 10)


def texts(record: Iterator[tuple[float, told.RecordLine]]) -> Iterator[str]:
    """Yield the lines as a record has them, with their ends."""
    return (f"{line_text(at, line)}\n" for at, line in record)


def fields_of(record: Iterator[tuple[float, told.RecordLine]]) -> list[dict[str, Any]]:
    """Return the lines as a reader of the page gets them."""
    return [json.loads(text) for text in texts(record)]


def write_large(folder: Path, workers: int, rounds: int) -> Path:
    """Write a large record to an experiment's folder; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "record.jsonl").open("w") as file:
        file.writelines(texts(large_record(workers, rounds)))
    return folder / "record.jsonl"
