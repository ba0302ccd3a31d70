"""Memory that several processes of one machine map, by a file descriptor; it grows as needed."""

from __future__ import annotations

import os

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; a cache line, which is also what the widest vector instructions want."""


def create_memory() -> int:
    """Return a file descriptor of memory without a name, which ends with its processes."""
    return os.memfd_create("downpour-inside", os.MFD_CLOEXEC)


def aligned(size: int) -> int:
    """Return a number of bytes, rounded up to where the next thing may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Memory:
    """A process's view of such memory.

    Args:
        descriptor: of the memory; it becomes this view's own.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._taken = 0
        self._mapped = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> range:
        """Add room for some bytes; one process alone does so."""
        room = range(self._taken, self._taken + aligned(size))
        self._taken = room.stop
        os.ftruncate(self._descriptor, self._taken)
        return room

    def view(self, begin: int, count: int, dtype: torch.dtype) -> Tensor:
        """Return the numbers [count] of a type from a byte on."""
        end = begin + count * dtype.itemsize
        if end > len(self._mapped):
            # The previous mapping lasts while a tensor uses it.
            self._mapped = mapped(self._descriptor, os.fstat(self._descriptor).st_size)
        return self._mapped[begin:end].view(dtype)

    def close(self) -> None:
        """Close the descriptor; the mapping lasts while a tensor uses it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def mapped(descriptor: int, size: int) -> Tensor:
    """Return the first bytes [size] of memory as a tensor over it."""
    path = f"/proc/self/fd/{descriptor}"
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
