"""Straggler policies: pure functions that look at a round and return actions with reasons.

A policy takes a `RoundView` and returns actions. The reason of each action reaches the log, the
record and the screen unchanged. A policy carries nothing out and reads no clock: the view has the
time. The registry's keys are what `Spec.policy` accepts.
"""

from __future__ import annotations

from downpour.core.stragglers.backup import BACKUP
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
    Speed,
    Withdrawal,
    WorkerHistory,
    WorkerRequest,
)
from downpour.core.stragglers.blacklist import BLACKLIST
from downpour.core.stragglers.checking import check_policy
from downpour.core.stragglers.clone import CLONE
from downpour.core.stragglers.drop import DROP
from downpour.core.stragglers.dylu import DYLU
from downpour.core.stragglers.grass import GRASS
from downpour.core.stragglers.handoff import HANDOFF
from downpour.core.stragglers.late import LATE
from downpour.core.stragglers.mantri import MANTRI
from downpour.core.stragglers.rebalance import REBALANCE
from downpour.core.stragglers.replace import REPLACE
from downpour.core.stragglers.wait import WAIT
from downpour.core.stragglers.wrangler import WRANGLER

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
