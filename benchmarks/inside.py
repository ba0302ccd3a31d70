"""Steps a second of one worker, by the processes and threads inside it.

Contenders take turns in slices of a few steps, and the ratios are medians over the slices, so that
a busy machine slows all of them alike. "N parts" is one process that computes N parts one after the
other, which gives the bytes of processes that share N parts, and "hybrid, one process" gives those
of the hybrid. Where others take the cores, wall time says little of several processes; then the
processor time of the busiest one tells what they could gain at best (with two threads it is that of
both, which says nothing). Memory is that of the helper, with the parameters that it uses; the
worker's process has the other contenders as well. The pictures are noise.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from common import Row, command_line, show

from downpour.core.spec import Spec
from downpour.core.spec_fields import Inside
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.intra_worker.team import Team
from downpour.learning.tasks.loaded import load
from downpour.learning.training.loop import LocalTask, ShardTraining

READY_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network, the pixels of a picture's side, the batch, and the steps of a slice."""

    model: str
    side: int
    channels: int
    batch: int
    steps: int


CASES = (
    Case(model="mnist-cnn", side=28, channels=1, batch=64, steps=20),
    Case(model="alexnet", side=224, channels=3, batch=8, steps=2),
    Case(model="vgg16", side=224, channels=3, batch=8, steps=1),
)
HYBRID = Inside(processes=2, how="hybrid")
ALONE = "hybrid, one process"
PIPELINE = Inside(processes=2, how="pipeline")
ARRANGEMENTS: dict[str, dict[str, object]] = {
    "one process": {},
    "two parts": {"accumulate": 2},
    "four parts": {"accumulate": 4},
    "two threads": {"threads": 2},
    "two processes": {"inside": Inside(processes=2)},
    "pipeline, two parts": {"inside": PIPELINE},
    "pipeline, four parts": {"inside": PIPELINE, "accumulate": 4},
    ALONE: {"inside": HYBRID},
    "hybrid": {"inside": HYBRID},
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One arrangement: what trains the steps of a slice, and its helpers."""

    train: Callable[[], None]
    helpers: Sequence[int]

    def cpu_seconds(self) -> list[float]:
        """What this process and each helper have used of the processor so far."""
        used = [psutil.Process(pid).cpu_times() for pid in self.helpers]
        return [time.process_time(), *(times.user + times.system for times in used)]

    def helper_megabytes(self) -> float:
        """The resident memory of the largest helper; 0 without helpers."""
        used = [psutil.Process(pid).memory_info().rss for pid in self.helpers]
        return max(used, default=0) / 1e6


def contender(case: Case, folder: Path, label: str, ending: ExitStack) -> Contender:
    """Start one arrangement."""
    spec = Spec.make(
        {
            "dataset": "npz",
            "data_path": str(_pictures(case, folder)),
            "model": case.model,
            "batch_size": case.batch,
            "learning_rate": 0.001,
            "meet": 1,
            **ARRANGEMENTS[label],
        }
    )
    key = prepare(spec, folder)
    loaded = load(spec, open_prepared(folder, key))
    network = loaded.network()
    team = None
    if spec.inside.processes > 1 and label != ALONE:
        team = Team(loaded, network, folder, key)
        ending.callback(team.close)
        team.wait_until_ready(READY_SECONDS)
    # The same few examples again and again: nothing here depends on which they are.
    indices = np.tile(np.arange(loaded.count("train")), 100)
    training = ShardTraining(
        loaded, network, LocalTask(indices=indices, round=0, shard=0), helpers=team
    )
    return Contender(lambda: training.advance(case.steps), team.pids if team else ())


def measure(case: Case, turns: int) -> list[Row]:
    """Let all arrangements take turns; returns a row for each."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as ending:
        contenders = {label: contender(case, Path(name), label, ending) for label in ARRANGEMENTS}
        for one in contenders.values():
            one.train()
        seconds: dict[str, list[float]] = {label: [] for label in contenders}
        cpu: dict[str, list[list[float]]] = {label: [] for label in contenders}
        for _ in range(turns):
            for label, one in contenders.items():
                before, began = one.cpu_seconds(), time.perf_counter()
                one.train()
                seconds[label].append((time.perf_counter() - began) / case.steps)
                cpu[label].append([b - a for a, b in zip(before, one.cpu_seconds(), strict=True)])
        memory = {label: one.helper_megabytes() for label, one in contenders.items()}
    busiest = {label: max(map(sum, zip(*used, strict=True))) for label, used in cpu.items()}
    return [
        {
            **_row(case, label, seconds),
            "busiest_cpu_ms": 1000 * busiest[label] / turns / case.steps,
            "at_best": busiest["one process"] / busiest[label],
            "helper_mb": memory[label],
        }
        for label in contenders
    ]


def _row(case: Case, label: str, seconds: dict[str, list[float]]) -> Row:
    alone = seconds["one process"]
    gains = [one / own for one, own in zip(alone, seconds[label], strict=True)]
    return {
        "network": case.model,
        "inside": label,
        "step_ms": 1000 * statistics.median(seconds[label]),
        "times_as_fast": statistics.median(gains),
    }


def _pictures(case: Case, folder: Path) -> Path:
    path = folder / f"{case.model}.npz"
    if not path.exists():
        drawn = np.random.default_rng(0)
        shape = (4 * case.batch, case.side, case.side, case.channels)
        x, y = drawn.integers(0, 256, shape, dtype=np.uint8), np.arange(4 * case.batch) % 10
        np.savez(path, x=x, y=y, x_test=x[:2], y_test=y[:2])
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all networks, or those that are named, and print a line for each arrangement."""
    parser = command_line(__doc__)
    parser.add_argument("--networks", nargs="*", help="only these", default=[])
    parser.add_argument("--turns", type=int, default=10, help="slices of each")
    options = parser.parse_args(arguments)
    chosen = [case for case in CASES if not options.networks or case.model in options.networks]
    show([row for case in chosen for row in measure(case, options.turns)], as_json=options.json)


if __name__ == "__main__":
    main()
