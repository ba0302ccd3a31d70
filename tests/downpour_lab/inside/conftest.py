"""The small dataset that the training loop's tests use."""

from tests.learning.training.conftest import dataset

__all__ = ["dataset"]
