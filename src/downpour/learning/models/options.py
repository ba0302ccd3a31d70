"""Checks of networks' options and of the examples' shape."""

from __future__ import annotations

from collections.abc import Sequence

from downpour.base.errors import SpecError


def image(sample_shape: tuple[int, ...], *, smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width of images of at least `smallest` pixels a side.

    Raises:
        SpecError: the examples are no images, or smaller ones.
    """
    if len(sample_shape) != 3 or min(sample_shape[1:]) < smallest:
        accepted = f"this network needs images of at least {smallest} x {smallest} pixels"
        raise SpecError("model", f"examples of shape {sample_shape}", accepted)
    return sample_shape


def probability(name: str, value: float) -> float:
    """Return an option that is the share of elements to drop.

    Raises:
        SpecError: it is no number from 0 on and below 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise SpecError(f"model_options.{name}", value, "a number of at least 0 and below 1")
    return float(value)


def width(name: str, value: int) -> int:
    """Return an option that is a number of units.

    Raises:
        SpecError: it is no whole number of at least 1.
    """
    if not _counts(value):
        raise SpecError(f"model_options.{name}", value, "a whole number of at least 1")
    return value


def widths(name: str, value: Sequence[int] | int) -> list[int]:
    """Return an option that is a list of numbers of units; a single number is a list of one.

    Raises:
        SpecError: one is no whole number of at least 1.
    """
    listed = [value] if isinstance(value, int) else list(value)
    if not all(map(_counts, listed)):
        raise SpecError(f"model_options.{name}", value, "a list of widths, each at least 1")
    return listed


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
