"""Machines that have little in common train one model."""

from __future__ import annotations

import pytest

from tests.lab.lab import why_not
from tests.lab.mixed import MACHINES, train, trained_alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS = 3


def test_unequal_machines_train_to_the_bytes_of_one() -> None:
    """A slow host, a small one, one with a label that a shard needs, and one without the code."""
    if reason := why_not("folder"):
        pytest.skip(reason)
    mixed = train(EPOCHS)
    assert mixed.model == trained_alone(EPOCHS)
    assert len(mixed.rounds_seconds) == EPOCHS
    assert all(name in mixed.accounts[-1] for name in MACHINES)
