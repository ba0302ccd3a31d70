"""The common properties of kinds of faults: their targets, and their random values."""

from __future__ import annotations

from downpour.virtual.faults.faults import FaultKind

OF_MANAGERS = frozenset(
    {
        FaultKind.DAMAGED_MEANWHILE,
        FaultKind.MANAGER_DIES,
        FaultKind.MANAGER_DIES_AT,
        FaultKind.MANAGER_MACHINE_DIES,
        FaultKind.MANAGER_STANDS_STILL,
        FaultKind.MANAGER_STOPS,
        FaultKind.MANAGER_CUT_OFF,
        FaultKind.MANAGER_HALF_CUT_OFF,
        FaultKind.MANAGER_WITHOUT_FOLDER,
        FaultKind.MANAGER_ISOLATED,
        FaultKind.MANAGER_FLAPS,
        FaultKind.LINK_CUT,
        FaultKind.CLOCK_JUMPS,
        FaultKind.PREPARATION_FAILS,
    }
)
OF_WORKERS = frozenset(
    {
        FaultKind.WORKER_DIES,
        FaultKind.WORKER_DIES_AT,
        FaultKind.WORKER_MACHINE_DIES,
        FaultKind.WORKER_STANDS_STILL,
        FaultKind.WORKER_LEAVES,
        FaultKind.WORKER_DRAINS,
        FaultKind.WORKER_DOUBLED,
        FaultKind.WORKER_CUT_OFF,
        FaultKind.WORKER_HALF_CUT_OFF,
        FaultKind.WORKER_WITHOUT_FOLDER,
        FaultKind.WORKER_ISOLATED,
        FaultKind.WORKER_FLAPS,
        FaultKind.CONNECTIONS_END,
        FaultKind.UPDATE_DAMAGED,
        FaultKind.ATTEMPT_FAILS,
    }
)
OF_HOSTS = frozenset({FaultKind.HOST_FAR, FaultKind.HOST_LOSES, FaultKind.HOST_THROTTLED})
DEATHS_OF_MANAGERS = frozenset(
    {
        FaultKind.MANAGER_DIES,
        FaultKind.MANAGER_DIES_AT,
        FaultKind.MANAGER_MACHINE_DIES,
        FaultKind.MANAGER_STOPS,
    }
)
SELDOM = frozenset({FaultKind.CANCELLED, FaultKind.PREPARATION_FAILS})
"""If an experiment ends early, later faults can't show anything in it."""
IN_SWARMS_ALONE = frozenset(
    {
        FaultKind.MANAGER_HALF_CUT_OFF,
        FaultKind.MANAGER_WITHOUT_FOLDER,
        FaultKind.MANAGER_ISOLATED,
        FaultKind.MANAGER_FLAPS,
        FaultKind.LINK_CUT,
        FaultKind.PREPARATION_FAILS,
        FaultKind.WORKER_MACHINE_DIES,
        FaultKind.WORKER_DRAINS,
        FaultKind.WORKER_HALF_CUT_OFF,
        FaultKind.WORKER_WITHOUT_FOLDER,
        FaultKind.WORKER_ISOLATED,
        FaultKind.WORKER_FLAPS,
        *OF_HOSTS,
    }
)
"""Seeds that draw from all kinds alike leave these out, so that their stories stay the same."""
EVERYWHERE = [kind for kind in FaultKind if kind not in IN_SWARMS_ALONE]
