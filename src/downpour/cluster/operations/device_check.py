"""Tries each device that torch finds here, as a worker with `--device` would use it."""

from __future__ import annotations

from downpour.base.devices import CPU
from downpour.cluster.operations.finding import Finding, bad, doubtful, good

_SIDE = 64


class DeviceCheck:
    """Computes on every accelerator, and knows what it is waiting for."""

    def __init__(self) -> None:
        self._computing_on = ""

    def look(self) -> Finding:
        """Multiply matrices on every accelerator; names the cards."""
        # Imported here, because torch takes seconds to import, and other checks come first.
        try:
            import torch

            from downpour.learning.accelerators import card_of, devices_here, release
        except (ImportError, OSError) as error:
            return bad(f"torch cannot be imported: {_first_line(error)}", "install it again")

        seen = [CPU]
        for name in devices_here().names[1:]:
            self._computing_on = name
            try:
                ones = torch.ones(_SIDE, _SIDE, device=name)
                total = float((ones @ ones).sum().item())
                release(name)
            except RuntimeError as error:
                wanted = "update its driver, or train with --device cpu"
                return bad(f"{name}: {_first_line(error)}", wanted)
            if total != _SIDE**3:
                return bad(f"{name} computes {total:g} for {_SIDE**3}", "train with --device cpu")
            seen.append(f"{name} ({card_of(name)[0]})")
        return good(", ".join(seen))

    def late(self, seconds: float) -> Finding:
        """Return the finding if `look` takes longer than this."""
        if self._computing_on:
            seen = f"{self._computing_on} has not answered for {seconds:g} s"
            return bad(seen, "check its driver, or train with --device cpu")
        seen = f"torch could not be imported within {seconds:g} s"
        return doubtful(seen, "each worker here takes as long to start")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
