"""`quorum`: a version is made when enough updates are there and a grace window is over.

Decoupled DiLoCo (arXiv 2604.21428) merges what came by the end of such a window. That method drops
later updates; here they are part of the next version, and count less because they are stale. The
window is a fixed time, where the paper's follows from measured step times. It begins when the last
update of the quorum is there; where all shards' updates are there, nothing is waited for.
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
