"""Traces of completion times as training data.

`traces/README.md` describes the columns. Rows of one (job, round) belong together, in any order and
number. We replay every job round by round with the code that predicts (`Histories`), so that
training and serving see the same inputs. We describe each task several times: at assignment, and
after each report of progress, with and without the report before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from downpour.base.errors import SpecError
from downpour.host.paths import open_user_file, read_user_file
from downpour.predictor.calibration import KindEffects
from downpour.predictor.features import (
    ELAPSED,
    EVENTS,
    INPUTS,
    KINDS,
    SECONDS,
    STATE,
    Array,
    Histories,
    task_rows,
)
from downpour.predictor.learned import rest_from_total

KEYS = ("job", "round", "worker")
TARGET = "completion_s"
REQUIRED = (*KEYS, "n_samples", TARGET)

_REPORT = re.compile(r"p([1-9][0-9]?)_elapsed_s")


@dataclass(frozen=True, slots=True)
class Job:
    """One job: its number, and the row numbers of each of its rounds, in order."""

    number: int
    rounds: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Traces:
    """All rows as columns, the jobs they belong to, and which jobs share their machines.

    `families` gives every job a number; jobs of one family ran on the same machines, so all of them
    belong either to training or to scoring. `labels` are texts about a job, such as its scenario.
    """

    columns: Mapping[str, Array]
    jobs: tuple[Job, ...]
    families: Mapping[int, int]
    labels: Mapping[int, Mapping[str, str]]

    @property
    def percents(self) -> tuple[int, ...]:
        """The progress, in percent, at which tasks reported."""
        matches = [_REPORT.fullmatch(name) for name in self.columns]
        return tuple(sorted(int(match[1]) for match in matches if match))

    def features(self, rows: Array, percents: tuple[int, ...]) -> list[dict[str, float]]:
        """Return the features of tasks after their reports at `percents`, one mapping per row."""
        wanted = ("n_samples", "batches", *STATE, *KINDS)
        names = [name for name in wanted if name in self.columns]
        for percent in percents:
            reported = (f"p{percent}_{name}" for name in (ELAPSED, *STATE))
            names += [name for name in reported if name in self.columns]
        values = np.stack([self.columns[name][rows] for name in names], axis=1).tolist()
        return [dict(zip(names, row, strict=True)) for row in values]

    def groups(self, label: str) -> dict[str, list[int]]:
        """Return the numbers of the jobs, grouped by their value of a label."""
        groups: dict[str, list[int]] = {}
        for job in self.jobs:
            labels = self.labels.get(job.number, {})
            if label not in labels:
                accepted = f"must be a label of all jobs in jobs.json; {job.number} has "
                raise SpecError("label", label, accepted + (", ".join(labels) or "none"))
            groups.setdefault(labels[label], []).append(job.number)
        return groups

    def workers(self, rows: Array) -> list[str]:
        """Return the workers' names."""
        return [str(int(worker)) for worker in self.columns["worker"][rows]]

    def seconds(self, rows: Array) -> Array:
        """Return how long the tasks took."""
        return self.columns[TARGET][rows]

    def checksum(self) -> str:
        """Return the XXH3 digest of all columns; a model file names its traces by it."""
        digest = xxhash.xxh3_128()
        for name in sorted(self.columns):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(self.columns[name]).data)
        return digest.hexdigest()


def read_traces(path: Path) -> Traces:
    """Read and check a trace; `jobs.json` next to it, if it exists, labels the jobs.

    Jobs with the same scenario and seed share machines.
    """
    columns = _columns(path)
    for name in REQUIRED:
        if name not in columns:
            raise SpecError("traces", str(path), f"has no column {name}")
    length = len(columns[TARGET])
    if not length:
        raise SpecError("traces", str(path), "has no rows")
    for name, column in columns.items():
        _check(path, name, column, length)
    jobs, labels = _jobs(columns), _labels(path.with_name("jobs.json"))
    return Traces(columns=columns, jobs=jobs, families=_families(jobs, labels), labels=labels)


def _columns(path: Path) -> dict[str, Array]:
    try:
        with open_user_file(path) as raw, np.load(raw) as file:
            return {name: _numbers(path, name, file[name]) for name in file.files}
    except SpecError:
        raise
    except FileNotFoundError:
        raise SpecError("traces", str(path), "no such file") from None
    except OSError as error:
        raise SpecError("traces", str(path), f"cannot be read ({error.strerror})") from None
    except Exception:  # noqa: BLE001 - the libraries have many words for a damaged archive
        raise SpecError("traces", str(path), "is not an .npz file, or a damaged one") from None


def _numbers(path: Path, name: str, column: Array) -> Array:
    if column.ndim != 1 or column.dtype.kind not in "iufb":
        raise SpecError("traces", str(path), f"column {name} must be one list of numbers")
    return column.astype(np.float64)


def _check(path: Path, name: str, column: Array, length: int) -> None:
    """Refuse a column with impossible values; only the machine's state may be missing (NaN)."""
    if len(column) != length:
        raise SpecError("traces", str(path), f"column {name} has {len(column)} rows, not {length}")
    lowest = np.nanmin(column, initial=np.inf)
    bad = np.isinf(column).any() or (name in REQUIRED and np.isnan(column).any())
    if bad:
        raise SpecError("traces", str(path), f"column {name} holds a value that is not finite")
    if name in (TARGET, "n_samples") and lowest <= 0:
        raise SpecError("traces", str(path), f"column {name} holds {lowest:g}; must be above 0")
    if (name.endswith("_s") or name in KEYS) and lowest < 0:
        raise SpecError("traces", str(path), f"column {name} holds {lowest:g}; must be 0 or above")


def _jobs(columns: Mapping[str, Array]) -> tuple[Job, ...]:
    job, turn = columns["job"].astype(int), columns["round"].astype(int)
    order = np.lexsort((turn, job))
    starts = np.flatnonzero(np.diff(job[order]) | np.diff(turn[order])) + 1
    rounds: dict[int, list[Array]] = {}
    for rows in np.split(order, starts):
        rounds.setdefault(int(job[rows[0]]), []).append(rows)
    return tuple(Job(number, tuple(rows_by_round)) for number, rows_by_round in rounds.items())


def _labels(beside: Path) -> dict[int, dict[str, str]]:
    """Read the labels of jobs; without the file, no job has any."""
    if not beside.is_file():
        return {}
    try:
        entries = json.loads(read_user_file(beside))
        return {
            int(entry["job"]): {
                "scenario": str(entry["scenario"]),
                "seed": str(entry["seed"]),
                **{name: value for name, value in entry.items() if isinstance(value, str)},
            }
            for entry in entries
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SpecError("jobs", str(beside), f"cannot be read ({error!r})") from None


def _families(jobs: tuple[Job, ...], labels: Mapping[int, Mapping[str, str]]) -> dict[int, int]:
    """Number the jobs by scenario and seed; jobs that share both ran on the same machines."""
    names: dict[object, int] = {}
    origins = {number: (label["scenario"], label["seed"]) for number, label in labels.items()}
    keys = {job.number: origins.get(job.number, job.number) for job in jobs}
    return {number: names.setdefault(key, len(names)) for number, key in keys.items()}


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
    names = sorted({name for rows in job.rounds for name in traces.workers(rows)})
    shape = (len(names), len(job.rounds))
    sequences = _blank(job.number, shape, ways)
    place = {name: number for number, name in enumerate(names)}
    histories, kinds = Histories(), KindEffects()
    done = np.zeros(len(names), dtype=int)
    for rows in job.rounds:
        workers = traces.workers(rows)
        seq = np.array([place[worker] for worker in workers])
        seconds = traces.seconds(rows)
        described = [task_rows(traces.features(rows, percents)) for percents in ways]
        tasks = kinds.scaled(workers * len(ways), np.concatenate(described))
        _describe(sequences, tasks, histories, workers, ways, (seq, done[seq]), seconds)
        tasks = kinds.learn(workers, task_rows(traces.features(rows, observed)), seconds)
        events = histories.learn(histories.add(workers), tasks, seconds)
        sequences.events[seq, done[seq]] = events
        sequences.seconds[seq, done[seq]] = seconds
        done[seq] += 1
    return sequences


def _describe(
    sequences: TaskSequences, tasks: Array, histories: Histories, workers: list[str],
    ways: list[tuple[int, ...]], at: tuple[Array, Array], seconds: Array,
) -> None:  # fmt: skip
    count = len(workers)
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
