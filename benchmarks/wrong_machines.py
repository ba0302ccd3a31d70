"""How soon audits find a worker that computes wrong, and what they cost, by fault and share.

Four real workers train a small network on the digits, in step, and one of them is wrong from its
eighth task on (`wrong_worker.py`): one flipped bit in a weight of its update (`weight`), in an
activation of each task's first step, in the optimizer's state; it skips every fourth step, does
none (`input`), trains in another order (`indices`); it has a library that rounds otherwise; or it
is wrong only at first attempts, so never when it audits (`watched`). Columns: runs that found the
worker, runs that accused another one, and its updates that counted before (median).

With `--costs`, the seconds of a round with audits over those without, in virtual time: 2 and 10
equal machines whose times vary by five percent, as many shards as machines (`idle` 0) or fewer.
Each share has `--rounds` rounds, so a share of 0.01 audits about two of 200.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from common import Row, command_line, show
from wrong_worker import KINDS, WORKER

from downpour import Outer, Spec, run
from downpour.record.record import read_record
from downpour.record.record_lines import QuarantinedLine
from downpour_lab.policylab.comparison import Contender, Settings, rounds_on
from downpour_lab.policylab.conditions import Unequal

FROM = 8
ROUNDS = 60


def main() -> None:
    """Parse, train with every fault, print."""
    parser = command_line(__doc__)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    if options.costs:
        show(costs(options.shares, options.rounds, options.seeds), as_json=options.json)
        return
    os.environ["DOWNPOUR_ALLOW"] = "wrong_worker"
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    rows: list[Row] = []
    for kind in options.kinds:
        for share in options.shares:
            found = [trained(kind, share, seed) for seed in range(options.seeds)]
            right = [line for lines in found for line in lines if line.worker == WORKER]
            wrong = sum(line.worker != WORKER for lines in found for line in lines)
            counted = median(line.unaudited for line in right) if right else None
            rows.append(
                {
                    "fault": kind,
                    "audit": share,
                    "found": f"{len(right)}/{len(found)}",
                    "wrongly": wrong,
                    "counted": counted,
                    "diagnosis": right[0].reason.partition(",")[0] if right else "",
                }
            )
    show(rows, as_json=options.json)


def costs(shares: Sequence[float], rounds: int, seeds: int) -> list[Row]:
    """Measure in virtual time."""
    rows: list[Row] = []
    for machines, idle in ((2, 0), (2, 1), (10, 0), (10, 1), (10, 5)):
        ratios = {}
        plain = seconds_of(machines, idle, 0.0, rounds, seeds)
        for share in shares:
            ratio = seconds_of(machines, idle, share, rounds, seeds) / plain
            ratios[f"audit_{share:g}_percent"] = round(100 * (ratio - 1), 1)
        rows.append({"machines": machines, "idle": idle, **ratios})
    return rows


def seconds_of(machines: int, idle: int, share: float, rounds: int, seeds: int) -> float:
    """Return the seconds of all rounds, summed over the seeds."""
    total = 0.0
    for seed in range(seeds):
        job = Unequal(
            speeds=(1.0,) * machines,
            hosts=machines - idle,
            seed=seed,
            rounds=rounds,
            task_seconds=20.0,
        )
        contender = Contender(name="handoff", standbys=0, snapshots=True)
        settings = Settings(seed=seed, audit=share, heartbeat_seconds=5.0, steps=20)
        total += sum(each.seconds for each in rounds_on(machines, contender, job, settings))
    return total


def trained(kind: str, share: float, seed: int) -> list[QuarantinedLine]:
    """Train once; return the workers that were found."""
    os.environ |= {"WRONG": kind, "WRONG_FROM": str(FROM)}
    spec = Spec(
        model="wrong_worker:network",
        audit=share,
        seed=seed,
        meet=1,
        epochs=ROUNDS,
        optimizer_state="keep",
        outer=Outer(optimizer="none"),
    )
    with tempfile.TemporaryDirectory() as folder:
        result = run(spec, workers=4, shared=folder)
        assert result.folder is not None
        lines = [line for _, line in read_record(result.folder / "record.jsonl")]
    return [line for line in lines if isinstance(line, QuarantinedLine)]


if __name__ == "__main__":
    main()
