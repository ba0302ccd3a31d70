"""The finding of a check: a verdict, the observation, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """The result of a check; only `FAILED` means that the user must correct something."""

    GOOD = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome.

    `seen` is the observation. `change` says what to change after a failure, or explains a warning.
    `figures` are measurements, with units in their names.
    """

    verdict: Verdict
    seen: str
    change: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def good(seen: str, **figures: float) -> Finding:
    """Return the finding of a check that has passed."""
    return Finding(verdict=Verdict.GOOD, seen=seen, figures=figures)


def doubtful(seen: str, change: str, **figures: float) -> Finding:
    """Return the finding of something that works, but less well than it could."""
    return Finding(verdict=Verdict.WARNING, seen=seen, change=change, figures=figures)


def bad(seen: str, change: str) -> Finding:
    """Return the finding of something that does not work until the user makes a change."""
    return Finding(verdict=Verdict.FAILED, seen=seen, change=change)


def unknown(seen: str) -> Finding:
    """Return the finding of a check that did not, or could not, run, and why."""
    return Finding(verdict=Verdict.UNKNOWN, seen=seen)
