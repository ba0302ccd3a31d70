"""What straggler policies do for real: MNIST rounds on workers that are slowed.

Eight shards, eight workers and one that stands by, each on a share of a processor of its own. One
of the eight is slowed: to a quarter of its share, by standing still now and then, or by three busy
neighbours in its share. Beside every policy stand, in the same run, the same rounds with nobody
slowed (`clean`) and with everybody waited for (`wait`).

  mitigation  (T_wait - T_policy) / (T_wait - T_ideal), T_ideal the clean rounds' median
  to_target   seconds of rounds until the target accuracy, over those of the clean run
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import slowing
from common import Row, command_line, show

from downpour import Client, Spec
from downpour.reports import Result

WORKERS = 9
SLOWED = "worker-3"
_COMMAND = [sys.executable, "-m", "downpour.cli"]
_ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
WAYS = ("quarter", "pauses", "neighbours")


class Cluster:
    """A manager and workers as processes, every worker in a share of its own."""

    def __init__(self, shared: Path, share: float, stack: ExitStack) -> None:
        self._stack = stack
        self._shared = shared
        self.share = share
        _, self.manager = self._start("manager", "--shared", str(shared), "--port", "0")
        self.shares: dict[str, slowing.Share] = {}
        self.pids: dict[str, int] = {}
        for number in range(1, WORKERS + 1):
            self._join(f"worker-{number}")
        for one in self.shares.values():  # not before: imports would take a minute
            one.set(share)

    def _join(self, name: str) -> None:
        self.shares[name] = slowing.Share(name)
        self._stack.callback(self.shares[name].remove)
        where = "--shared", str(self._shared), "--manager", self.manager
        self.pids[name], _ = self._start("worker", *where, "--name", name)
        self.shares[name].take(self.pids[name])

    def _start(self, *words: str) -> tuple[int, str]:
        process = subprocess.Popen(
            [*_COMMAND, *words], stderr=subprocess.PIPE, text=True, env=_ALONE
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        for line in process.stderr or ():
            if found := re.match(rf"{words[0]} at ([^,]+),", line):
                return process.pid, found[1]
        raise RuntimeError(f"{' '.join(words)} ended")

    @contextmanager
    def slowed(self, way: str) -> Iterator[None]:
        """Slow one worker down for a while."""
        share, pid = self.shares[SLOWED], self.pids[SLOWED]
        doing: AbstractContextManager[None] = nullcontext()
        if way == "quarter":
            share.set(self.share / 4)
        elif way == "pauses":
            doing = slowing.paused_now_and_then(pid, every_seconds=4.0, for_seconds=6.0)
        elif way == "neighbours":
            doing = slowing.neighbours(share, 3)
        try:
            with doing:
                yield
        finally:
            share.set(self.share)

    def run(self, spec: Spec) -> Result:
        """Run an experiment to its end."""
        with Client(self.manager, shared=self._shared) as client:
            return client.wait(client.submit(spec))


def rounds_of(result: Result) -> list[float]:
    """Return the seconds of the rounds, but for the first, in which everything is loaded."""
    return [one.train_seconds for one in result.rounds[1:]]


def to_target(result: Result, target: float) -> float | None:
    """Return the seconds of rounds until the target accuracy."""
    spent = 0.0
    for one in result.rounds:
        spent += one.train_seconds
        if one.accuracy is not None and one.accuracy >= target:
            return spent
    return None


def row(way: str, policy: str, result: Result, known: dict[str, Result], target: float) -> Row:
    """Compare a run with the clean one and with waiting."""
    mean = statistics.fmean(rounds_of(result))
    ideal = statistics.median(rounds_of(known["clean"]))
    waited = statistics.fmean(rounds_of(known["wait"])) if "wait" in known else mean
    reached, clean = to_target(result, target), to_target(known["clean"], target)
    return {
        "slowed": way,
        "policy": policy,
        "round_s": mean,
        "worst_s": max(rounds_of(result)),
        "mitigation": (waited - mean) / (waited - ideal) if waited > ideal else "",
        "accuracy": result.rounds[-1].accuracy or 0.0,
        "to_target": reached / clean if reached and clean else "",
        "same_model": _same(result, known["clean"]),
    }


def _same(one: Result, other: Result) -> bool:
    files = one.model_file, other.model_file
    return all(files) and files[0].read_bytes() == files[1].read_bytes()  # type: ignore[union-attr]


def measure(policies: Sequence[str], ways: Sequence[str], spec: Spec, share: float) -> list[Row]:
    """Run everything, one after the other, on one cluster."""
    rows: list[Row] = []
    with ExitStack() as stack:
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="downpour-slow-")))
        cluster = Cluster(shared, share, stack)
        cluster.run(spec.replace(epochs=1))  # loads everything
        clean = cluster.run(spec)
        target = (clean.rounds[-2].accuracy or 0.0) if len(clean.rounds) > 1 else 0.0
        rows.append(row("nobody", "wait", clean, {"clean": clean}, target))
        for way in ways:
            known = {"clean": clean}
            for policy in ("wait", *(p for p in policies if p != "wait")):
                with cluster.slowed(way):
                    result = cluster.run(spec.replace(policy=policy))
                known.setdefault(policy, result)
                rows.append(row(way, policy, result, known, target))
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--policies", default="handoff,replace", help="names, with commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="how one worker is slowed")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--share", type=float, default=0.2, help="of a processor, each worker's")
    chosen = parser.parse_args()
    if reason := slowing.why_not():
        parser.exit(0, f"skipped: {reason}\n")
    spec = Spec(
        dataset="mnist",
        model="mnist-cnn",
        train_limit=chosen.samples,
        test_limit=2000,
        shards=WORKERS - 1,
        standbys=1,
        epochs=chosen.epochs,
        batch_size=64,
        precision="bfloat16",
        keep_models=1,
    )
    policies, ways = chosen.policies.split(","), chosen.ways.split(",")
    show(measure(policies, ways, spec, chosen.share), as_json=chosen.json)


if __name__ == "__main__":
    main()
