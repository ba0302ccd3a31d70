"""Straggler policies: pure functions that look at a round and return actions with reasons.

A policy takes a `RoundView` and returns actions. The reason of each action reaches the log, the
record and the screen unchanged. A policy only decides: the scheduler carries out the actions, and
the view tells the time. `core/families.py` registers the policies.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core import families
from downpour.core.stragglers.base import (
    ROUNDS_REMEMBERED,
    Action,
    Assignment,
    Close,
    Handoff,
    PendingTask,
    Policy,
    Resize,
    RoundView,
    RunningTask,
    Saving,
    Speed,
    UpdateTimes,
    Waiting,
    Withdrawal,
    WorkerHistory,
    WorkerRequest,
    check_policy,
)

POLICIES: Mapping[str, Policy] = families.POLICIES

__all__ = [
    "POLICIES",
    "ROUNDS_REMEMBERED",
    "Action",
    "Assignment",
    "Close",
    "Saving",
    "Handoff",
    "PendingTask",
    "Policy",
    "WorkerRequest",
    "Resize",
    "RoundView",
    "RunningTask",
    "Speed",
    "UpdateTimes",
    "Waiting",
    "Withdrawal",
    "WorkerHistory",
    "check_policy",
]
