"""Events are checked at birth."""

from __future__ import annotations

import pytest

from downpour.core.scheduler.events import AggregationFailed


def test_a_refusal_names_what_it_refuses() -> None:
    """Without a shard the round would stay complete, and never be aggregated."""
    with pytest.raises(ValueError, match="at least one shard"):
        AggregationFailed(at_seconds=0.0, experiment="one", round=0, reasons=())
