"""Tables about the inside of runs: the classes in their shards, and each worker's work."""

from __future__ import annotations

from collections import Counter

from downpour.experiments.reading.study_result import RunResult, SubgridResult, natural
from downpour.experiments.reading.timeline import AttemptSpan
from downpour.experiments.tables.table import Cell, Column, Table

WORKERS_NAME = "workers"
"""The name of a table that belongs to no subgrid; other tables are named after their subgrids."""


def shards(subgrid: SubgridResult) -> Table:
    """Return the examples of each shard, and of each class in it, for each split of the runs."""
    splits = subgrid.splits
    count, is_alone = max(split.classes for split in splits), len(splits) == 1
    rows: list[tuple[Cell, ...]] = []
    for split in splits:
        measured = zip(split.sizes, split.distances, split.by_class.tolist(), strict=True)
        for shard, (size, distance, by_class) in enumerate(measured):
            rest = [None] * (count - len(by_class))
            name = () if is_alone else (split.split,)
            rows.append((*name, shard, int(size), float(distance), *by_class, *rest))
    columns = (
        *(() if is_alone else (Column("split", "split"),)),
        Column("shard", "shard", 0),
        Column("examples", "examples", 0),
        Column("distance", "distance", 2),
        *(Column(f"class_{c}", f"class {c}", 0) for c in range(count)),
    )
    title = f"{subgrid.name}: examples of each class in each shard, and its distance from all data"
    return Table(f"{subgrid.name}-shards", title, columns, tuple(rows), subgrid.name)


def workers(run: RunResult) -> Table:
    """Return each worker's work in a run: its attempts by their ends, and its training time."""
    by_worker: dict[str, list[AttemptSpan]] = {}
    for span in run.attempt_spans:
        by_worker.setdefault(span.worker, []).append(span)
    whole = max((span.end_seconds for span in run.attempt_spans), default=0.0)
    rows: list[tuple[Cell, ...]] = []
    for worker in sorted(by_worker, key=natural):
        spans = by_worker[worker]
        ends = Counter(span.outcome for span in spans)
        busy = sum(span.end_seconds - span.begin_seconds for span in spans)
        rows.append(
            (
                worker,
                ends["trained"],
                sum(span.last for span in spans),
                ends["moved"],
                ends["failed"],
                busy,
                100 * busy / whole if whole else None,
            )
        )
    columns = (
        Column("worker", "worker"),
        Column("trained", "trained", 0),
        Column("waited_for", "waited for", 0),
        Column("moved", "moved on", 0),
        Column("failed", "failed", 0),
        Column("busy_seconds", "busy s", 2),
        Column("busy_percent", "busy %", 1),
    )
    return Table(WORKERS_NAME, "Attempts of each worker", columns, tuple(rows))
