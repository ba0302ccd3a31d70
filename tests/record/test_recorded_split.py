"""What a split did is read from the record alone; a record that does not say it has none."""

from __future__ import annotations

import dataclasses

import pytest

from downpour.record.record_lines import (
    PreparedLine,
    RecordLine,
    SubmittedLine,
)
from downpour.record.result_parts import split_of
from downpour.record.tables import Tables
from tests.specs import stored_spec

SUBMITTED = SubmittedLine(
    experiment="one", name="one", spec=stored_spec(split="class"), version="9", shards=2
)
PREPARED = PreparedLine(
    train_samples=12,
    test_samples=2,
    classes=3,
    shard_samples=(4, 6),
    prepare_seconds=0.5,
    split_seconds=0.25,
    bytes=7,
    parameters=3,
    shard_classes=((4, 0, 0), (0, 1, 5)),
    numeric_class="",
    dataset="",
    checksum="",
)


def record(*lines: RecordLine) -> list[tuple[float, RecordLine]]:
    """Date some lines."""
    return [(float(second), line) for second, line in enumerate(lines)]


def test_a_split_is_read_back() -> None:
    """Sizes, classes, and how many examples no shard holds."""
    split = split_of(Tables.of(record(SUBMITTED, PREPARED)))
    assert split is not None
    assert split.split == "class"
    assert split.sizes.tolist() == [4, 6]
    assert split.by_class.tolist() == [[4, 0, 0], [0, 1, 5]]
    assert split.held_out == 2
    assert split.unevenness == pytest.approx(1.5)


def test_what_the_record_does_not_say_is_not_there() -> None:
    """Not prepared yet, or too many classes to be on record."""
    old = dataclasses.replace(PREPARED, shard_classes=())
    assert split_of(Tables.of(record(SUBMITTED))) is None
    assert split_of(Tables.of(record(SUBMITTED, old))) is None
