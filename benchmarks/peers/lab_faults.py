"""What disturbs a training in the lab: a slow host, a death, a link that is down, and so on.

Some disturbances are there from the start. The others come after the third look at the accuracy,
so that all systems have trained the same number of examples by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Timer
from typing import TYPE_CHECKING

from padded import SLOW

if TYPE_CHECKING:
    from tests.lab.hosts import LabHost
    from tests.lab.lab import Lab

AFTER_LOOKS = 3
DOWN_SECONDS = 20.0
LATE_SECONDS = 20.0


def _last(lab: Lab) -> LabHost:
    return list(lab)[-1]


def _slow(lab: Lab) -> None:
    """Let the last host take four times as long for each example."""
    for host in lab:
        host.environment[SLOW] = _last(lab).name


def _folder(lab: Lab) -> None:
    """Halve the rate at which the last host reaches the folder, and everything else."""
    host = _last(lab)
    host.throttle(host.profile.bits_per_second // 16)


def _dies(lab: Lab) -> None:
    _last(lab).kill()


def _coordinator(lab: Lab) -> None:
    next(iter(lab)).kill()


def _down(lab: Lab) -> None:
    host = _last(lab)
    host.cut()
    healing = Timer(DOWN_SECONDS, host.heal)
    healing.daemon = True
    healing.start()


def _nothing(_: Lab) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What happens before the start, and after some looks; `late`: the last host comes later."""

    before: Callable[[Lab], None] = _nothing
    during: Callable[[Lab], None] = _nothing
    late: bool = False


DISTURBANCES: Mapping[str, Disturbance] = {
    "none": Disturbance(),
    "slow": Disturbance(before=_slow),
    "folder": Disturbance(before=_folder),
    "dies": Disturbance(during=_dies),
    "down": Disturbance(during=_down),
    "coordinator": Disturbance(during=_coordinator),
    "late": Disturbance(late=True),
}
