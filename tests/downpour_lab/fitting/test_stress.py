"""Traces are made harder in the way that is said, and in no other."""

from __future__ import annotations

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour_lab.fitting.scoring import SINCE, STRESSES, stressed
from downpour_lab.fitting.training_data import Traces
from tests.predictor.conftest import WORKERS


def test_some_workers_join_late_and_nothing_else_changes(traces: Traces) -> None:
    """One or two of six in each job, some rounds after the others; what is left is as recorded."""
    harder = stressed(traces, "joins")
    for job, before in zip(harder.jobs, traces.jobs, strict=True):
        seen = [set(harder.workers(rows)) for rows in job.rounds]
        assert len(seen[0]) < WORKERS == len(seen[-1])
        late = seen[-1] - seen[0]
        first = next(turn for turn, workers in enumerate(seen) if workers & late)
        assert 3 <= first <= 7
        since = harder.columns[SINCE][job.rounds[first]]
        assert sorted(since[np.isfinite(since)]) == [0.0] * len(late)
        assert set(np.concatenate(job.rounds)) < set(np.concatenate(before.rounds))
    assert harder.columns["completion_s"] is traces.columns["completion_s"]


def test_some_workers_slow_down_for_good(traces: Traces) -> None:
    """Their tasks and reports take 1.5 or 2 times as long from a round on."""
    harder = stressed(traces, "paces")
    since = harder.columns[SINCE]
    changed = np.isfinite(since)
    assert (since[changed] >= 0).all()
    for name in ("completion_s", "p10_elapsed_s", "p25_elapsed_s"):
        factor = harder.columns[name] / traces.columns[name]
        assert set(np.round(factor[changed], 6)) <= {1.5, 2.0}
        assert (factor[~changed] == 1).all()
    for job in harder.jobs:
        last = since[job.rounds[-1]]
        assert 0 < np.isfinite(last).sum() < WORKERS
        assert not np.isfinite(since[job.rounds[0]]).any()


@pytest.mark.parametrize("name", STRESSES)
def test_it_is_the_same_each_time_and_the_traces_stay_as_they_were(
    name: str, traces: Traces
) -> None:
    """So that predictors are scored on the same tasks."""
    before = traces.checksum()
    assert stressed(traces, name).checksum() == stressed(traces, name).checksum() != before
    assert traces.checksum() == before
    assert stressed(traces, "") is traces


def test_a_name_that_is_none_is_refused(traces: Traces) -> None:
    """The message names those there are."""
    with pytest.raises(SpecError, match="must be one of joins, paces"):
        stressed(traces, "sleep")
