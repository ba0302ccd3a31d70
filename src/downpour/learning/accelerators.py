"""Which devices this machine has: the one place that asks torch, and knows how torch names its own.

Asking initializes no device. The result holds as long as the process, whose environment decides
what torch sees.
"""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from downpour.base.devices import Device, Devices


@cache
def devices_here() -> Devices:
    """Return the accelerators that torch finds, the best first."""
    found = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "xpu": torch.xpu.device_count() if torch.xpu.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    return Devices({kind: count for kind, count in found.items() if count})


def in_use(device: str) -> AbstractContextManager[Any]:
    """Return a context in which a device with a number is what its kind alone stands for.

    Generators, and kernels that a user's code launches, follow torch's current device.
    """
    chosen = Device.of(device)
    if chosen.number is None:
        return nullcontext()
    context: AbstractContextManager[Any] = module_of(device).device(chosen.number)
    return context


def module_of(device: str) -> Any:
    """Return torch's module for a kind of device, as `torch.cuda`."""
    return torch.get_device_module(Device.of(device).kind)


def seed_all(number: int) -> None:
    """Seed the generators of all accelerators of this machine."""
    for kind in devices_here().accelerators:
        module = module_of(kind)
        getattr(module, "manual_seed_all", module.manual_seed)(number)


def card_of(device: str) -> list[str]:
    """Return what decides the bits of an accelerator's results: the card and its libraries."""
    kind = Device.of(device).kind
    if kind == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return [torch.cuda.get_device_name(device), f"cuDNN {cudnn}"]
    if kind == "xpu":
        return [str(torch.xpu.get_device_name(device))]
    if kind == "mps":
        return [str(torch.backends.mps.get_name()), f"macOS {platform.mac_ver()[0]}"]
    return []
