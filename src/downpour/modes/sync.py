"""`sync`: all shards of a round become one version, and the next round begins from that.

Local SGD with a barrier; with one meeting an epoch, FedAvg (McMahan et al. 2017).
"""

from __future__ import annotations

from downpour.modes.base import Mode, ModeKind

SYNC = ModeKind(
    make=lambda _options, _shards: Mode(together=None, ahead=0),
    summary="all shards of a round become one version, and the next round begins from that",
)
