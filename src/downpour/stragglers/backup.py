"""`backup`: n + b shards are trained, and the first n of them count.

Whoever is late is left to finish for nothing, as in synchronous SGD with backup workers: what comes
with an old stamp is thrown away when it comes. So no message has to reach a straggler in time.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.stragglers.base import Action, Close, Option, Policy, RoundView
from downpour.stragglers.outlook import number
from downpour.stragglers.pairing import pair

OPTIONS: Mapping[str, Option] = {"backups": 1}


def _backup(view: RoundView) -> list[Action]:
    backups = max(int(number(view, OPTIONS, "backups")), 0)
    needed = max(view.shards - backups, 1)
    if needed <= len(view.published) < view.shards:
        late = view.shards - len(view.published)
        reason = f"{len(view.published)} of {view.shards} are there, {late} come for nothing"
        return [Close(reason=reason, leave_running=True)]
    return [*pair(view)]


BACKUP = Policy(
    decide=_backup,
    watches=True,
    preserves_bytes=False,
    options=OPTIONS,
    summary="all but b shards count; the last b workers finish for nothing",
)
