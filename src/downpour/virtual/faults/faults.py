"""The faults of a plan, as values: kind, time, process and duration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """A kind of fault; the value is its text in a story."""

    MANAGER_DIES = "the manager dies"
    MANAGER_DIES_AT = "the manager dies at its next decision"
    MANAGER_MACHINE_DIES = "the manager's machine dies"
    MANAGER_STANDS_STILL = "the manager stands still"
    MANAGER_STOPS = "the manager is stopped"
    MANAGER_CUT_OFF = "the manager is cut off from all others"
    MANAGER_HALF_CUT_OFF = "the manager is cut off in one direction"
    MANAGER_WITHOUT_FOLDER = "the manager is cut off from the shared directory"
    MANAGER_ISOLATED = "the manager is cut off from all others and the shared directory"
    MANAGER_FLAPS = "the manager's network comes and goes"
    LINK_CUT = "the manager and one worker are cut off from each other"
    DAMAGED_MEANWHILE = "the manager dies, and something is damaged before the next one begins"
    CLOCK_JUMPS = "the manager's clock jumps"
    LOCK_LOST = "the manager's lock is lost without its knowing"
    PREPARATION_FAILS = "the manager cannot prepare an experiment"
    WORKER_DIES = "a worker dies"
    WORKER_DIES_AT = "a worker dies at its next task"
    WORKER_MACHINE_DIES = "a worker's machine dies"
    WORKER_STANDS_STILL = "a worker stands still"
    WORKER_LEAVES = "a worker leaves"
    WORKER_DRAINS = "a worker ends what it has, and leaves"
    WORKER_DOUBLED = "another worker of the same name begins"
    WORKER_CUT_OFF = "a worker is cut off from the manager"
    WORKER_HALF_CUT_OFF = "a worker is cut off in one direction"
    WORKER_WITHOUT_FOLDER = "a worker is cut off from the shared directory"
    WORKER_ISOLATED = "a worker is cut off from the manager and the shared directory"
    WORKER_FLAPS = "a worker's network comes and goes"
    CONNECTIONS_END = "a worker's connections end"
    HOST_FAR = "a host's messages take long"
    HOST_LOSES = "a host loses messages"
    HOST_THROTTLED = "a host reads and writes files slowly"
    MESSAGES_LOST = "messages are lost"
    MESSAGES_DOUBLED = "messages come twice"
    MESSAGES_HELD_UP = "messages are held up"
    DISK_SLOW = "the shared directory is slow"
    DISK_STALE = "the shared directory shows files late"
    DISK_AWAY = "the shared directory is away"
    DISK_REFUSES = "the shared directory refuses"
    DISK_REFUSES_ONCE = "the shared directory refuses once"
    UPDATE_DAMAGED = "an update is damaged"
    ATTEMPT_FAILS = "an attempt fails"
    CANCELLED = "an experiment is cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan.

    `number` identifies it within its plan. It lasts for `seconds`; a dead process is back after
    that time. `share` is of messages. The meaning of `amount` depends on the kind: how many times
    slower, how many seconds later, or how many seconds a clock jumps. `detail` names the point
    where a process dies, the direction that is cut, the failing operation and its error, or the
    damaged thing.
    """

    number: int
    at_seconds: float
    kind: FaultKind
    target: str = ""
    seconds: float = 0.0
    share: float = 0.0
    amount: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        about = [self.target, self.detail, f"{self.share:.0%}" if self.share else ""]
        about.append(f"{self.amount:.3g}" if self.amount else "")
        named = ", ".join(word for word in about if word)
        lasting = f", for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind}{f' ({named})' if named else ''}{lasting}"
