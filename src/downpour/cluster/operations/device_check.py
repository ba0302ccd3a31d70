"""Tries each device that torch finds here, as a worker with `--device` would use it."""

from __future__ import annotations

from downpour.base.devices import CPU
from downpour.cluster.operations.finding import Finding, bad, good

_SIDE = 64


def devices() -> Finding:
    """Multiply matrices on every accelerator; names the cards."""
    # Imported here, because torch takes seconds to import, and other checks come first.
    import torch

    from downpour.learning.accelerators import card_of, devices_here, release

    seen = [CPU]
    for name in devices_here().names[1:]:
        try:
            ones = torch.ones(_SIDE, _SIDE, device=name)
            total = float((ones @ ones).sum().item())
            release(name)
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["computing on it fails"])[0]
            return bad(f"{name}: {reason}", "update its driver, or train with --device cpu")
        if total != _SIDE**3:
            return bad(f"{name} computes {total:g} for {_SIDE**3}", "train with --device cpu")
        seen.append(f"{name} ({card_of(name)[0]})")
    return good(", ".join(seen))
