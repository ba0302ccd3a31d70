"""How near the share of the time that `downpour status` says a worker saves is to what it saves.

The code that ships trains rounds in the simulator, with policy `handoff`: on `fast` equal workers,
and on these and one more, which has `speed` of theirs. The shards stay the same: as many as fast
workers, one more, half as many again, or twice as many. An epoch takes one fast worker forty
seconds. Speeds vary by five percent from round to round. `link` is what it takes to hand a shard
over, as a share of a fast worker's task.

`measured` is what the worker saves in the simulator, in percent of the seconds of an epoch without
it, from the third epoch on; below zero it costs time. `predicted` is what `status` would say of
these speeds. A worker that stands by is predicted to save nothing; `if used` is then what its help
would save.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from math import ceil

from common import Row
from slow_machine import Work, epochs, table

from downpour.core.stragglers.base import RoundView, Speed
from downpour.core.stragglers.handoff import contributions
from downpour_lab.policylab.conditions import SAMPLES

SHARDS: dict[str, Callable[[int], int]] = {
    "as many": lambda fast: fast,
    "one more": lambda fast: fast + 1,
    "half as many again": lambda fast: ceil(1.5 * fast),
    "twice": lambda fast: 2 * fast,
}
_LEARNING = 2


def predicted(fast: int, speed: float, shards: int, link: float, work: Work) -> tuple[float, bool]:
    """Return the share of the time that one more worker saves, and whether it stands by."""
    task = work.seconds / shards
    names = tuple(f"host-{number}" for number in range(fast + 1))
    speeds = (speed, *((1.0,) * fast))
    measured = {
        name: Speed(
            samples_per_second=SAMPLES / task * own,
            share=1.0,
            variance=0.0,
            step_seconds=task / own / work.steps,
        )
        for name, own in zip(names, speeds, strict=True)
    }
    view = RoundView(
        round=3,
        at_seconds=0.0,
        pending=(),
        idle=names,
        workers=names,
        speeds=measured,
        overhead_seconds=link * task,
    )
    one = contributions(view, (SAMPLES,) * shards, names[:1])[names[0]]
    return one.share, one.stands_by


def row(fast: int, speed: float, shards: str, link: float, work: Work) -> Row:
    """Measure with the worker and without; returns a row of the table."""
    number = SHARDS[shards](fast)
    alone, joined = (1.0,) * fast, (speed, *((1.0,) * fast))
    before, after = (
        statistics.mean(
            seconds
            for seed in range(work.seeds)
            for seconds in epochs(who, number, link, seed, work)[_LEARNING:]
        )
        for who in (alone, joined)
    )
    saves, stands_by = predicted(fast, speed, number, link, work)
    return {
        "shards": shards,
        "link": link,
        "fast": fast,
        "speed": f"1/{round(1 / speed)}",
        "measured": round(100 * (1 - after / before), 1),
        "predicted": 0.0 if stands_by else round(100 * saves, 1),
        "if used": round(100 * saves, 1) if stands_by else "",
    }


if __name__ == "__main__":
    sys.exit(table(__doc__, SHARDS, row))
