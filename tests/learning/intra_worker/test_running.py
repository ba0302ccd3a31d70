"""What a worker samples of itself holds its helpers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from downpour.cluster.worker.system import ProcessSampler
from downpour.learning.intra_worker.helper_process import PIDS
from tests.learning.intra_worker.conftest import Trainer


@pytest.mark.slow
def test_what_helpers_use_is_their_workers(trainer: Callable[..., Trainer]) -> None:
    """Memory, and no longer once they have ended."""
    sampler = ProcessSampler()
    alone = sampler.sample().memory_bytes
    _, team = trainer().helped()
    assert set(team.pids) <= PIDS
    assert sampler.sample().memory_bytes > alone + 50_000_000
    team.close()
    assert not PIDS & set(team.pids)
    assert sampler.sample().cpu_share >= 0
