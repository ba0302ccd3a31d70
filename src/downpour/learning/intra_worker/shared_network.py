"""A network in memory that a worker shares with its helpers.

The worker's optimizer writes the parameters in place, so its helpers see them without a copy. The
helpers' results have separate places: one for each gradient, of all parameters or some.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from downpour.learning.plain_tensors import is_plain

ALIGNMENT = 64
"""Bytes; a cache line, which is also what the widest vector instructions want."""


def create_memory() -> int:
    """Return a file descriptor of memory without a name, which ends with its processes."""
    return os.memfd_create("downpour-inside", os.MFD_CLOEXEC)


def aligned(size: int) -> int:
    """Return a number of bytes, rounded up to where the next thing may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def mapped(descriptor: int, size: int) -> Tensor:
    """Return the first bytes [size] of memory as a tensor over it."""
    path = f"/proc/self/fd/{descriptor}"
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's offset in the memory, and a tensor of the same layout."""

    offset: int
    like: Tensor


class SharedNetwork:
    """Puts a network's tensors into shared memory.

    Both sides build the same network, so both find the same places in it.

    Args:
        network: its parameters and buffers become views of the memory.
        memory: a file descriptor of memory, see `memory.create_memory`.
        gradients: how many gradients have a place after the tensors; what is never written of them
            takes no memory.
    """

    def __init__(self, network: nn.Module, memory: int, gradients: int) -> None:
        self._trained = [value for value in network.parameters() if value.requires_grad]
        # A sparse buffer, say, stays each side's own: it is constant.
        shared = filter(is_plain, (*network.parameters(), *network.buffers()))
        state, size = _placed(shared, 0)
        self._gradients: list[list[Tensor]] = []
        rows: list[list[_Place]] = []
        for _ in range(gradients):
            row, size = _placed(self._trained, size)
            rows.append(row)
        # One flag for each gradient of a parameter, because a step need not reach every one.
        reached = size
        size += gradients * len(self._trained)
        if os.fstat(memory).st_size < size:
            os.ftruncate(memory, size)
        self._memory = mapped(memory, size)
        self._state = [(place.like, self._view(place)) for place in state]
        self._gradients = [[self._view(place) for place in row] for row in rows]
        self._reached = self._memory[reached:].view(gradients, len(self._trained))

    def fill(self) -> Self:
        """Copy the network's present values into the memory: once, by the process that made it."""
        for value, view in self._state:
            view.copy_(value.detach())
        return self

    def attach(self) -> Self:
        """Move the network's tensors to the memory, and let them take the values in it."""
        for value, view in self._state:
            value.data = view
        return self

    def put(self, number: int) -> None:
        """Copy the network's gradients to one of the places, and forget them."""
        for index, (value, view) in enumerate(
            zip(self._trained, self._gradients[number], strict=True)
        ):
            self._reached[number, index] = value.grad is not None
            if value.grad is not None:
                view.copy_(value.grad)
                value.grad = None

    def add(self, number: int) -> None:
        """Add the gradients in one of the places to the network's."""
        reached = self._reached[number].tolist()
        mine, theirs = [], []
        for value, view, is_reached in zip(
            self._trained, self._gradients[number], reached, strict=True
        ):
            if not is_reached:
                continue
            if value.grad is None:
                value.grad = view.clone(memory_format=torch.preserve_format)
            else:
                mine.append(value.grad)
                theirs.append(view)
        if mine:
            torch._foreach_add_(mine, theirs)

    def gradient(self, number: int, parameter: Tensor) -> Tensor:
        """Return the part of one of the places that is for a parameter's gradient."""
        index = next(n for n, value in enumerate(self._trained) if value is parameter)
        return self._gradients[number][index]

    def lend(self, number: int) -> None:
        """Let the gradients in one of the places be the network's, without a copy.

        For parameters that no other process has a gradient of.
        """
        reached = self._reached[number].tolist()
        for value, view, is_reached in zip(
            self._trained, self._gradients[number], reached, strict=True
        ):
            if is_reached:
                value.grad = view

    def _view(self, place: _Place) -> Tensor:
        bytes_ = self._memory[place.offset : place.offset + place.like.nbytes].view(
            place.like.dtype
        )
        return bytes_.as_strided(place.like.size(), _strides(place.like))


def _placed(tensors: Iterable[Tensor], offset: int) -> tuple[list[_Place], int]:
    """Return a place for each tensor from an offset on, and where the last ends."""
    places = []
    for value in tensors:
        places.append(_Place(offset, value))
        offset += aligned(value.nbytes)
    return places, offset


def _strides(like: Tensor) -> tuple[int, ...]:
    """Return the layout of a tensor, or the plain one where elements overlap or have gaps."""
    if torch.ops.aten.is_non_overlapping_and_dense(like):
        return like.stride()
    return torch.empty(like.size(), device="meta").stride()


class ProcessGone(Exception):
    """A process of the worker has ended, or does not answer."""
