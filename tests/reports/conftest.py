"""Studies made of plain results, as small as a test can do with."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.reports.result import Result, RoundResult
from downpour.reports.study import Group, Run, Study
from downpour.reports.timeline import ResourceSample, Stint


class Make:
    """Makes runs, groups and studies; only what a test names differs from one to the next."""

    def round(self, epoch: int, accuracy: float | None, **fields: Any) -> RoundResult:
        """Make an epoch."""
        given: dict[str, Any] = {
            "class_accuracy": (),
            "train_loss": 0.5,
            "test_loss": 0.6,
            "train_seconds": 2.0,
            "aggregate_seconds": 0.01,
            "evaluate_seconds": 0.2,
            "bytes": 1000,
        }
        return RoundResult(epoch=epoch, accuracy=accuracy, **{**given, **fields})

    def run(self, accuracies: list[float | None], **fields: Any) -> Run:
        """Make a finished run with these accuracies, an epoch each."""
        classes = fields.pop("classes", ())
        seconds = fields.pop("seconds", 2.0)
        rounds = tuple(
            self.round(n, accuracy, class_accuracy=classes, train_seconds=seconds)
            for n, accuracy in enumerate(accuracies, 1)
        )
        spec = {"split": "random", "aggregate": "average", "seed": 0, **fields.pop("spec", {})}
        values = fields.get("values", ())
        result = Result(
            experiment=f"one-{'-'.join(map(str, values))}-{fields.get('trial', 1)}",
            name="one",
            spec=spec,
            shards=2,
            state="finished",
            reason=None,
            asked_wrongly=False,
            train_samples=100,
            test_samples=20,
            classes=3,
            parameters=250,
            rounds=rounds,
            tasks=(),
            failures=(),
            prepare_seconds=0.1,
            split_seconds=0.1,
            total_seconds=5.0,
            model_file=None,
        )
        return Run(result=result, **fields)

    def study(self, *groups: Group) -> Study:
        """Make a study."""
        return Study(name="made", groups=groups)

    def splits(self) -> Group:
        """Make a group of two splits and two aggregations, three trials each, one missing."""
        settings = [(s, a) for s in ("random", "class") for a in ("average", "first")]
        runs = [
            self.run(
                [0.5 + place / 10, 0.6 + place / 10 + trial / 100],
                values=values,
                trial=trial,
                spec={"split": values[0], "aggregate": values[1], "seed": trial - 1},
                classes=(0.9, None, 0.1 * trial),
                seconds=1.0 + trial,
            )
            for place, values in enumerate(settings)
            for trial in (1, 2, 3)
            if (place, trial) < (3, 2)
        ]
        return self.group(axes=("split", "aggregate"), settings=settings, runs=runs)

    def workers(self) -> Group:
        """Make a group of three numbers of workers, one trial each."""
        runs = [
            self.run([0.9], values=(n,), workers=n, seconds=8.0 / n, stints=self.stints(n))
            for n in (1, 2, 4)
        ]
        settings = [(1,), (2,), (4,)]
        return self.group(name="workers", axes=("workers",), settings=settings, runs=runs, trials=1)

    def group(self, **fields: Any) -> Group:
        """Make a group."""
        given = {"name": "splits", "trials": 3, "axes": (), **fields}
        lists = {name: tuple(given[name]) for name in ("settings", "runs")}
        return Group(**{**given, **lists})

    def stints(self, workers: int) -> tuple[Stint, ...]:
        """Make two epochs of four shards, dealt to workers in turn."""
        return tuple(
            Stint(
                worker=f"worker-{1 + shard % workers}",
                epoch=epoch,
                shard=shard,
                begin_seconds=10.0 * (epoch - 1) + shard // workers,
                end_seconds=10.0 * (epoch - 1) + shard // workers + 0.9,
                outcome="trained",
                last=shard == 3,
            )
            for epoch in (1, 2)
            for shard in range(4)
        )

    def samples(self, *workers: str) -> tuple[ResourceSample, ...]:
        """Make two samples of each worker, a second apart."""
        return tuple(
            ResourceSample(
                worker=worker,
                at_seconds=float(second),
                cpu_share=(1.9, 1.0)[second],
                memory_bytes=(2_000_000, 3_000_000)[second],
                threads=7,
                io_wait=0.25 * second,
            )
            for second in range(2)
            for worker in workers
        )


@pytest.fixture
def make() -> Make:
    """Whatever makes small studies."""
    return Make()
