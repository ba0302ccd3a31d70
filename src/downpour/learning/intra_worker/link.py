"""A link between two processes of a worker: tensors in shared memory, a line of JSON for each.

Each end has memory that it writes and the other reads. A sender chooses a slot for a tensor, and
reuses it only once the other end is done with it. The tensor keeps the sender's memory layout.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from socket import socket, socketpair
from typing import Any

import torch
from torch import Tensor

from downpour.learning.intra_worker.shared_memory import Memory, create_memory
from downpour.learning.training.tensor_memory import flat, laid_out


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
        """Copy a tensor to the other end.

        Raises:
            ProcessGone: the process at the other end has ended.
        """
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
        """Wait for the next tensor; it stays in the memory that the other end writes.

        Raises:
            ProcessGone: the process at the other end has ended, or sends nothing for so long.
        """
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
