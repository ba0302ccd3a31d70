"""`backup`: train n + b shards, and count the first n updates (Chen, Pan et al. 2016).

The policy lets late workers finish. Such an update names an old round, and the manager discards it
on arrival. So no message has to reach a straggler in time.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core.stragglers.base import Action, Close, Option, Policy, RoundView
from downpour.core.stragglers.outlook import number
from downpour.core.stragglers.pairing import pair

OPTIONS: Mapping[str, Option] = {"backups": 1}


def _backup(view: RoundView) -> list[Action]:
    # `check_policy` accepts a fraction even if the default is a whole number.
    backups = max(int(number(view, OPTIONS, "backups")), 0)
    # We need at least one update, because the scheduler does not close a round without one.
    needed = max(view.shards - backups, 1)
    if needed <= len(view.published) < view.shards:
        late = view.shards - len(view.published)
        reason = f"{len(view.published)} of {view.shards} updates are there; {late} not waited for"
        return [Close(reason=reason, leave_running=True)]
    return [*pair(view)]


BACKUP = Policy(
    decide=_backup,
    watches=True,
    preserves_bytes=False,
    options=OPTIONS,
)
