"""Harder traces, to score predictors on changing clusters: late workers, and new paces.

The variations are synthetic; everything else is as recorded. The column `since` counts a varied
worker's tasks since it joined, or since its pace changed. It is NaN for all other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from downpour.base.errors import SpecError, did_you_mean
from downpour.predictor.features import ELAPSED, Array
from downpour_lab.fitting.training_data import TARGET, Job, Traces

SINCE = "since"
_VARIED = 4  # one of this many workers is varied
_EARLIEST, _LATEST = 0.3, 0.6  # when that begins, as a share of the job's rounds
_FACTORS = (1.5, 2.0)  # multiply the seconds of changed workers, in turn


def late_joins(traces: Traces) -> Traces:
    """Return traces in which a quarter of each job's workers join late: we cut off their past."""
    since = _since(traces)
    late = since < 0
    jobs = tuple(
        Job(job.number, tuple(rows[~late[rows]] for rows in job.rounds)) for job in traces.jobs
    )
    return replace(traces, columns={**traces.columns, SINCE: since}, jobs=jobs)


def changed_paces(traces: Traces) -> Traces:
    """Return traces in which a quarter of each job's workers slow down 1.5 or 2 times, for good."""
    since = _since(traces)
    timed = [TARGET, *(f"p{percent}_{ELAPSED}" for percent in traces.percents)]
    worker = traces.columns["worker"].astype(int)
    factor = np.where(since >= 0, np.array(_FACTORS)[worker % len(_FACTORS)], 1.0)
    slower = {name: traces.columns[name] * factor for name in timed}
    since = np.where(since >= 0, since, np.nan)
    return replace(traces, columns={**traces.columns, **slower, SINCE: since})


STRESSES: Mapping[str, Callable[[Traces], Traces]] = MappingProxyType(
    {"joins": late_joins, "paces": changed_paces}
)


def stressed(traces: Traces, name: str) -> Traces:
    """Return the traces made harder; as they are if `name` is empty."""
    if not name:
        return traces
    if name not in STRESSES:
        accepted = f"must be one of {', '.join(STRESSES)}"
        raise SpecError("stress", name, accepted + did_you_mean(name, STRESSES))
    return STRESSES[name](traces)


def _since(traces: Traces) -> Array:
    """Return rounds since each variation began, below 0 before; NaN for workers that don't vary."""
    since = np.full(len(traces.columns[TARGET]), np.nan)
    for job in traces.jobs:
        generator = np.random.default_rng(job.number)
        rows = np.concatenate(job.rounds)
        turn = np.repeat(np.arange(len(job.rounds)), [len(part) for part in job.rounds])
        workers = np.unique(traces.columns["worker"][rows])
        varied = generator.permutation(workers)[: round(len(workers) / _VARIED)]
        first, last = int(_EARLIEST * len(job.rounds)), int(_LATEST * len(job.rounds))
        begins = int(generator.integers(first, max(last, first + 1)))
        here = np.isin(traces.columns["worker"][rows], varied)
        since[rows[here]] = turn[here] - begins
    return since
