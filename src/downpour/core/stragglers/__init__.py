"""Straggler policies: pure functions that look at a round and return actions with reasons.

A policy takes a `RoundView` and returns actions. The reason of each action reaches the log, the
record and the screen unchanged. A policy carries nothing out and reads no clock: the view has the
time. The registry's keys are what `Spec.policy` accepts.
"""

from __future__ import annotations

from downpour.stragglers.backup import BACKUP
from downpour.stragglers.base import (
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
    Speed,
    Withdrawal,
    WorkerHistory,
    WorkerRequest,
)
from downpour.stragglers.blacklist import BLACKLIST
from downpour.stragglers.checking import check_policy
from downpour.stragglers.clone import CLONE
from downpour.stragglers.drop import DROP
from downpour.stragglers.dylu import DYLU
from downpour.stragglers.grass import GRASS
from downpour.stragglers.handoff import HANDOFF
from downpour.stragglers.late import LATE
from downpour.stragglers.mantri import MANTRI
from downpour.stragglers.rebalance import REBALANCE
from downpour.stragglers.replace import REPLACE
from downpour.stragglers.wait import WAIT
from downpour.stragglers.wrangler import WRANGLER

POLICIES: dict[str, Policy] = {
    "wait": WAIT,
    "drop": DROP,
    "backup": BACKUP,
    "blacklist": BLACKLIST,
    "late": LATE,
    "clone": CLONE,
    "grass": GRASS,
    "mantri": MANTRI,
    "wrangler": WRANGLER,
    "rebalance": REBALANCE,
    "replace": REPLACE,
    "handoff": HANDOFF,
    "dylu": DYLU,
}

__all__ = [
    "POLICIES",
    "ROUNDS_REMEMBERED",
    "Action",
    "Assignment",
    "Close",
    "Handoff",
    "PendingTask",
    "Policy",
    "WorkerRequest",
    "Resize",
    "RoundView",
    "RunningTask",
    "Speed",
    "Withdrawal",
    "WorkerHistory",
    "check_policy",
]
