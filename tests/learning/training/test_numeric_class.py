"""What decides the bits of results is in the numeric class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from downpour.learning.training.numerics import _processor, numeric_class


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
