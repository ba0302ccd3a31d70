"""What helps where memory is too small for a step that one process computes alone."""

from __future__ import annotations

from downpour.base.devices import CPU
from downpour.host.memory import free_memory
from downpour.learning.tasks.loaded import LoadedTask


def advice(loaded: LoadedTask) -> str:
    """Say how much memory there was, what did not fit, and what would."""
    spec = loaded.spec
    batch, parts = spec.batch_size, min(spec.parts, spec.batch_size)
    if loaded.has_own_step or spec.inside.how == "hybrid":
        fits = f"a step holds all {batch} examples at once: take a smaller batch_size"
    elif parts == batch:
        fits = "one example at a time is too much: take a machine with more memory"
    else:
        fits = (
            f"{-(-batch // parts)} examples at a time are too many: "
            f"accumulate = {min(2 * parts, batch)} halves a part"
        )
    if spec.device != CPU:  # torch has said how much memory the accelerator has
        return fits
    return f"{free_memory() / 2**20:.0f} MiB are free; {fits}"
