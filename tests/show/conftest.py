"""Studies made of plain results, as small as a test can do with."""

from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.record.record_lines import Sample
from downpour.record.result import Result
from downpour.record.result_parts import RoundResult
from downpour.record.study_result import RunResult, StudyResult, SubgridResult
from downpour.record.timeline import AttemptSpan


class Make:
    """Makes runs, subgrids and studies; only what a test names differs from one to the next."""

    def round(self, epoch: int, accuracy: float | None, **fields: Any) -> RoundResult:
        metrics: dict[str, float | None] = {} if accuracy is None else {"accuracy": accuracy}
        given: dict[str, Any] = {
            "class_accuracy": (),
            "train_loss": 0.5,
            "test_loss": None if accuracy is None else 0.6,
            "train_seconds": 2.0,
            "aggregate_seconds": 0.01,
            "evaluate_seconds": 0.2,
            "bytes": 1000,
        }
        return RoundResult(epoch=epoch, round=epoch, metrics=metrics, **{**given, **fields})

    def run(self, accuracies: list[float | None], **fields: Any) -> RunResult:
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
            experiment=f"one-{'-'.join(map(str, values))}-{fields.get('repetition', 1)}",
            name="one",
            spec=spec,
            shards=2,
            state=ExperimentState.FINISHED,
            reason=None,
            asked_wrongly=False,
            train_samples=100,
            test_samples=20,
            classes=3,
            parameters=250,
            rounds=rounds,
            epochs=rounds,
            tasks=(),
            failures=(),
            prepare_seconds=0.1,
            split_seconds=0.1,
            total_seconds=5.0,
            model_file=None,
            spans=fields.pop("spans", ()),
        )
        return RunResult(result=result, **fields)

    def study(self, *subgrids: SubgridResult) -> StudyResult:
        return StudyResult(name="made", subgrids=subgrids)

    def splits(self) -> SubgridResult:
        """Make a subgrid of two splits and two aggregations, three runs each, one missing."""
        settings = [(s, a) for s in ("random", "class") for a in ("average", "first")]
        runs = [
            self.run(
                [0.5 + place / 10, 0.6 + place / 10 + repetition / 100],
                values=values,
                repetition=repetition,
                spec={"split": values[0], "aggregate": values[1], "seed": repetition - 1},
                classes=(0.9, None, 0.1 * repetition),
                seconds=1.0 + repetition,
            )
            for place, values in enumerate(settings)
            for repetition in (1, 2, 3)
            if (place, repetition) < (3, 2)
        ]
        return self.subgrid(axes=("split", "aggregate"), settings=settings, runs=runs)

    def workers(self) -> SubgridResult:
        """Make a subgrid of three numbers of workers, one repetition each."""
        runs = [
            self.run([0.9], values=(n,), workers=n, seconds=8.0 / n, spans=self.spans(n))
            for n in (1, 2, 4)
        ]
        settings = [(1,), (2,), (4,)]
        return self.subgrid(
            name="workers", axes=("workers",), settings=settings, runs=runs, repetitions=1
        )

    def subgrid(self, **fields: Any) -> SubgridResult:
        given = {"name": "splits", "repetitions": 3, "axes": (), **fields}
        lists = {name: tuple(given[name]) for name in ("settings", "runs")}
        return SubgridResult(**{**given, **lists})

    def spans(self, workers: int) -> tuple[AttemptSpan, ...]:
        """Make two epochs of four shards, dealt to workers in turn."""
        return tuple(
            AttemptSpan(
                worker=f"worker-{1 + shard % workers}",
                round=epoch,
                shard=shard,
                attempt=0,
                begin_seconds=10.0 * (epoch - 1) + shard // workers,
                end_seconds=10.0 * (epoch - 1) + shard // workers + 0.9,
                outcome="trained",
                last=shard == 3,
            )
            for epoch in (1, 2)
            for shard in range(4)
        )

    def samples(self, *workers: str) -> dict[str, list[Sample]]:
        """Make two samples of each worker, a second apart."""
        samples = [Sample(0.0, 1.9, 2_000_000, 7, 0.0), Sample(1.0, 1.0, 3_000_000, 7, 0.25)]
        return dict.fromkeys(workers, samples)


@pytest.fixture(scope="session")
def make() -> Make:
    """Makes small studies."""
    return Make()
