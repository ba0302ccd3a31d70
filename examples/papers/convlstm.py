"""Tables and a figure of a grid of `convlstm.toml`, with simulated times of up to 32 workers.

    downpour grid examples/papers/convlstm.toml --data-dir DIR
    python examples/papers/convlstm.py results/convlstm

Accuracies are measured, all of them: that of 32 workers is that of 32 shards, which may have been
trained by fewer.
Times are measured up to eight workers, which share the cores of one machine. What each would take
on a core of its own is simulated, by the real scheduler in virtual time, from the processor time
that tasks were measured to take with one worker, and the seconds of files, messages and
aggregations; it is said to be so wherever it stands. An epoch's time is that of its training and
aggregation, and of a run's epochs the median. Its processor time is that of all workers together.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from flops import counted_flops, epoch_flops, layers_flops
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from downpour.base.errors import DownpourError
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.experiments.studies import Grid, grid_results, read_folder
from downpour.learning.models import build
from downpour.record.result_parts import Estimate
from downpour.record.study_result import RunResult, StudyResult
from downpour.show.figures.style import LIGHT, WIDTH_INCHES, series, styled, to_png, to_svg
from downpour.show.tables.report_tables import Cell, Column, Table
from downpour_lab.capacity import Load, estimate_capacity
from downpour_lab.simulated.disk import DiskTimings
from downpour_lab.simulated.environment import Timings

NETWORKS = ("xray-cnn", "conv-lstm")
MEASURED = (1, 2, 4, 8)
TRAINED_BY_FEWER = (16, 32)
BATCHES = (16, 32, 64)
SIMULATED = (1, 2, 4, 5, 8, 16, 32)
"""Five are those of the abstract that the same group published."""

Expected = dict[str, dict[int, float]]
"""Simulated seconds of an epoch, by network and number of workers."""

_ROUNDS = 40
_GRAY = 1


def runs_at(study: StudyResult, name: str, **place: Any) -> list[RunResult]:
    """Return the runs of a subgrid at a place on its axes."""
    subgrid = next(subgrid for subgrid in study.subgrids if subgrid.name == name)
    return subgrid.at([place[axis] for axis in subgrid.axes])


def accuracy(runs: Iterable[RunResult]) -> Estimate | None:
    """Estimate the accuracy of the final model, in per cent."""
    found = (run.result.accuracy for run in runs)
    return Estimate.of(None if share is None else 100 * share for share in found)


def epoch_seconds(run: RunResult) -> float:
    """Return what the median epoch of a run took: training and aggregation."""
    return median(one.train_seconds + one.aggregate_seconds for one in run.result.rounds)


def seconds(runs: Iterable[RunResult]) -> Estimate | None:
    """Estimate the seconds of an epoch."""
    return Estimate.of(map(epoch_seconds, runs))


def speedup(runs: Sequence[RunResult], alone: Sequence[RunResult]) -> Estimate | None:
    """Estimate how many times as fast as one worker's the same repetition was."""
    one = {run.repetition: epoch_seconds(run) for run in alone}
    return Estimate.of(
        one[run.repetition] / epoch_seconds(run) for run in runs if run.repetition in one
    )


def processor_seconds(run: RunResult) -> list[float]:
    """Return the processor time that each task of a run took to train.

    On a core of its own, that is what it takes by the clock; so it does not matter whether others
    were at work on the machine. Where a task was too short to be sampled, the clock counts.
    """
    spans = {(one.round, one.shard): one for one in run.result.spans if one.outcome == "trained"}
    spent = []
    for task in run.result.tasks:
        span = spans[task.round, task.shard]
        shares = [
            sample.cpu_share
            for sample in run.resources
            if sample.worker == span.worker
            and span.begin_seconds < sample.at_seconds <= span.end_seconds
        ]
        share = min(1.0, fmean(shares)) if shares else 1.0
        spent.append(share * task.train_seconds)
    return spent


def work(runs: Iterable[RunResult]) -> Estimate | None:
    """Estimate the processor time of an epoch, all workers together."""
    return Estimate.of(sum(processor_seconds(run)) / len(run.result.rounds) for run in runs)


# What is simulated


@dataclass(frozen=True, slots=True)
class Measured:
    """What one worker was measured to take, in seconds, all of them medians.

    For an `example`, in processor time, the logarithm of which deviates by `spread` from task to
    task; to `load` a model and to `publish` an update; for a `message`; and to `fold` updates, a
    `fold_shard` each.
    """

    example: float
    spread: float
    load: float
    publish: float
    message: float
    fold: float
    fold_shard: float

    @classmethod
    def of(cls, alone: Sequence[RunResult], everybody: Sequence[RunResult]) -> Measured:
        """Measure tasks of one worker, and aggregations of all."""
        tasks = [task for run in alone for task in run.result.tasks]
        spent = [seconds for run in alone for seconds in processor_seconds(run)]
        paces = [seconds / task.samples for seconds, task in zip(spent, tasks, strict=True)]
        own = [task.load_seconds + task.train_seconds + task.publish_seconds for task in tasks]
        waits = [task.completion_seconds - clock for task, clock in zip(tasks, own, strict=True)]
        shards = [run.result.shards for run in everybody]
        folds = [median(r.aggregate_seconds for r in run.result.rounds) for run in everybody]
        slope, start = np.polyfit(shards, folds, 1) if len(set(shards)) > 1 else (0.0, folds[0])
        publish = median(task.publish_seconds for task in tasks)
        return cls(
            example=median(paces),
            spread=stdev(map(math.log, paces)) if len(paces) > 1 else 0.0,
            load=median(task.load_seconds for task in tasks),
            publish=publish,
            message=max(0.0, median(waits) / 2),
            fold=max(0.0, float(start) - publish),
            fold_shard=max(0.0, float(slope)),
        )

    def epoch_seconds(self, examples: int, workers: int) -> float:
        """Simulate epochs of some workers, each on its own core; return their median."""
        timings = Timings(
            task_seconds=self.example * examples / workers,
            spread=self.spread,
            worker_spread=0.0,
            network_seconds=self.message,
            aggregate_seconds=self.fold,
            update_seconds=self.fold_shard,
            evaluate_seconds=0.0,
            disk=DiskTimings(read_seconds=self.load, write_seconds=self.publish),
        )
        load = Load(workers=workers, shards=workers, rounds=_ROUNDS, timings=timings)
        return median(estimate_capacity(load).round_seconds)


def simulated(study: StudyResult, network: str) -> dict[int, float]:
    """Simulate the seconds of an epoch by the number of workers; nothing before one is measured."""
    alone = _trained(study, network, 1)
    if not alone:
        return {}
    counts = (*MEASURED, *TRAINED_BY_FEWER)
    measured = Measured.of(alone, [run for n in counts for run in _trained(study, network, n)])
    examples = alone[0].result.train_samples
    return {workers: measured.epoch_seconds(examples, workers) for workers in SIMULATED}


# Tables


def workers_table(study: StudyResult, expected: Expected) -> Table:
    """Accuracy and time by the number of workers, measured and simulated."""
    rows: list[tuple[Cell, ...]] = []
    for network in NETWORKS:
        alone = runs_at(study, "workers", model=network, workers=1)
        for count in SIMULATED:
            timed = _timed(study, network, count)
            foreseen = expected[network].get(count)
            rows.append(
                (
                    network,
                    count,
                    accuracy(_trained(study, network, count)),
                    seconds(timed),
                    speedup(timed, alone),
                    work(timed),
                    foreseen,
                    expected[network][1] / foreseen if foreseen else None,
                )
            )
    columns = (
        Column("model", "network"),
        Column("workers", "workers", 0),
        Column("accuracy_percent", "accuracy %", 2),
        Column("epoch_seconds", "epoch s", 2),
        Column("speedup", "× one worker", 2),
        Column("processor_seconds", "processor s", 2),
        Column("simulated_epoch_seconds", "simulated epoch s", 3),
        Column("simulated_speedup", "simulated × one worker", 2),
    )
    title = "By the number of workers; simulated: each on a core of its own"
    return Table("convlstm-workers", title, columns, tuple(rows))


def batches_table(study: StudyResult) -> Table:
    """Accuracy and time by the size of batches."""
    rows = []
    for network in NETWORKS:
        usual = runs_at(study, "batches", model=network, batch_size=BATCHES[0])
        for size in BATCHES:
            runs = runs_at(study, "batches", model=network, batch_size=size)
            timed = seconds(runs), speedup(runs, usual), work(runs)
            rows.append((network, size, accuracy(runs), *timed))
    columns = (
        Column("model", "network"),
        Column("batch_size", "batch", 0),
        Column("accuracy_percent", "accuracy %", 2),
        Column("epoch_seconds", "epoch s", 2),
        Column("speedup", f"× batches of {BATCHES[0]}", 2),
        Column("processor_seconds", "processor s", 2),
    )
    return Table("convlstm-batches", "By the size of batches, two workers", columns, tuple(rows))


def flops_table(study: StudyResult) -> Table:
    """Operations of an epoch, by the paper's equations as we read them and as torch counts them."""
    rows = [_flops_row(runs[0]) for n in NETWORKS if (runs := _trained(study, n, 1))]
    columns = (
        Column("model", "network"),
        Column("by_formula_gflop", "by formula", 3),
        Column("counted_gflop", "counted", 3),
        Column("taken_apart_gflop", "counted, LSTM taken apart", 3),
        Column("first_layer_gflop", "first layer forward", 3),
        Column("lstm_gflop", "LSTM, three passes", 3),
    )
    title = "Operations of an epoch, in thousands of millions"
    return Table("convlstm-flops", title, columns, tuple(rows))


def _flops_row(run: RunResult) -> tuple[Cell, ...]:
    result = run.result
    spec = Spec.make(result.spec)
    size = spec.image_size or 0
    facts = DatasetFacts(
        train_samples=result.train_samples,
        test_samples=result.test_samples,
        sample_shape=(_GRAY, size, size),
        classes=result.classes,
    )
    model = build(spec, facts)
    layers = layers_flops(model, facts.sample_shape)
    found = (
        epoch_flops(layers, facts.train_samples),
        counted_flops(model, spec, facts),
        counted_flops(model, spec, facts, taken_apart=True),
        layers[0].forward * facts.train_samples,
        epoch_flops(tuple(one for one in layers if one.name == "lstm"), facts.train_samples),
    )
    return (spec.model, *(flops / 1e9 for flops in found))


def _trained(study: StudyResult, network: str, count: int) -> list[RunResult]:
    """Return the runs of a number of shards."""
    if count in TRAINED_BY_FEWER:
        return runs_at(study, "shards", model=network, shards=count)
    return _timed(study, network, count)


def _timed(study: StudyResult, network: str, count: int) -> list[RunResult]:
    """Return the runs of a number of workers."""
    if count not in MEASURED:
        return []
    return runs_at(study, "workers", model=network, workers=count)


# The figure


def figure(study: StudyResult, expected: Expected) -> Figure:
    """Draw accuracy and time by workers and by batches; what is simulated has hollow marks."""
    with styled():
        drawn = Figure(figsize=(1.4 * WIDTH_INCHES, 5.2), layout="constrained")
        (good, fast), (good_batches, spent_batches) = drawn.subplots(2, 2)
        for place, network in enumerate(NETWORKS):
            look = series(place)
            by_shards = {
                n: accuracy(_trained(study, network, n)) for n in (*MEASURED, *TRAINED_BY_FEWER)
            }
            _line(good, by_shards, label=network, **look)
            timed = {n: seconds(_timed(study, network, n)) for n in MEASURED}
            _line(fast, timed, label=network, **look)
            foreseen = {n: Estimate(s, None, 1) for n, s in expected[network].items()}
            _line(fast, foreseen, label=f"{network}, simulated", **hollow(look))
            runs = {n: runs_at(study, "batches", model=network, batch_size=n) for n in BATCHES}
            _line(good_batches, {n: accuracy(found) for n, found in runs.items()}, **look)
            _line(spent_batches, {n: work(found) for n, found in runs.items()}, **look)
        fast.set_yscale("log", base=2)
        fast.yaxis.set_major_formatter("{x:g}")
        for axis in (good, fast):
            _scale(axis, "workers, a shard each", (*MEASURED, *TRAINED_BY_FEWER))
        for axis in (good_batches, spent_batches):
            _scale(axis, "batch size, two workers", BATCHES)
        for axis in (good, good_batches):
            axis.set_ylabel("test accuracy, %")
        fast.set_ylabel("seconds an epoch")
        spent_batches.set_ylabel("processor seconds an epoch")
        handles, names = fast.get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside lower center", ncols=2)
    return drawn


def hollow(look: dict[str, Any]) -> dict[str, Any]:
    """Return a line's look with hollow marks, and dots between them."""
    return {**look, "markerfacecolor": LIGHT["paper"], "linestyle": ":"}


def _line(axis: Axes, dots: dict[int, Estimate | None], **look: Any) -> None:
    """Draw estimates, with intervals from three repetitions on."""
    known = {x: dot for x, dot in dots.items() if dot is not None}
    means = [dot.mean for dot in known.values()]
    if all(dot.half_width is not None and dot.count > 2 for dot in known.values()):
        widths = [dot.half_width for dot in known.values()]
        axis.errorbar(list(known), means, yerr=widths, capsize=2, elinewidth=0.8, **look)
    else:
        axis.plot(list(known), means, **look)


def _scale(axis: Axes, name: str, ticks: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel(name)


def main() -> None:
    """Print the tables and write the figure into the grid's folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of the grid")
    folder = parser.parse_args().folder
    try:
        study = grid_results(read_folder(folder, Grid))
    except DownpourError as error:
        sys.exit(str(error))
    expected = {network: simulated(study, network) for network in NETWORKS}
    for table in (workers_table(study, expected), batches_table(study), flops_table(study)):
        print(table.to_markdown())  # noqa: T201
    drawn = figure(study, expected)
    (folder / "convlstm.png").write_bytes(to_png(drawn))
    (folder / "convlstm.svg").write_text(to_svg(drawn, "convlstm"), "utf-8")


if __name__ == "__main__":
    main()
