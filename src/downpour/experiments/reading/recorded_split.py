"""Reads from an experiment's record how its split cut the training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from downpour.core.splitters.cut import ShardCounts
from downpour.files.records.record_lines import PreparedLine, RecordLine, SubmittedLine


def split_of(record: Sequence[tuple[float, RecordLine]]) -> ShardCounts | None:
    """Return how many examples of each class each shard has; None if the record does not say."""
    prepared = next((line for _, line in record if isinstance(line, PreparedLine)), None)
    if prepared is None or not prepared.shard_classes:
        return None
    submitted = next(line for _, line in record if isinstance(line, SubmittedLine))
    sizes = np.array(prepared.shard_samples, np.int64)
    return ShardCounts(
        split=str(submitted.spec["split"]),
        sizes=sizes,
        by_class=np.array(prepared.shard_classes, np.int64),
        held_out=prepared.train_samples - int(sizes.sum()),
    )
