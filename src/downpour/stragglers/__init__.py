"""Policies: pure leaves that look at a round and say who should do what, and why.

A policy sees a `RoundView` and returns actions, each with the reason that reaches the log, the
record and the screen unchanged. It never acts, and it never reads a clock: the view carries the
time. The registry's keys are what `Spec.policy` accepts.
"""

from __future__ import annotations

from downpour.stragglers.base import Assignment, PendingTask, Policy, RoundView
from downpour.stragglers.wait import wait

POLICIES: dict[str, Policy] = {"wait": wait}

__all__ = ["POLICIES", "Assignment", "PendingTask", "Policy", "RoundView"]
