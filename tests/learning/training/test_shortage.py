"""Too little memory of an accelerator, which a fake stands for: what is tried again, and how often.

What only hardware can show is in `tests/devices/test_memory.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from downpour.base.errors import OutOfMemory
from downpour.core.spec import Spec
from downpour.learning.blame import is_lack_of_memory
from downpour.learning.numerics import lack_of_memory, settings
from downpour.learning.training.step import Shortage, kept_on_host

CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 77 GiB memory in use. "
    "If reserved but unallocated memory is large try setting expandable_segments:True"
)


@pytest.mark.parametrize(
    "said",
    [
        CUDA,
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "MPS backend out of memory (MPS allocated: 17.00 GB, max allowed: 18.13 GB)",
        "Invalid buffer size: 1024.00 GiB",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_every_kind_of_device_says_it_in_its_own_words(said: str) -> None:
    """All become OutOfMemory, in a line that people read to its end."""
    assert is_lack_of_memory(RuntimeError(said))
    with pytest.raises(OutOfMemory) as error, lack_of_memory():
        raise RuntimeError(f"{said}\nException raised from malloc")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 180
    assert not is_lack_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


def test_an_accelerator_is_given_two_more_tries_and_a_processor_none() -> None:
    """The second keeps activations on the host; after it there is nothing left to try."""
    of_device = Shortage("cuda")
    tried = []
    while of_device.may_try_again():
        tried.append(of_device.spills)
    assert (tried, of_device.count) == ([False, True], 2)
    assert not Shortage("cpu").may_try_again()


def test_kernels_that_repeat_are_asked_for_where_a_spec_wants_that() -> None:
    """Only for the time of a training, and only on accelerators: the processor's bytes stay."""
    seen = {}
    filling: Any = torch.utils.deterministic
    for device in ("cpu", "cuda", "mps"):
        for repeatable in (True, False):
            with settings(Spec.make({"device": device, "repeatable": repeatable})):
                seen[device, repeatable] = torch.get_deterministic_debug_mode()
                filled = filling.fill_uninitialized_memory
                assert filled == (seen[device, repeatable] == 0)
    with settings(Spec.make({"device": "cuda"}), strict=True):
        assert torch.get_deterministic_debug_mode() == 2
    assert {asked for asked, mode in seen.items() if mode} == {("cuda", True), ("mps", True)}
    assert torch.get_deterministic_debug_mode() == 0
    assert filling.fill_uninitialized_memory


def test_host_tensors_stay_on_the_host() -> None:
    """The gradient is what it is without; nothing is copied."""
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    x = torch.randn(4, 8)
    gradients: list[list[torch.Tensor]] = []
    for spills in (False, True):
        network.zero_grad()
        if spills:
            with kept_on_host(network):
                loss = network(x).sum()
                loss.backward()
        else:
            network(x).sum().backward()
        gradients.append([one.grad.clone() for one in network.parameters() if one.grad is not None])
    assert len(gradients[0]) == 4
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
