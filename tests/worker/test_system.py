"""What a worker says of its machine."""

from __future__ import annotations

from downpour.worker.system import SystemSampler, numeric_class


def test_shares_are_shares() -> None:
    """Whatever happens between two samples, shares stay within 0 and 1."""
    sampler = SystemSampler()
    for _ in range(3):
        state = sampler.sample()
        for share in (state.cpu_others, state.memory_used, state.io_wait):
            assert 0.0 <= share <= 1.0
        assert state.load_average >= 0.0


def test_one_machine_is_one_numeric_class() -> None:
    """Two workers of one machine with the same torch and device are of the same class."""
    assert numeric_class("2.9", "cpu") == numeric_class("2.9", "cpu")
    assert numeric_class("2.9", "cpu") != numeric_class("2.9", "cuda")
