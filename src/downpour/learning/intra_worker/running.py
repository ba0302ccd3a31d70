"""The helpers of this process, for what samples its machine; importing it imports no torch."""

from __future__ import annotations

PIDS: set[int] = set()
"""Added and removed by the teams of this process."""
