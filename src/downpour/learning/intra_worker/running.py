"""The helpers of this process, for code that samples its machine; needs no torch."""

from __future__ import annotations

PIDS: set[int] = set()
"""Added and removed by the teams of this process."""
