"""What each shard has, and what each worker did."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from downpour.core.splitters import ShardCounts
from downpour.show.tables.report_tables import shards, tables_of, workers
from tests.show.conftest import Make


def counts(split: str, *by_class: list[int]) -> ShardCounts:
    """Make shards of so many examples of each class."""
    table = np.array(by_class, np.int64)
    return ShardCounts(split=split, sizes=table.sum(axis=1), by_class=table, held_out=0)


def test_each_shard_is_a_row(make: Make) -> None:
    """Its examples, how far it is from all data, and the examples of each class."""
    run = make.run([0.5], split=counts("class", [4, 0], [0, 4]))
    table = shards(make.subgrid(settings=[()], runs=[run]))
    assert [column.key for column in table.columns][:3] == ["shard", "examples", "distance"]
    assert table.rows == ((0, 4, 0.5, 4, 0), (1, 4, 0.5, 0, 4))


def test_splits_that_are_compared_are_named(make: Make) -> None:
    """Each once, whatever else differs; fewer classes leave cells empty."""
    values = [("class", 1), ("class", 2), ("random", 1)]
    splits = [counts("class", [4, 0, 1])] * 2 + [counts("random", [2, 3])]
    runs = [
        make.run([0.5], values=one, split=split) for one, split in zip(values, splits, strict=True)
    ]
    table = shards(make.subgrid(axes=("split", "n"), settings=values, runs=runs))
    assert [row[0] for row in table.rows] == ["class", "random"]
    assert table.rows[1][-1] is None


def test_each_worker_is_a_row(make: Make) -> None:
    """Its attempts by their ends, and how much of the run it trained."""
    spans = list(make.spans(2))
    spans[0] = replace(spans[0], outcome="moved")
    run = make.run([0.5], spans=tuple(spans))
    rows = workers(run.result).rows
    assert [row[:5] for row in rows] == [("worker-1", 3, 0, 1, 0), ("worker-2", 4, 2, 0, 0)]
    busy, share = rows[1][5:]
    assert busy == pytest.approx(3.6)
    assert share == pytest.approx(100 * 3.6 / 11.9)


def test_tables_of_what_is_not_known_are_left_out(make: Make) -> None:
    """Shards where no record counts their classes, and workers where there are several runs."""
    one = make.subgrid(settings=[()], runs=[make.run([0.5])], repetitions=1)
    assert not {"splits-shards"} & {table.name for table in tables_of(make.study(one))}
    assert "workers" in [table.name for table in tables_of(make.study(one))]
    assert "workers" not in [table.name for table in tables_of(make.study(make.splits()))]
