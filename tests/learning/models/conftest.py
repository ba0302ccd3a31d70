"""Facts of the datasets that the networks are tried on."""

from typing import Any

from downpour.base.values import DatasetFacts

GRAY28 = (1, 28, 28)


def facts_of(shape: tuple[int, ...] = GRAY28, classes: int = 10, **fields: Any) -> DatasetFacts:
    """Return the facts of a small dataset."""
    return DatasetFacts(
        train_samples=100, test_samples=20, sample_shape=shape, classes=classes, **fields
    )
