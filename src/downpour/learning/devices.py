"""This machine's devices, for processes that import torch only if there may be an accelerator."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from downpour.base.names import AUTO, CPU, Devices

_SIGNS = ("nvidia[0-9]*", "nvmap", "dxg", "kfd")
"""Files of NVIDIA's cards, its small boards, its cards in WSL, and AMD's cards."""
_SIGNS_OF_XPU = ("dri/renderD*",)
"""Most processors have graphics, so these count only if torch is built for them."""
_FILES = Path("/dev")


def devices_for(asked: str) -> Devices:
    """Return the accelerators of this machine, if the requested device may be one of them.

    Torch takes seconds to import. Without any sign of an accelerator, `auto` needs no torch.
    """
    if asked == CPU or (asked == AUTO and not _may_have_any(_build(), _FILES)):
        return Devices()
    from downpour.learning.accelerators import devices_here

    return devices_here()


def _build() -> str:
    """Return the build of the installed torch, such as `cpu` or `cu128`; empty if it is unnamed."""
    try:
        return version("torch").partition("+")[2]
    except PackageNotFoundError:
        return ""


def _may_have_any(build: str, files: Path) -> bool:
    """Whether torch, in this build, may find an accelerator on a machine with these files."""
    if build == "cpu":
        return False
    if sys.platform != "linux":
        return True
    signs = _SIGNS_OF_XPU if build == "xpu" else _SIGNS
    return any(any(files.glob(sign)) for sign in signs)
