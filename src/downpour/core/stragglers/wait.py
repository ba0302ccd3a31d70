"""`wait`: the plain barrier. Shards go to idle workers, and the round waits for all of them."""

from __future__ import annotations

from downpour.core.stragglers.base import Action, Policy, RoundView
from downpour.core.stragglers.pairing import pair


def _wait(view: RoundView) -> list[Action]:
    return [*pair(view)]


WAIT = Policy(decide=_wait)
