"""The modes that a spec can name."""

from __future__ import annotations

from downpour.modes.base import ModeKind
from downpour.modes.downpour import DOWNPOUR
from downpour.modes.easgd import EASGD
from downpour.modes.fedasync import FEDASYNC
from downpour.modes.fedbuff import FEDBUFF, K_ASYNC
from downpour.modes.quorum import QUORUM
from downpour.modes.ssp import SSP
from downpour.modes.sync import K_SYNC, SYNC

MODES: dict[str, ModeKind] = {
    "sync": SYNC,
    "k-sync": K_SYNC,
    "downpour": DOWNPOUR,
    "ssp": SSP,
    "easgd": EASGD,
    "fedasync": FEDASYNC,
    "fedbuff": FEDBUFF,
    "k-async": K_ASYNC,
    "quorum": QUORUM,
}
