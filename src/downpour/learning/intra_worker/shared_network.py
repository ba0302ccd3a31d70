"""A network in memory that a worker shares with its helpers, and the links between processes.

The worker's optimizer writes the parameters in place, so its helpers see them without a copy. The
helpers' results have separate places: one for each gradient, of all parameters or some.

A link carries tensors in shared memory, and a line of JSON for each. Each end has memory that it
writes and the other reads. A sender chooses a slot for a tensor, and reuses it only once the other
end is done with it. The tensor keeps the sender's memory layout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from socket import socket, socketpair
from typing import Any, Self

import torch
from torch import Tensor, nn

from downpour.learning.plain_tensors import is_plain
from downpour.learning.training.parameters import flat, laid_out

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


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor's offset in the memory, and a tensor of the same layout."""

    offset: int
    like: Tensor

    @property
    def bytes_used(self) -> int:
        """The bytes up to the next tensor's beginning."""
        return aligned(self.like.nbytes)


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
        state, size = _placed(_tensors(network), 0)
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
        flat = self._memory[place.offset : place.offset + place.like.nbytes].view(place.like.dtype)
        return flat.as_strided(place.like.size(), _strides(place.like))


def _tensors(network: nn.Module) -> Iterator[Tensor]:
    """Yield what both sides share. A sparse buffer, say, stays each side's own: it is constant."""
    yield from filter(is_plain, (*network.parameters(), *network.buffers()))


def _placed(tensors: Iterable[Tensor], offset: int) -> tuple[list[_Place], int]:
    """Return a place for each tensor from an offset on, and where the last ends."""
    places = []
    for value in tensors:
        place = _Place(offset, value)
        places.append(place)
        offset += place.bytes_used
    return places, offset


def _strides(like: Tensor) -> tuple[int, ...]:
    """Return the layout of a tensor, or the plain one where elements overlap or have gaps."""
    if torch.ops.aten.is_non_overlapping_and_dense(like):
        return like.stride()
    return torch.empty(like.size(), device="meta").stride()


class ProcessGone(Exception):
    """A process of the worker has ended, or does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """The file descriptors of an end: its socket, and the memory that it writes and reads."""

    socket: int
    written: int
    read: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them."""
        return self.socket, self.written, self.read


def linked() -> tuple[LinkEnd, LinkEnd]:
    """Make a link; returns its two ends."""
    one, other = (end.detach() for end in socketpair())
    there, back = create_memory(), create_memory()
    return (
        LinkEnd(socket=one, written=there, read=back),
        LinkEnd(socket=other, written=os.dup(back), read=os.dup(there)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A tensor that has arrived, and what came with it.

    `trained` says whether a gradient of it is awaited.
    """

    tensor: Tensor
    trained: bool
    generators: list[Any]


class Link:
    """An end of a link, in the process that has it.

    Args:
        end: its file descriptors, which become the link's own.
    """

    def __init__(self, end: LinkEnd) -> None:
        self._socket = socket(fileno=end.socket)
        self._written, self._read = Memory(end.written), Memory(end.read)
        self._slots: dict[int, range] = {}
        self._arrived = b""

    def send(self, slot: int, tensor: Tensor, generators: list[Any] | None = None) -> None:
        """Copy a tensor to the other end."""
        data = flat(tensor)
        begin = self._place(slot, data.nbytes)
        self._written.view(begin, data.numel(), data.dtype).copy_(data)
        header = {
            "begin": begin,
            "count": data.numel(),
            "dtype": str(data.dtype).removeprefix("torch."),
            "size": list(tensor.size()),
            "stride": list(tensor.stride()),
            "trained": tensor.requires_grad,
            "generators": generators or [],
        }
        try:
            self._socket.settimeout(None)
            self._socket.sendall(json.dumps(header, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise ProcessGone("has ended") from error

    def receive(self, seconds: float | None = None) -> Parcel:
        """Wait for the next tensor; it stays in the memory that the other end writes."""
        header = json.loads(self._line(seconds))
        data = self._read.view(header["begin"], header["count"], getattr(torch, header["dtype"]))
        return Parcel(
            tensor=laid_out(data, tuple(header["size"]), tuple(header["stride"])),
            trained=header["trained"],
            generators=header["generators"],
        )

    def close(self) -> None:
        """Let go of this end; the other one finds that nothing comes any more."""
        with suppress(OSError):
            self._socket.close()
        self._written.close()
        self._read.close()

    def _place(self, slot: int, size: int) -> int:
        """Return where a slot begins; one that is too small moves to the end."""
        known = self._slots.get(slot, range(0))
        if len(known) < size:
            known = self._slots[slot] = self._written.take(size)
        return known.start

    def _line(self, seconds: float | None) -> bytes:
        try:
            self._socket.settimeout(seconds)
            while b"\n" not in self._arrived:
                more = self._socket.recv(1 << 16)
                if not more:
                    raise ProcessGone("has ended")
                self._arrived += more
        except TimeoutError as error:
            raise ProcessGone(f"does not answer for {seconds:.0f} s") from error
        except OSError as error:
            raise ProcessGone("has ended") from error
        line, _, self._arrived = self._arrived.partition(b"\n")
        return line
