"""The finding of a check: a verdict, the observation, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """The result of a check; only `FAILED` means that something must be corrected."""

    GOOD = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome.

    `seen` is the observation; `change` says what to change after a failure, or what a warning
    means. `figures` are measurements, with units in their names.
    """

    verdict: Verdict
    seen: str
    change: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def good(seen: str, **figures: float) -> Finding:
    """Return the finding of a check that has passed."""
    return Finding(verdict=Verdict.GOOD, seen=seen, figures=figures)


def doubtful(seen: str, change: str, **figures: float) -> Finding:
    """Return the finding of a thing that works, but less well than it could."""
    return Finding(verdict=Verdict.WARNING, seen=seen, change=change, figures=figures)


def bad(seen: str, change: str) -> Finding:
    """It does not work until something is changed."""
    return Finding(verdict=Verdict.FAILED, seen=seen, change=change)


def unknown(seen: str) -> Finding:
    """It was not, or could not be, checked, and why."""
    return Finding(verdict=Verdict.UNKNOWN, seen=seen)
