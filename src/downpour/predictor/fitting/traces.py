"""Traces: the tasks of ended jobs, one row per task; reads and checks them from `.npz`.

`traces/README.md` describes the columns. We train and score predictors on traces. Rows of one
(job, round) belong together, in any order and number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from downpour.base.errors import SpecError
from downpour.host.user_file import open_user_file, read_user_file
from downpour.predictor.base import Array
from downpour.predictor.features import ELAPSED, STATE

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
        names = [name for name in ("n_samples", "batches", *STATE) if name in self.columns]
        for percent in percents:
            reported = (f"p{percent}_{name}" for name in (ELAPSED, *STATE))
            names += [name for name in reported if name in self.columns]
        values = np.stack([self.columns[name][rows] for name in names], axis=1).tolist()
        return [dict(zip(names, row, strict=True)) for row in values]

    def groups(self, label: str) -> dict[str, list[int]]:
        """Return the numbers of the jobs, grouped by their value of a label.

        Raises:
            SpecError: some job has no such label.
        """
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

    Raises:
        SpecError: the file cannot be read, or a column is missing or holds impossible values.
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
