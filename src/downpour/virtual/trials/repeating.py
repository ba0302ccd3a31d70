"""Repeats seeds in another process, because earlier runs must not change what a seed gives.

The other process hashes text differently, so an order that comes from a set shows. It has run no
other seeds, so anything that one run leaves behind for the next shows as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from downpour.virtual.faults.plan import plan_of
from downpour.virtual.trials.simulation import Outcome, simulate

_EVERY = 100
"""One of this many seeds runs twice."""
_OTHER_HASHES = "20121026"


def is_repeated(seed: int) -> bool:
    """Whether a seed runs twice."""
    return seed % _EVERY == 0


def different(outcomes: Sequence[Outcome]) -> list[int]:
    """Return the seeds whose second run differs from the first."""
    if not outcomes:
        return []
    digests = _digests_elsewhere([outcome.plan.seed for outcome in outcomes])
    return [
        outcome.plan.seed
        for outcome, digest in zip(outcomes, digests, strict=True)
        if outcome.digest != digest
    ]


def _digests_elsewhere(seeds: Sequence[int]) -> list[str]:
    words = [sys.executable, "-m", __name__, *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": _OTHER_HASHES, "PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run(  # noqa: S603 - this interpreter, with numbers
        words, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return told.stdout.split()


if __name__ == "__main__":
    for word in sys.argv[1:]:
        print(simulate(plan_of(int(word))).digest)  # noqa: T201 - the other process reads it
