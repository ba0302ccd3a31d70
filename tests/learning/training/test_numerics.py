"""What surrounds a computation, and what decides the bits of its results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from downpour.base.errors import OutOfMemory
from downpour.core.spec import Spec
from downpour.learning.numerics import Randomness, _processor, numeric_class, settings


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
