"""Turns traces into training data: what a predictor knows about every task, and the outcome.

We replay every job round by round with the code that predicts (`Histories`), so that training and
serving see the same inputs. We describe each task several times: at assignment, and after each
report of progress, with and without the report before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from downpour.predictor.base import START_LOG_SECONDS, Array
from downpour.predictor.features import ELAPSED, SECONDS, STATE, task_rows
from downpour.predictor.fitting.traces import TARGET, Job, Traces
from downpour.predictor.histories import EVENTS, INPUTS, Histories
from downpour.predictor.learned import rest_from_total

Step = Callable[[str], None]

_REPLAYING = "replaying the jobs"
# The share of augmented jobs in which we observe outcomes with fewer reports than the job had. In a
# real run, too, some reports are not kept.
_OBSERVED_LESS = 0.35
_COLUMN_LOST = 0.05  # of augmented jobs, for each column: not every system reports I/O wait
# In half of the augmented jobs, tasks' sizes vary by up to e^0.7 = 2 in either direction. A
# predictor that was trained on tasks of one size was useless after reports when sizes differed:
# its error was 6.6 %, and is now 3.8 %.
_SIZES_VARY, _SIZES_APART = 0.5, 0.7
# In half of the augmented jobs a quarter of the workers change their pace for good, by up to
# e^0.8 = 2.2 in either direction. In the traces, old paces come back. A net trained on these alone
# expected the old pace for sixty tasks after such a change.
_PACES_CHANGE, _WORKERS_CHANGE, _PACES_APART = 0.5, 0.25, 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSequences:
    """Sequences of one worker's tasks in a job, padded to the longest.

    Shapes are (sequences, tasks), with a further axis for the ways of describing a task, and one
    for inputs or events. `usable` marks the tasks that a predictor knew something about.
    """

    inputs: Array
    expected: Array  # log seconds of the whole task at the expected rate
    elapsed: Array
    usable: Array
    target: Array
    seconds: Array
    events: Array
    job: Array  # of each sequence
    share: Array  # of each way to describe a task

    def of(self, jobs: Sequence[int]) -> TaskSequences:
        """Return the sequences of some of the jobs."""
        here = np.isin(self.job, jobs)
        parts = {name: getattr(self, name) for name in TaskSequences.__slots__}
        return TaskSequences(
            **{n: part if n == "share" else part[here] for n, part in parts.items()}
        )

    def rows(self, *, reported: bool) -> tuple[Array, Array]:
        """Return (inputs, targets) of all descriptions at assignment, or after reports."""
        ways = (self.share > 0) == reported
        usable = self.usable[:, :, ways]
        return self.inputs[:, :, ways][usable], self.target[:, :, ways][usable]


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Traces as sequences: as they are, and augmented."""

    traces: str  # the traces' checksum
    plain: TaskSequences
    augmented: TaskSequences


def prepare(traces: Traces, seed: int = 0, step: Step = lambda _: None) -> TrainingSet:
    """Replay the traces twice; call `step` twice per job, with the name of the work."""
    plain = build(traces, step=lambda: step(_REPLAYING))
    other = build(augment(traces, seed + 1), seed=seed + 1, step=lambda: step(_REPLAYING))
    return TrainingSet(traces.checksum(), plain, other)


def build(
    traces: Traces, *, seed: int = 0, step: Callable[[], None] = lambda: None
) -> TaskSequences:
    """Replay all jobs; with a seed, leave out some of the observations.

    `step` is called after each job.
    """
    generator = np.random.default_rng(seed)
    ways = _ways(traces.percents)
    parts = []
    for job in traces.jobs:
        less = seed > 0 and generator.random() < _OBSERVED_LESS
        observed = ways[generator.integers(len(ways))] if less else traces.percents
        parts.append(_replay_job(traces, job, ways, observed))
        step()
    longest = max(part.seconds.shape[1] for part in parts)
    padded = {
        name: np.concatenate([_padded(getattr(part, name), longest) for part in parts])
        for name in TaskSequences.__slots__
        if name != "share"
    }
    return TaskSequences(**padded, share=parts[0].share)


def augment(traces: Traces, seed: int) -> Traces:
    """Return augmented traces, as other clusters might have recorded them.

    Each job gets another scale of load and some noise, and some jobs lose a column of their
    machines' state. In half of the jobs, tasks get all sizes, and times in proportion. In half,
    some workers change their pace for good.
    """
    generator, changes = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    reports = ["", *(f"p{percent}_" for percent in traces.percents)]
    states = [prefix + name for prefix in reports for name in STATE]
    times = [TARGET, *(f"p{percent}_{ELAPSED}" for percent in traces.percents)]
    sizes = ["n_samples", "batches", *times]
    columns = dict(traces.columns)
    for name in (*states, *sizes):
        if name in columns:
            columns[name] = columns[name].copy()
    for job in traces.jobs:
        rows = np.concatenate(job.rounds)
        _vary_state(columns, [name for name in states if name in columns], rows, generator)
        if generator.random() < _SIZES_VARY:
            factor = np.exp(generator.uniform(-_SIZES_APART, _SIZES_APART, len(rows)))
            for name in sizes:
                if name in columns:
                    columns[name][rows] *= factor
        if changes.random() < _PACES_CHANGE:
            _change_paces(columns, times, job, changes)
    return replace(traces, columns=columns)


def _change_paces(
    columns: dict[str, Array], times: Sequence[str], job: Job, generator: np.random.Generator
) -> None:
    """Multiply the seconds of some workers by a factor, starting at some round."""
    for worker in np.unique(columns["worker"][np.concatenate(job.rounds)]):
        if generator.random() < _WORKERS_CHANGE:
            later = np.concatenate(job.rounds[int(generator.integers(len(job.rounds))) :])
            here = later[columns["worker"][later] == worker]
            factor = np.exp(generator.uniform(-_PACES_APART, _PACES_APART))
            for name in times:
                columns[name][here] *= factor


def _vary_state(
    columns: dict[str, Array], names: Sequence[str], rows: Array, generator: np.random.Generator
) -> None:
    """Change the state that the machines of one job report."""
    worker = columns["worker"][rows].astype(int)
    scale = np.exp(generator.normal(0, 0.5) + generator.normal(0, 0.4, worker.max() + 1))
    lost = [name for name in STATE if generator.random() < _COLUMN_LOST]
    for name in names:
        kind = next(state for state in STATE if name.endswith(state))
        noise = generator.normal(0, 0.01, len(rows))
        value = columns[name][rows]
        if kind in lost:
            value = np.full(len(rows), np.nan)
        elif kind == "loadavg1":
            value = value * scale[worker] * np.exp(5 * noise)
        else:
            value = np.clip(value + (noise if kind == "cpu_util" else 0.4 * noise), 0, 1)
        columns[name][rows] = value


def _ways(percents: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the ways to describe a task: which reports it has, the latest last."""
    ways: list[tuple[int, ...]] = [()]
    for before, percent in zip((0, *percents), percents, strict=False):
        ways += [(percent,), (before, percent)] if before else [(percent,)]
    return ways


def _replay_job(
    traces: Traces, job: Job, ways: list[tuple[int, ...]], observed: tuple[int, ...]
) -> TaskSequences:
    """Replay one job."""
    names = sorted({name for rows in job.rounds for name in traces.workers(rows)})
    shape = (len(names), len(job.rounds))
    sequences = _blank(job.number, shape, ways)
    place = {name: number for number, name in enumerate(names)}
    histories = Histories(START_LOG_SECONDS)
    done = np.zeros(len(names), dtype=int)
    for rows in job.rounds:
        workers = traces.workers(rows)
        seq = np.array([place[worker] for worker in workers])
        seconds = traces.seconds(rows)
        _describe(sequences, traces, rows, histories, workers, ways, (seq, done[seq]))
        tasks = task_rows(traces.features(rows, observed))
        events = histories.learn(histories.add(workers), tasks, seconds)
        sequences.events[seq, done[seq]] = events
        sequences.seconds[seq, done[seq]] = seconds
        done[seq] += 1
    return sequences


def _describe(
    sequences: TaskSequences, traces: Traces, rows: Array, histories: Histories, workers: list[str],
    ways: list[tuple[int, ...]], at: tuple[Array, Array],
) -> None:  # fmt: skip
    seconds, count = traces.seconds(rows), len(rows)
    tasks = np.concatenate([task_rows(traces.features(rows, percents)) for percents in ways])
    inputs, base, size = histories.describe(np.tile(histories.find(workers), len(ways)), tasks)
    expected, target = base + size, rest_from_total(tasks, np.tile(seconds, len(ways)))
    for way, percents in enumerate(ways):
        here = slice(way * count, (way + 1) * count)
        sequences.inputs[*at, way] = inputs[here]
        sequences.expected[*at, way] = expected[here]
        sequences.target[*at, way] = target[here] - expected[here]
        if percents:
            elapsed = tasks[here, SECONDS]
            sequences.elapsed[*at, way] = np.nan_to_num(elapsed)
            sequences.usable[*at, way] = (elapsed > 0) & (elapsed < seconds)
        else:
            # Before the first round we know nothing, and `Learned` does not ask a model.
            sequences.usable[*at, way] = len(histories) > 1


def _blank(job: int, shape: tuple[int, int], ways: list[tuple[int, ...]]) -> TaskSequences:
    described = (*shape, len(ways))
    return TaskSequences(
        inputs=np.zeros((*described, len(INPUTS)), np.float32),
        expected=np.zeros(described, np.float32),
        elapsed=np.zeros(described, np.float32),
        usable=np.zeros(described, bool),
        target=np.zeros(described, np.float32),
        seconds=np.ones(shape, np.float32),
        events=np.zeros((*shape, len(EVENTS)), np.float32),
        job=np.full(shape[0], job),
        share=np.array([way[-1] / 100 if way else 0.0 for way in ways]),
    )


def _padded(array: Array, longest: int) -> Array:
    if array.ndim == 1:
        return array
    missing = longest - array.shape[1]
    widths = [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2)
    return np.pad(array, widths, constant_values=1 if array.ndim == 2 else 0)
