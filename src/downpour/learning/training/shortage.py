"""Suggests a remedy if memory is too small for a step that one process computes alone."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from downpour.base.devices import CPU
from downpour.host.memory import told_limit
from downpour.learning.accelerators import release
from downpour.learning.tasks.loaded import LoadedTask


@dataclass(slots=True)
class Shortage:
    """How often an accelerator had too little memory for a step of an experiment; what follows.

    The first time, this process gives back all device memory that it does not use, and trains again
    from the last snapshot, or from the beginning of the task. From the second time on, it also
    keeps in the host's memory what its steps need later. Neither changes a byte. A CPU has no
    other memory, so no process retries there.
    """

    device: str
    count: int = 0

    @property
    def spills(self) -> bool:
        """Whether steps keep in the host's memory what they need later."""
        return self.count > 1

    def may_try_again(self) -> bool:
        """Note a shortage; returns whether there is something left to try."""
        if self.device == CPU or self.spills:
            return False
        self.count += 1
        return True

    def make_room(self) -> None:
        """Give back unused memory, once nothing refers to the failed step."""
        gc.collect()  # an error and the frames that it names may refer to each other
        release(self.device)


def advice(loaded: LoadedTask) -> str:
    """Say how much memory there was, what did not fit, and what would."""
    spec = loaded.spec
    batch, parts = spec.batch_size, min(spec.parts, spec.batch_size)
    if loaded.has_own_step or spec.inside.how == "hybrid":
        fits = f"a step holds all {batch} examples at once: use a smaller batch_size"
    elif parts == batch:
        where = "a machine" if spec.device == CPU else "a device"
        fits = f"even one example at a time is too much: use {where} with more memory"
    else:
        fits = (
            f"{-(-batch // parts)} examples at a time are too many: try accumulate = "
            f"{min(2 * parts, batch)} for smaller parts"
        )
    if spec.device != CPU:  # torch has said how much memory the accelerator has
        return fits
    return f"{told_limit()}; {fits}"
