"""`dylu`: a slow worker trains fewer steps of its shard, so that all end together.

Dynamic local updates (Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling",
sec. 5): of H steps, a worker of speed v trains floor(H v / v_ref). In the paper, v_ref is the speed
of the fastest worker. Here it is the 90th percentile of the speeds, and no worker trains more than
H steps. So one wrong measurement does not shorten the tasks of all other workers. No worker trains
the omitted steps in that round. Each epoch omits other examples, because it has its own order.

Speeds combine the forecast and the last heartbeats (`Outlook.speed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import floor

from downpour.core.stragglers.base import Action, Option, Policy, RoundView
from downpour.core.stragglers.outlook import Outlook, number, quantile
from downpour.core.stragglers.pairing import pair

OPTIONS: Mapping[str, Option] = {"least": 0.1}

_REFERENCE = 0.9
_PARTS = 1000  # rounds a share, so that it is short in writing


def _dylu(view: RoundView) -> list[Action]:
    shares = _shares(view)
    return [
        replace(
            choice, share=shares[choice.worker], reason=_why(choice.reason, shares[choice.worker])
        )
        for choice in pair(view)
    ]


def _shares(view: RoundView) -> dict[str, float]:
    """Return each idle worker's share of a task; the whole task if its speed is unknown."""
    outlook = Outlook(view)
    known = {name: outlook.speed(name) for name in view.workers}
    speeds = {name: speed for name, speed in known.items() if speed is not None and speed > 0}
    reference, least = quantile(speeds.values(), _REFERENCE), number(view, OPTIONS, "least")
    return {
        name: min(max(floor(_PARTS * speeds[name] / reference) / _PARTS, least, 1 / _PARTS), 1.0)
        if name in speeds
        else 1.0
        for name in view.idle
    }


def _why(reason: str, share: float) -> str:
    return reason if share == 1 else f"{reason}; {share:.0%} of its steps, by its speed"


DYLU = Policy(decide=_dylu, watches=True, preserves_bytes=False, shortens=True, options=OPTIONS)
