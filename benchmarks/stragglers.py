"""What straggler policies do for real: MNIST rounds on workers that are slowed.

Eight shards and eight workers, each on a share of a processor of its own. One of the eight is
slowed: to a quarter of its share, by standing still now and then, by three busy neighbours in its
share, or to a quarter for a few seconds, and then another one is (`wandering`). First no worker is
slowed, and then all are waited for (`wait`); then a ninth worker joins, to stand by, and the
policies have their turn, with no worker slowed as well. Every seed is a row of the JSON; the table
has means, and standard deviations over seeds.

  mitigation  (T_wait - T_policy) / (T_wait - T_ideal), T_ideal the undisturbed rounds' median
  to_target   seconds of rounds until the target accuracy, over those of the undisturbed run
  extra_work  seconds of work that was lost over those of work that counts, by the run's record
  cpu_s       processor seconds of the manager and the workers, from submission to result
"""

from __future__ import annotations

import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import cast

import psutil
import slowing
from common import Row, command_line, show

from downpour import Client, Spec
from downpour.record import Result
from downpour.record.timeline import AttemptSpan
from downpour.show.figures.style import to_svg
from downpour.show.figures.timeline_figure import timelines_figure

WORKERS = 9
SLOWED = "worker-3"
_COMMAND = [sys.executable, "-m", "downpour"]
_ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
UNDISTURBED = "undisturbed"
WAYS = ("quarter", "pauses", "neighbours", "wandering")


class Cluster:
    """A manager and workers as processes, every worker in a share of its own."""

    def __init__(
        self, shared: Path, share: float, wandering_seconds: float, stack: ExitStack
    ) -> None:
        self._stack = stack
        self._wandering_seconds = wandering_seconds
        self._shared = shared
        self.share = share
        self._processes: list[psutil.Process] = []
        self.manager = self._start("manager", "--shared", str(shared), "--port", "0")
        self.shares: dict[str, slowing.Share] = {}
        self.pids: dict[str, int] = {}

    def join(self, *numbers: int) -> None:
        """Let workers join; each has its share once all are there, as imports take long."""
        for number in numbers:
            name = f"worker-{number}"
            self.shares[name] = slowing.Share(name)
            self._stack.callback(self.shares[name].remove)
            where = "--shared", str(self._shared), "--manager", self.manager
            self._start("worker", *where, "--name", name)
            self.pids[name] = self._processes[-1].pid
            self.shares[name].take(self.pids[name])
        for number in numbers:
            self.shares[f"worker-{number}"].set(self.share)

    def _start(self, *words: str) -> str:
        process = subprocess.Popen(
            [*_COMMAND, *words], stderr=subprocess.PIPE, text=True, env=_ALONE
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._processes.append(psutil.Process(process.pid))
        for line in process.stderr or ():
            if found := re.match(rf"{words[0]} at ([^,]+),", line):
                return found[1]
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
        elif way == "wandering":
            eight = [self.shares[f"worker-{number}"] for number in range(1, WORKERS)]
            doing = slowing.wandering(eight, self.share, self._wandering_seconds)
        try:
            with doing:
                yield
        finally:
            share.set(self.share)

    def run(self, spec: Spec, way: str = UNDISTURBED) -> Run:
        """Run an experiment to its end, with one worker slowed in a way."""
        before = self._cpu_seconds()
        with self.slowed(way), Client(self.manager, shared=self._shared) as client:
            result = client.wait(client.submit(spec))
        return Run(way, spec, result, self._cpu_seconds() - before, tuple(result.spans))

    def _cpu_seconds(self) -> float:
        times = (process.cpu_times() for process in self._processes)
        return sum(one.user + one.system for one in times)


@dataclass(frozen=True, slots=True)
class Run:
    """A run, and what it took."""

    way: str
    spec: Spec
    result: Result
    cpu_seconds: float
    attempt_spans: tuple[AttemptSpan, ...]

    @property
    def seconds(self) -> list[float]:
        """Of the rounds, but for the first, in which everything is loaded."""
        return [one.train_seconds for one in self.result.rounds[1:]]

    @property
    def model(self) -> bytes:
        """The final model's bytes."""
        return self.result.model_file.read_bytes() if self.result.model_file else b""

    def to_target(self, target: float) -> float | None:
        """Return the seconds of rounds until the target accuracy."""
        spent = 0.0
        for one in self.result.rounds:
            spent += one.train_seconds
            if one.accuracy is not None and one.accuracy >= target:
                return spent
        return None

    def row(self, clean: Run, waited: Run) -> Row:
        """Compare it with the undisturbed run and with waiting."""
        mean, ideal = statistics.fmean(self.seconds), statistics.median(clean.seconds)
        wait = statistics.fmean(waited.seconds)
        target = clean.result.rounds[-2].accuracy or 0.0
        reached, cleanly = self.to_target(target), clean.to_target(target)
        told = self.result.stragglers
        return {
            "slowed": self.way,
            "policy": self.spec.policy,
            "seed": self.spec.seed,
            "round_s": mean,
            "worst_s": max(self.seconds),
            "mitigation": (wait - mean) / (wait - ideal) if self.way != UNDISTURBED else math.nan,
            "to_target": reached / cleanly if reached and cleanly else math.nan,
            "extra_work": (told.extra_work or 0.0) if told else 0.0,
            "moves": told.moves / len(self.result.rounds) if told else 0.0,
            "cpu_s": self.cpu_seconds,
            "accuracy": self.result.rounds[-1].accuracy or math.nan,
            "same_model": float(self.model == clean.model),
        }


def measure(
    policies: Sequence[str],
    ways: Sequence[str],
    specs: Sequence[Spec],
    share: float,
    wandering_seconds: float,
) -> tuple[list[Row], list[Run]]:
    """Run everything, one after the other, on one cluster."""
    rows: list[Row] = []
    runs: list[Run] = []
    with ExitStack() as stack:
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="downpour-slow-")))
        cluster = Cluster(shared, share, wandering_seconds, stack)
        cluster.join(*range(1, WORKERS))
        cluster.run(specs[0].replace(epochs=1))  # loads everything
        waited = {}
        for spec, way in product(specs, (UNDISTURBED, *ways)):
            run = waited[spec.seed, way] = cluster.run(spec, way)
            rows.append(_told(run.row(waited[spec.seed, UNDISTURBED], run)))
            runs.append(run)
        cluster.join(WORKERS)
        cluster.run(specs[0].replace(epochs=2, policy="handoff", standbys=1))
        for spec, policy, way in product(specs, policies, (UNDISTURBED, *ways)):
            run = cluster.run(spec.replace(policy=policy, standbys=1), way)
            rows.append(_told(run.row(waited[spec.seed, UNDISTURBED], waited[spec.seed, way])))
            runs.append(run)
    return rows, runs


def draw(runs: Sequence[Run], way: str, file: Path) -> None:
    """Draw what each policy did about a way of being slow, with the first seed."""
    shown: dict[str, Sequence[AttemptSpan]] = {}
    for run in runs:
        if run.way == way:
            shown.setdefault(run.spec.policy, run.attempt_spans)
    file.write_text(to_svg(timelines_figure(shown), file.stem), "utf-8")


def _told(row: Row) -> Row:
    print(row, file=sys.stderr, flush=True)
    return row


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each way and policy: means, and standard deviations where there are any."""
    groups: dict[tuple[object, object], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["slowed"], row["policy"]), []).append(row)
    return [
        {"slowed": way, "policy": policy}
        | {
            name: _spread([cast("float", row[name]) for row in group])
            for name in group[0]
            if name not in {"slowed", "policy", "seed"}
        }
        for (way, policy), group in groups.items()
    ]


def _spread(values: list[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    mean = f"{statistics.fmean(known):.3g}"
    return f"{mean} ± {statistics.stdev(known):.2g}" if len(set(known)) > 1 else mean


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--policies", default="handoff,replace", help="names, with commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="how one worker is slowed")
    parser.add_argument("--epochs", type=int, default=6, help="three at least")
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--precision", default="bfloat16", help="float32 where the processor has no bfloat16"
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind")
    parser.add_argument(
        "--wandering-seconds", type=float, default=15.0, help="until another worker is slowed"
    )
    parser.add_argument("--share", type=float, default=0.2, help="of a processor, each worker's")
    parser.add_argument("--figure", type=Path, help="draw the first way's timelines into this SVG")
    chosen = parser.parse_args()
    if reason := slowing.why_not():
        parser.exit(0, f"skipped: {reason}\n")
    spec = Spec(
        dataset="mnist",
        model="mnist-cnn",
        train_limit=chosen.samples,
        test_limit=2000,
        shards=WORKERS - 1,
        epochs=chosen.epochs,
        batch_size=chosen.batch_size,
        precision=chosen.precision,
        keep_models=1,
        policy="wait",
    )
    specs = [spec.replace(seed=seed) for seed in range(chosen.seeds)]
    ways = chosen.ways.split(",")
    policies = chosen.policies.split(",")
    rows, runs = measure(policies, ways, specs, chosen.share, chosen.wandering_seconds)
    if chosen.figure:
        draw(runs, ways[0], chosen.figure)
    show(rows if chosen.json else over_seeds(rows), as_json=chosen.json)


if __name__ == "__main__":
    main()
