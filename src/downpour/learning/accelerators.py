"""This machine's devices: the only module that asks torch for them and knows torch's names.

Asking initializes no device. The result holds as long as the process, whose environment decides
what torch sees.
"""

import ctypes
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from downpour.base.names import CPU, Device, Devices

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""cuBLAS reads it when it is first used: with this, its sums never depend on what else runs."""
_WORKSPACE_SIZES = ":4096:8"
_NO_SUCH_KERNEL = "does not have a deterministic implementation"
_OTHER_WORKSPACE = "Deterministic behavior was enabled with"
"""Of a workspace that the user has set, and that torch does not trust."""


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
    """Return a context in which a kind of device stands for the device with this number.

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


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Return a context in which the generators of all accelerators of this machine are seeded.

    Those of a device that this process has never used begin with the seed, and keep it.
    """
    before: list[tuple[Any, tuple[int, ...], torch.Tensor]] = []
    for kind, count in devices_here().accelerators.items():
        module = module_of(kind)
        if not hasattr(module, "is_initialized") or module.is_initialized():
            # Torch's module for Apple's GPU takes no number.
            places: list[tuple[int, ...]] = [(n,) for n in range(count)] if kind != "mps" else [()]
            before += [(module, place, module.get_rng_state(*place)) for place in places]
        getattr(module, "manual_seed_all", module.manual_seed)(number)
    try:
        yield
    finally:
        for module, place, state in before:
            module.set_rng_state(state, *place)


@contextmanager
def repeatable(device: str, *, strict: bool) -> Iterator[None]:
    """Return a context in which torch takes the kernels that repeat their bits, where it has them.

    A few operations have none. If `strict`, they fail (`lacks_kernel`). Otherwise they are computed
    as usual, but then attention is as well: torch takes its repeatable kernels only if all must be.
    """
    if device == CPU:
        yield
        return
    _fixed_workspace()
    filling: Any = torch.utils.deterministic  # a module with a property, which its types lack
    before = torch.get_deterministic_debug_mode()
    filled = filling.fill_uninitialized_memory
    _ignore_missing_kernels()
    torch.set_deterministic_debug_mode("error" if strict else "warn")
    # Filling only helps to find reads of unwritten memory, and costs a pass over each new tensor.
    filling.fill_uninitialized_memory = False
    try:
        yield
    finally:
        filling.fill_uninitialized_memory = filled
        torch.set_deterministic_debug_mode(before)


def lacks_kernel(error: RuntimeError) -> bool:
    """Whether an operation failed because torch has no kernel for it that repeats its bits."""
    said = str(error)
    return _NO_SUCH_KERNEL in said or _OTHER_WORKSPACE in said


def release(device: str) -> None:
    """Give back the memory that torch, or the C library, keeps for later.

    Workers of one machine, and its manager, may share a card. The C library (glibc) keeps freed
    memory that lies between memory in use, such as a trial's.
    """
    if device != CPU:
        module_of(device).empty_cache()
    elif hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def free_bytes(device: str) -> int:
    """Return how much memory of a device is free; 0 if torch does not tell."""
    ask = getattr(module_of(device), "mem_get_info", None)
    return int(ask(device)[0]) if ask is not None else 0


@cache
def _ignore_missing_kernels() -> None:
    # They tell of settings that the user never made, and the loop has logged it in our own words.
    # Once, because Python repeats its past warnings after each change of the filters.
    for said in (_NO_SUCH_KERNEL, _OTHER_WORKSPACE, "defaults to a non-deterministic algorithm"):
        warnings.filterwarnings("ignore", f".*{said}")


def _fixed_workspace() -> str:
    return os.environ.setdefault(_WORKSPACE, _WORKSPACE_SIZES)


def card_of(device: str) -> list[str]:
    """Return what decides the bits of an accelerator's results: the card and its libraries."""
    kind = Device.of(device).kind
    if kind == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        libraries = [f"cuDNN {cudnn}", f"{_WORKSPACE}={_fixed_workspace()}"]
        return [torch.cuda.get_device_name(device), *libraries]
    if kind == "xpu":
        return [str(torch.xpu.get_device_name(device))]
    if kind == "mps":
        return [str(torch.backends.mps.get_name()), f"macOS {platform.mac_ver()[0]}"]
    return []


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's memory holds its numbers as its type says.

    Users keep others, too: sparse, nested and quantized ones, wrappers of several tensors, views
    whose sign or conjugation torch has yet to apply, and tensors without memory (`meta`). Most of
    torch's ways to look at memory raise errors there.
    """
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if tensor.is_neg() or tensor.is_conj():
        return False
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False
