"""What one more machine does to the time of an epoch, by how fast it is, in virtual time.

The code that ships trains rounds in the simulator, with policy `handoff` and mode `sync`: on `fast`
equal machines, and on these and one more, which has `speed` of theirs. An epoch is the same work in
both; on one fast machine it takes forty seconds, or `--seconds`. A task has a hundred steps, or
`--steps`: of few and long ones, a very slow machine has done none when another one relieves it. All
machines vary by five percent from round to round. The other one registers first, so that it is
given a shard in the first epoch. `shards` are

- `fixed`: as many as fast machines, with and without the other one,
- `twice`, `half as many again`: more than machines, with and without it,
- `machines`: one for each machine, which is the default; so there is one more with the other one.

`link` is what it takes to hand a shard over, as a share of a fast machine's task. The policy is
told of it by its option `cost`; a manager measures it.

`first` and `later` are the seconds of the first epoch and of the others, with the slow machine over
without it, minus 1, in percent: below zero it saves time, above it costs time. In the first epoch
nothing is known of any machine. `bound` is what a division of the work without costs would save:
-speed / (fast + speed). `worst` is the worst later epoch's of all seeds, over the mean without.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import product
from math import ceil

from common import Row, command_line, show

from downpour_lab.policylab.comparison import Contender, Settings, rounds_on
from downpour_lab.policylab.conditions import Unequal

SPEEDS = (1.0, 1 / 2, 1 / 4, 1 / 10, 1 / 30)
SHARDS: dict[str, Callable[[int, int], int]] = {
    "fixed": lambda fast, _: fast,
    "half as many again": lambda fast, _: ceil(1.5 * fast),
    "twice": lambda fast, _: 2 * fast,
    "machines": lambda _, machines: machines,
}
EPOCH_SECONDS = 40.0
STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much there is to train: `rounds` epochs, each of which takes a fast machine `seconds`."""

    rounds: int
    seconds: float = EPOCH_SECONDS
    steps: int = STEPS
    seeds: int = 1


def epochs(
    speeds: tuple[float, ...], shards: int, link: float, seed: int, work: Work
) -> list[float]:
    """Train in virtual time; returns the seconds of each epoch."""
    task, rounds = work.seconds / shards, work.rounds
    job = Unequal(speeds=speeds, hosts=shards, seed=seed, rounds=rounds, task_seconds=task)
    # The ledger's clock runs from a round's first assignment to its last update.
    beat = min(1.0, task / 20)
    settings = Settings(moving=link, seed=seed, heartbeat_seconds=beat, steps=work.steps)
    cost = {"cost": link + 0.002}
    policy = Contender(name="handoff", standbys=0, snapshots=True, options=cost)
    return [one.seconds for one in rounds_on(len(speeds), policy, job, settings)]


def row(fast: int, speed: float, shards: str, link: float, work: Work) -> Row:
    """Measure with the slow machine and without; returns a row of the table."""
    alone, joined = (1.0,) * fast, (speed, *((1.0,) * fast))
    before, after = (
        [
            epochs(who, SHARDS[shards](fast, len(who)), link, seed, work)
            for seed in range(work.seeds)
        ]
        for who in (alone, joined)
    )
    usual = statistics.mean(seconds for run in before for seconds in run[1:])
    first = statistics.mean(run[0] for run in after) / statistics.mean(run[0] for run in before)
    later = [seconds for run in after for seconds in run[1:]]
    return {
        "shards": shards,
        "link": link,
        "fast": fast,
        "speed": f"1/{round(1 / speed)}",
        "first": round(100 * (first - 1), 1),
        "later": round(100 * (statistics.mean(later) / usual - 1), 1),
        "worst": round(100 * (max(later) / usual - 1), 1),
        "bound": round(-100 * speed / (fast + speed), 1),
    }


def table(description: str | None, kinds: Collection[str], row: Callable[..., Row]) -> int:
    """Show a row for each cell that the command line asks for: kinds of shards, links, machines."""
    parser = command_line(description)
    parser.add_argument("--fast", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--shards", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--links", nargs="+", type=float, default=[0.01, 0.1])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=EPOCH_SECONDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    work = Work(
        rounds=options.rounds, seconds=options.seconds, steps=options.steps, seeds=options.seeds
    )
    cells = product(options.shards, options.links, options.fast, SPEEDS)
    rows = [row(fast, speed, shards, link, work) for shards, link, fast, speed in cells]
    show(rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(table(__doc__, SHARDS, row))
