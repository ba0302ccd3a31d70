"""The mean that attends more to higher losses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from downpour.base.errors import UpdatesRefused
from downpour.files.aggregators import AGGREGATORS


def test_higher_losses_count_more(imagine: Any) -> None:
    """A shard with three times the loss has three times the say."""
    assert AGGREGATORS["weighted"]([imagine(0, loss=0.5), imagine(1, loss=1.5)]) == (0.25, 0.75)


def test_losses_of_zero_count_the_same(imagine: Any) -> None:
    """Where all is learned, the mean is plain."""
    assert AGGREGATORS["weighted"]([imagine(0, loss=0.0), imagine(1, loss=0.0)]) == (0.5, 0.5)


@pytest.mark.parametrize("loss", [-0.1, math.nan, math.inf, -math.inf])
def test_losses_that_are_no_weights_are_refused(imagine: Any, loss: float) -> None:
    """All shards with such a loss are named, and only they."""
    parts = [imagine(0, loss=loss), imagine(1), imagine(2, loss=loss)]
    with pytest.raises(UpdatesRefused, match=r"shard 0: loss .* cannot be a weight") as refusal:
        AGGREGATORS["weighted"](parts)
    assert set(refusal.value.reasons) == {0, 2}
