"""Searches for a seed that fails, and sums up what many runs compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from downpour_lab.checks.promises import Happening, Promise, catalogue
from downpour_lab.faults.plan import Plan, plan_of
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials.simulation import Outcome, simulate
from downpour_lab.trials.striking import ManagerClass


def outcomes(
    seeds: Iterable[int], manager_class: ManagerClass = SimulatedManager, **defects: Any
) -> Iterator[Outcome]:
    """Run the plan of each seed; tests plant `defects`, see `Cluster`."""
    return (simulate(plan_of(seed), manager_class, **defects) for seed in seeds)


def shrunken(plan: Plan, manager_class: ManagerClass = SimulatedManager) -> Plan:
    """Return a plan with the fewest of its faults that still fails.

    The search leaves out faults while the plan still fails, many at once at first, until it can
    leave out none. It returns a plan that does not fail unchanged.
    """

    def fails(numbers: set[int]) -> bool:
        return bool(simulate(plan.with_faults(numbers), manager_class).failure)

    kept = [fault.number for fault in plan.faults]
    if not fails(set(kept)):
        return plan
    return plan.with_faults(set(_fewest(kept, fails)))


def _fewest(kept: list[int], fails: Callable[[set[int]], bool]) -> list[int]:
    """Leave out parts of a list, first halves and finally single items, while the rest fails."""
    size = len(kept)
    while size >= 1:
        begin = 0
        while begin < len(kept):
            rest = kept[:begin] + kept[begin + size :]
            if fails(set(rest)):
                kept = rest
            else:
                begin += size
        size //= 2
    return kept


_EVERY = 100
"""One of this many seeds runs twice."""
_OTHER_HASHES = "20121026"


def different(outcomes: Sequence[Outcome]) -> list[int]:
    """Return the seeds whose second run differs from the first.

    The second run is in another process, because earlier runs must not change what a seed gives.
    That process hashes text differently, so an order that comes from a set shows. It has run no
    other seeds, so anything that one run leaves behind for the next shows as well.
    """
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


class RunsTally:
    """Adds outcomes up; `to_repeat` are the outcomes whose seeds run a second time."""

    def __init__(self) -> None:
        self.runs = self.steps = 0
        self.virtual_seconds = 0.0
        self.compared: Counter[Promise] = Counter()
        self.happened: Counter[Happening] = Counter()
        self.to_repeat: list[Outcome] = []

    def take(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs += 1
        self.steps += outcome.steps
        self.virtual_seconds += outcome.seconds
        self.compared.update(outcome.compared)
        self.happened.update(outcome.happened)
        if outcome.plan.seed % _EVERY == 0:
            self.to_repeat.append(outcome)

    def never(self) -> dict[str, list[str]]:
        """Return, by group, what happened in no run."""
        missing: dict[str, list[str]] = {}
        for group, name in catalogue():
            if not self.happened[group, name]:
                missing.setdefault(group, []).append(name)
        return missing
