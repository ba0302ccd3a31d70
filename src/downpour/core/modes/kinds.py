"""The modes that a spec can name."""

from __future__ import annotations

from downpour.core.modes.base import ModeKind
from downpour.core.modes.downpour import DOWNPOUR
from downpour.core.modes.easgd import EASGD
from downpour.core.modes.fedasync import FEDASYNC
from downpour.core.modes.fedbuff import FEDBUFF, K_ASYNC
from downpour.core.modes.quorum import QUORUM
from downpour.core.modes.ssp import SSP
from downpour.core.modes.sync import K_SYNC, SYNC

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
