"""What numerics depend on, and whom an error blames."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from downpour.base.errors import FileCorrupt, OutOfMemory, SpecError
from downpour.core.spec import Spec
from downpour.learning import numerics
from downpour.learning.blame import describe_error, is_lack_of_memory
from downpour.learning.numerics import (
    Randomness,
    _processor,
    lack_of_memory,
    numeric_class,
    settings,
)
from downpour.learning.training.step import Shortage, kept_on_host


def test_a_lack_of_memory_is_called_by_its_name() -> None:
    """What torch says of an allocation that cannot be becomes OutOfMemory, in one line."""
    with pytest.raises(OutOfMemory) as error, settings(Spec.make({})):
        torch.empty(1 << 58)
    assert "\n" not in str(error.value)


def test_other_errors_pass() -> None:
    """A defect stays what it is."""
    with pytest.raises(RuntimeError, match="shape"), settings(Spec.make({})):
        torch.zeros(3).reshape(2)


def test_threads_are_the_spec_s_inside_and_the_process_s_outside() -> None:
    """Also after an error."""
    outside, inside = torch.get_num_threads(), []

    def fail() -> None:
        with settings(Spec.make({"threads": 2})):
            inside.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside == [2]
    assert torch.get_num_threads() == outside


def test_a_step_draws_the_same_wherever_it_is_taken() -> None:
    """Its generators follow from the task's seed and its number; the process's own go on."""
    one, two = Randomness(1, "cpu"), Randomness(1, "cpu")
    torch.manual_seed(3)
    outside = torch.get_rng_state()
    drawn = []
    for step in range(3):
        with one.active():
            one.begin(step)
            drawn.append(torch.rand(2))
    assert torch.equal(torch.get_rng_state(), outside)
    with two.active():
        two.begin(2)
        assert torch.equal(torch.rand(2), drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_one_machine_is_one_numeric_class() -> None:
    """Two workers of one machine with the same torch and device are of the same class."""
    assert numeric_class("cpu") == numeric_class("cpu")
    assert numeric_class("cpu").torch.startswith(str(torch.__version__))


@pytest.mark.parametrize(
    "variable", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR"]
)
def test_variables_of_torch_are_part_of_the_class(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Each of these variables changes bytes; one that is not set is not named."""
    monkeypatch.delenv(variable, raising=False)
    before = numeric_class("cpu")
    assert variable not in str(before)
    monkeypatch.setenv(variable, "AVX2")
    assert numeric_class("cpu") != before
    assert f"{variable}=AVX2" in numeric_class("cpu").instruction_set


def test_the_instructions_of_torch_are_part_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the processor could do."""
    before = numeric_class("cpu")
    assert torch.backends.cpu.get_cpu_capability() in before.instruction_set
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    assert numeric_class("cpu") != before


@pytest.mark.parametrize(
    ("info", "named"),
    [
        (
            "vendor_id : AuthenticAMD\nflags : fpu avx2 sse\n\nvendor_id : x",
            ["AuthenticAMD", "avx2"],
        ),
        ("CPU implementer\t: 0x41\nFeatures\t: asimd sve", ["0x41", "asimd sve"]),
        ("", ["unknown vendor", ""]),
    ],
)
def test_the_vendor_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch, info: str, named: list[str]
) -> None:
    """MKL chooses by it; x86 and Arm name theirs differently."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: info)
    assert _processor() == named


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


def test_draws_are_those_of_a_manual_seed_and_the_state_before_comes_back() -> None:
    """So models of earlier versions are drawn alike."""
    torch.manual_seed(7)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    following = torch.rand(3)
    torch.manual_seed(1)
    with numerics.seeded(7):
        assert torch.equal(torch.rand(3), drawn)
        first = random.random(), np.random.rand()  # noqa: NPY002 - it is the global one
    with numerics.seeded(7):
        assert (random.random(), np.random.rand()) == first  # noqa: NPY002
    assert torch.equal(torch.rand(3), following)


def test_seeding_again_and_again_takes_no_memory() -> None:
    """Torch would keep a call, with its stack, for every kind of device that was never used."""
    before = len(torch.cuda._queued_calls)
    for number in range(3):
        with numerics.seeded(number):
            pass
    if not torch.cuda.is_available():
        assert len(torch.cuda._queued_calls) == before


def test_the_innermost_line_outside_of_libraries_is_named() -> None:
    """Torch's frames and the standard library's lie further in, and say nothing to the user."""
    with pytest.raises(RuntimeError) as torchs:
        torch.nn.Linear(2, 2)(torch.zeros(3))
    assert describe_error(torchs.value).startswith("RuntimeError: ")
    assert "(test_numerics.py:" in describe_error(torchs.value)
    assert describe_error(torchs.value).endswith(
        "in test_the_innermost_line_outside_of_libraries_is_named)"
    )
    with pytest.raises(json.JSONDecodeError) as pythons:
        json.loads("{")
    assert "(test_numerics.py:" in describe_error(pythons.value)


def test_an_error_of_downpour_stays_unchanged() -> None:
    """It names field and value already."""
    error = SpecError("model", "lab:Net", "is none")
    assert describe_error(error) == str(error)
    assert describe_error(FileCorrupt("a\nb\udcff", "is cut")) == r"a b\udcff: is cut"


def test_a_long_error_is_one_line() -> None:
    """Also where it says nothing, and where it was never raised."""
    line = describe_error(ValueError("first\nsecond  third " + "x" * 10_000))
    assert line.startswith("ValueError: first second third x")
    assert "\n" not in line
    assert len(line) < 500
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(AssertionError()) == "AssertionError"
