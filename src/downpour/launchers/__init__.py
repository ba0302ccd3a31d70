"""Start managers and workers: on this machine, in this process, or where an engine places them."""

from __future__ import annotations

from downpour.errors import SpecError
from downpour.launchers.base import Ended, Engine, Launcher, RunningCluster
from downpour.launchers.inline import InlineCluster
from downpour.launchers.local import LocalCluster
from downpour.launchers.placed import PlacedCluster
from downpour.launchers.plan import LaunchPlan

__all__ = [
    "LAUNCHERS",
    "Ended",
    "Engine",
    "InlineCluster",
    "LaunchPlan",
    "Launcher",
    "LocalCluster",
    "PlacedCluster",
    "RunningCluster",
    "launcher_of",
]

LAUNCHERS: dict[str, Launcher] = {"local": LocalCluster, "inline": InlineCluster}
"""Those that need no options, by name."""


def launcher_of(on: Launcher | str) -> Launcher:
    """Return a launcher that was given as one, or by its name.

    Raises:
        SpecError: there is none of that name.
    """
    if not isinstance(on, str):
        return on
    if on not in LAUNCHERS:
        raise SpecError("on", on, f"must be {' or '.join(LAUNCHERS)}")
    return LAUNCHERS[on]
