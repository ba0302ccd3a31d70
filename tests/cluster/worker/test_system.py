"""What a worker says of its machine."""

from __future__ import annotations

import time
from threading import Event, Thread

from downpour.cluster.worker.system import SystemSampler


def test_shares_are_shares() -> None:
    """Whatever happens between two samples, shares stay within 0 and 1."""
    sampler = SystemSampler()
    for _ in range(3):
        state, _ = sampler.sample()
        for share in (state.cpu_others, state.memory_used, state.io_wait):
            assert 0.0 <= share <= 1.0
        assert state.load_average >= 0.0


def test_a_process_tells_its_resources() -> None:
    """Processor time since the look before, as a share of one core; memory; threads."""
    sampler = SystemSampler()
    began = time.process_time()
    while time.process_time() < began + 0.05:
        pass
    _, busy = sampler.sample()
    assert busy.cpu_share > 0
    assert busy.memory_bytes > 1_000_000
    release = Event()
    thread = Thread(target=release.wait)
    thread.start()
    assert sampler.sample()[1].threads == busy.threads + 1
    release.set()
    thread.join()
