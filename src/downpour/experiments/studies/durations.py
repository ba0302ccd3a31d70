"""Durations in words."""

from __future__ import annotations

_MINUTE = 60.0
_HOUR = 3600.0


def about(seconds: float | None) -> str:
    """Format an estimate: "about 12 min", or "unknown time" for None."""
    return "unknown time" if seconds is None else f"about {spoken(seconds)}"


def spoken(seconds: float) -> str:
    """Format a duration, such as "43 s" or "3 h 20 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f"{hours} h {minutes} min"
