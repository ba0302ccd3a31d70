"""Start managers and workers: on this machine so far."""

from __future__ import annotations

from downpour.launchers.local import LocalCluster

__all__ = ["LocalCluster"]
