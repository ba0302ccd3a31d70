"""Links between the processes of a worker: tensors, with the state of random generators.

A link carries tensors in shared memory, and a line of JSON for each. Each end has memory that it
writes and the other reads. A sender chooses a slot for a tensor, and reuses it only once the other
end is done with it. The tensor keeps the sender's memory layout.
"""

import json
import os
import random
from contextlib import suppress
from dataclasses import dataclass
from socket import socket, socketpair
from typing import Any

import numpy as np
import torch
from torch import Tensor

from downpour.learning.intra_worker.helper_process import (
    ProcessGone,
    aligned,
    create_memory,
    mapped,
)


class Memory:
    """A process's view of such memory, whose descriptor becomes this view's own."""

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
    """An end of a link, in the process that has it; its descriptors become the link's own."""

    def __init__(self, end: LinkEnd) -> None:
        self._socket = socket(fileno=end.socket)
        self._written, self._read = Memory(end.written), Memory(end.read)
        self._slots: dict[int, range] = {}
        self._arrived = b""

    def send(self, slot: int, tensor: Tensor, generators: list[Any] | None = None) -> None:
        """Copy a tensor to the other end."""
        data = flat(tensor)
        room = self._slots.get(slot, range(0))
        if len(room) < data.nbytes:  # a slot that is too small moves to the end
            room = self._slots[slot] = self._written.take(data.nbytes)
        self._written.view(room.start, data.numel(), data.dtype).copy_(data)
        header = {
            "begin": room.start,
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


def flat(tensor: Tensor) -> Tensor:
    """Return all memory from a tensor's first to its last element, as a tensor [n] over it.

    Kernels are chosen by layout, and another kernel may round in another way. So a tensor that
    crosses from one process to the next must have the same memory there as here, to the bit and to
    the stride.
    """
    if tensor.numel() == 0:
        return tensor.detach().reshape(0)
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return tensor.detach().as_strided((1 + sum((size - 1) * step for size, step in steps),), (1,))


def laid_out(memory: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return a tensor over such memory [n].

    It is no view to autograd, which would refuse to have one that a function returned changed in
    place.
    """
    empty = torch.empty(0, dtype=memory.dtype)
    return empty.set_(memory.untyped_storage(), memory.storage_offset(), size, stride)


def exact_copy(tensor: Tensor) -> Tensor:
    """Return a copy that lies as the tensor does."""
    return laid_out(flat(tensor).clone(), tuple(tensor.size()), tensor.stride())


def generators_state(*, beyond_torch: bool) -> list[Any]:
    """Return where all generators are, as numbers and text that JSON keeps.

    Args:
        beyond_torch: also Python's and numpy's, which takes ten times as long.
    """
    torchs = torch.get_rng_state().numpy().tobytes().hex()
    if not beyond_torch:
        return [torchs]
    numpys = np.random.get_state(legacy=False)  # noqa: NPY002 - it is the global one
    words = numpys["state"]["key"].tolist()
    return [torchs, random.getstate(), {**numpys, "state": {**numpys["state"], "key": words}}]


def go_on(known: list[Any]) -> None:
    """Set all generators to where `generators_state` found them, here or in another process."""
    torchs, *others = known
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(torchs), dtype=torch.uint8))
    if others:
        (version, words, gauss), numpys = others
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(numpys)  # noqa: NPY002
