"""`quorum`: the manager makes a version once it has enough updates and a grace window is over.

Decoupled DiLoCo (arXiv 2604.21428) merges the updates that arrive before such a window ends, and
drops later ones. Here, later updates go into the next version, and count less because they are
stale. Our window is a fixed time, while the paper derives it from measured step times. It begins
when the last update of the quorum arrives. If all updates have arrived, nothing is left to wait
for.
"""

from __future__ import annotations

from downpour.core.modes.base import Mode, ModeKind, Options
from downpour.core.modes.staleness import STALENESS, count_of, number, staleness_of


def _make(options: Options, shards: int) -> Mode:
    return Mode(
        together=count_of(options, "quorum", shards),
        ahead=None,
        grace_seconds=float(number(options, "grace_seconds")),
        weight=staleness_of(options),
    )


QUORUM = ModeKind(
    make=_make,
    options={"quorum": 0.5, "grace_seconds": 0.5, **STALENESS, "staleness": "polynomial"},
)
