"""Names of devices, and the choice of a device that serves a spec.

A spec asks for a kind (`cuda`), for one of several (`cuda:1`), or for the best (`auto`); a worker
has one device. Callers pass in a machine's devices, which `learning/accelerators.py` finds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from downpour.base.errors import SpecError, did_you_mean

CPU = "cpu"
AUTO = "auto"
KINDS = CPU, "cuda", "mps", "xpu", AUTO
NAMES = "cpu|cuda|cuda:N|mps|xpu|xpu:N|auto"
"""The names, as the help shows them."""
PATTERN = r"^(?:auto|cpu|mps|(?:cuda|xpu)(?::(?:0|[1-9][0-9]?))?)$"
ACCEPTED = "cpu, cuda, mps, xpu or auto, or one of several by its number, such as cuda:1 or xpu:1"


@dataclass(frozen=True, slots=True)
class Device:
    """A device of one machine: its kind and, if it is one of several, its number."""

    kind: str
    number: int | None = None

    @classmethod
    def of(cls, name: str) -> Self:
        """Read the name of a device other than `auto`."""
        kind, _, number = name.partition(":")
        return cls(kind, int(number) if number else None)


@dataclass(frozen=True, slots=True)
class Devices:
    """The accelerators of a machine: the number of each kind, the best kind first."""

    accelerators: Mapping[str, int] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The device that `auto` means here."""
        return next(iter(self.accelerators), CPU)

    def has(self, name: str) -> bool:
        """Whether this machine has a device of this name."""
        device = Device.of(name)
        return name == CPU or (device.number or 0) < self.accelerators.get(device.kind, 0)

    def chosen(self, asked: str) -> str:
        """Return the requested device."""
        if asked == AUTO:
            return self.best
        if not self.has(asked):
            raise SpecError("device", asked, f"torch finds no such device here, only {self}")
        return asked

    def spread(self, asked: str, place: int) -> str:
        """Return the device for worker number `place` of this machine, counted from 0.

        Workers take the machine's cards in turn, unless `asked` names one by its number.
        """
        device = self.chosen(asked)
        count = self.accelerators.get(device, 1)  # names with a number are not in the table
        return device if count == 1 else f"{device}:{place % count}"

    def cards(self, asked: str) -> int:
        """Return how many accelerators of this machine serve a requested device; 0 for the CPU."""
        device = self.nearest(asked)
        return 0 if device == CPU else self.accelerators.get(device, 1)

    def nearest(self, asked: str) -> str:
        """Return the requested device, or else another one of its kind, or the CPU."""
        if asked == AUTO or self.has(asked):
            return self.chosen(asked)
        kind = Device.of(asked).kind
        return kind if self.has(kind) else CPU

    @property
    def names(self) -> tuple[str, ...]:
        """All devices, the CPU first; devices have numbers if there are several of a kind."""
        names = [CPU]
        for kind, count in self.accelerators.items():
            names += [kind] if count == 1 else [f"{kind}:{number}" for number in range(count)]
        return tuple(names)

    def __str__(self) -> str:
        return ", ".join(self.names)


def check_device(name: str) -> None:
    """Refuse a text that is not the name of a device."""
    if not re.fullmatch(PATTERN, name):
        raise SpecError("device", name, f"must be {ACCEPTED}{did_you_mean(name, KINDS)}")


def trained_on(asked: str, own: str) -> str | None:
    """Return the device on which a worker trains a spec; None if the worker has a different one.

    Every worker has a CPU. `own` is its device; plain `cuda` is the first card.
    """
    if asked == CPU:
        return CPU
    if asked in {AUTO, own}:
        return own
    wanted, has = Device.of(asked), Device.of(own)
    fits = wanted.kind == has.kind and wanted.number in {None, has.number or 0}
    return own if fits else None
