"""What surrounds every computation on parameters: threads, precision, generators, memory errors.

All of it is process-wide state of torch. Each context here sets it and restores what was there
before, so that training, evaluation and a user's code in one process do not affect each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from downpour.errors import FileCorrupt, OutOfMemory
from downpour.models import generators
from downpour.spec import Spec

_STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of two steps; odd and irregular, so that both halves of a seed differ."""


@contextmanager
def settings(spec: Spec) -> Iterator[None]:
    """Compute with the spec's threads, repeatably; a lack of memory becomes OutOfMemory."""
    threads = torch.get_num_threads()
    if threads != spec.threads:
        torch.set_num_threads(spec.threads)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            yield
    except (MemoryError, torch.cuda.OutOfMemoryError) as error:
        raise OutOfMemory(_first_line(error)) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            raise OutOfMemory(_first_line(error)) from error
        raise
    finally:
        if threads != spec.threads:
            torch.set_num_threads(threads)


def precision(spec: Spec) -> torch.autocast:
    """Return the context of a forward pass; a new one each step, as it keeps cast weights."""
    return torch.autocast(
        spec.device, dtype=torch.bfloat16, enabled=spec.precision == "bfloat16", cache_enabled=False
    )


def place(model: nn.Module, spec: Spec, *, images: bool) -> None:
    """Move a network to the spec's device and memory layout, where it is not there already."""
    model.to(spec.device)
    if images and spec.images_channels_last:
        for value in model.parameters():
            if value.dim() == 4:
                value.data = value.data.contiguous(memory_format=torch.channels_last)


class Randomness:
    """The random generators of one task, separate from the process's own.

    Torch's go on from step to step and are part of a snapshot. Python's and numpy's, which only
    users' networks draw from, have a state that is slow to copy. They are seeded before each step,
    which costs tens of microseconds.

    Args:
        seed: everything follows from it.
        device: where the task is trained.
        beyond_torch: whether Python's and numpy's generators are this task's as well.
    """

    def __init__(self, seed: int, device: str, *, beyond_torch: bool = False) -> None:
        self._seed = seed
        self._beyond_torch = beyond_torch
        kinds = ("cpu",) if device == "cpu" else ("cpu", device)
        self._states = {kind: torch.Generator(kind).manual_seed(seed).get_state() for kind in kinds}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which the global generators are this task's."""
        with generators.ALONE, generators.lent() if self._beyond_torch else nullcontext():
            before = {kind: _state(kind) for kind in self._states}
            for kind, state in self._states.items():
                _set_state(kind, state)
            try:
                yield
                self._states = {kind: _state(kind) for kind in self._states}
            finally:
                for kind, state in before.items():
                    _set_state(kind, state)

    def begin(self, step: int) -> None:
        """Prepare for a step, counted from 0; only while active."""
        if self._beyond_torch:
            generators.seed(self._seed + step * _STRIDE)

    def arrays(self) -> dict[str, NDArray[np.uint8]]:
        """Return the states of torch's generators by the kind of device."""
        return {kind: state.numpy().copy() for kind, state in self._states.items()}

    def restore(self, arrays: dict[str, NDArray[np.uint8]]) -> None:
        """Set the states that `arrays` returned.

        Raises:
            FileCorrupt: they are of other devices, or of another size.
        """
        shapes = {kind: tuple(state.shape) for kind, state in self._states.items()}
        if {kind: array.shape for kind, array in arrays.items()} != shapes:
            raise FileCorrupt("snapshot", f"its generator states should have the shapes {shapes}")
        self._states = {kind: torch.tensor(array) for kind, array in arrays.items()}


def _state(kind: str) -> Tensor:
    return torch.get_rng_state() if kind == "cpu" else torch.cuda.get_rng_state()


def _set_state(kind: str, state: Tensor) -> None:
    if kind == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
