"""The numeric class of this process: every known fact that decides the bits of results.

Torch and the libraries under it choose kernels by the processor, its vendor and environment
variables, and the kernels differ in the order of their sums. So the class has the instructions that
torch reports to use, not all instructions of the processor.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
import xxhash

from downpour.base.devices import Device
from downpour.base.values import NumericClass
from downpour.learning.accelerators import card_of

_WIDE = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
_DECISIVE = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_MPS_FAST_MATH",
    "PYTORCH_MPS_PREFER_METAL",
    "PYTORCH_ENABLE_MPS_FALLBACK",
)


def numeric_class(device: str) -> NumericClass:
    """Return the class of this process, for training on a device.

    Which of several equal cards it is decides no bit, so the class has the kind and the card.
    """
    uses = torch.backends.cpu.get_cpu_capability()
    parts = [platform.machine(), *_processor(), f"torch uses {uses}"]
    parts += card_of(device)
    parts += [f"{name}={os.environ[name]}" for name in _DECISIVE if name in os.environ]
    return NumericClass(
        torch=f"{torch.__version__} build {_build()}",
        device=Device.of(device).kind,
        instruction_set=", ".join(parts),
    )


def _build() -> str:
    """Return a short digest of how torch was built: compiler, MKL, oneDNN, CUDA."""
    # Without the instructions in use: they are a separate part, and a variable may change them.
    lines = torch.__config__.show().splitlines()
    lasting = "\n".join(line for line in lines if "CPU capability usage" not in line)
    return xxhash.xxh3_64_hexdigest(lasting.encode())[:8]


def _processor() -> list[str]:
    """Return the processor's vendor and its wide instructions, as Linux lists them."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return [platform.processor()] if platform.processor() else []
    fields: dict[str, str] = {}
    for line in info.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or "unknown vendor"
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return [vendor, " ".join(name for name in _WIDE if name in flags)]
