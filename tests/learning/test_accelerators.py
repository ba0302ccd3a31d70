"""What torch says of this machine, which may have no accelerator at all."""

from __future__ import annotations

import sys

import psutil
import pytest
import torch

from downpour.learning.accelerators import card_of, devices_here, in_use, release, seeded


def test_this_machine_has_what_torch_finds() -> None:
    """The best of it is what torch calls the accelerator."""
    here = devices_here()
    found = torch.accelerator.current_accelerator(check_available=True)
    assert here.best == (found.type if found is not None else "cpu")
    assert here.has("cuda") == torch.cuda.is_available()


def test_a_device_without_a_number_is_what_torch_has_in_use() -> None:
    """So nothing is changed, and a machine without it is not asked."""
    for device in ("cpu", "cuda", "mps", "xpu"):
        with in_use(device):
            pass
    assert card_of("cpu") == []


@pytest.mark.skipif(not devices_here().accelerators, reason="this machine has no accelerator")
def test_an_accelerators_draws_follow_the_seed() -> None:
    """As those of the CPU do."""
    drawn = []
    for _ in range(2):
        with seeded(7):
            drawn.append(torch.rand(3, device=devices_here().best).tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc gives back what lies in between")
def test_memory_between_what_is_in_use_is_given_back() -> None:
    """As after a trial, whose networks are gone, but not what came after them."""
    blocks = [bytearray(100_000) for _ in range(1000)]
    del blocks[:-1]
    before = psutil.Process().memory_info().rss
    release("cpu")
    assert psutil.Process().memory_info().rss < before - 50_000_000
