"""Training data tell what a predictor would have known, and augmenting changes only what it may."""

from __future__ import annotations

import numpy as np
import pytest

from downpour.predictor.features import Array
from downpour_lab.fitting.training_data import TaskSequences, Traces, augment
from tests.predictor.conftest import WORKERS


def test_sequences_tell_what_came_of_each_description(
    traces: Traces, sequences: TaskSequences
) -> None:
    """The target puts the expected time right; nothing is usable before anything is known."""
    reported = sequences.share > 0
    whole = np.log(
        sequences.elapsed + (1 - sequences.share) * np.exp(sequences.expected + sequences.target)
    )
    found: Array = whole[sequences.usable]
    seconds = np.broadcast_to(sequences.seconds[..., None], whole.shape)[sequences.usable]
    assert found == pytest.approx(np.log(seconds), abs=1e-4)
    assert not sequences.usable[:, 0, ~reported].any()
    assert sequences.usable[:, 1:].all()
    assert sequences.usable[:, 0, reported].all()
    assert len(sequences.of([1]).seconds) == len(sequences.seconds) / len(traces.jobs)


def paces(traces: Traces, name: str) -> Array:
    """Return the seconds a sample, by job, round and worker."""
    rates: Array = traces.columns[name] / traces.columns["n_samples"]
    return rates.reshape(len(traces.jobs), -1, WORKERS)


def test_augmented_traces_leave_the_time_a_sample_alone(traces: Traces) -> None:
    """Sizes change with times, states by themselves; the original stays as it is."""
    before = traces.columns["loadavg1"].copy()
    other = augment(traces, 3)
    assert not np.array_equal(before, other.columns["loadavg1"])
    assert not np.array_equal(traces.columns["n_samples"], other.columns["n_samples"])
    for name in ("completion_s", "p25_elapsed_s"):
        assert paces(other, name) == pytest.approx(paces(traces, name))
    assert np.array_equal(before, traces.columns["loadavg1"])


def test_in_augmented_traces_some_workers_change_their_pace_for_good(traces: Traces) -> None:
    """All that such a worker reports takes longer by one factor, from some round to the last."""
    shares = []
    for seed in range(10):
        other = augment(traces, seed)
        factor = paces(other, "completion_s") / paces(traces, "completion_s")
        reported = paces(other, "p25_elapsed_s") / paces(traces, "p25_elapsed_s")
        assert reported == pytest.approx(factor)
        changed = ~np.isclose(factor, 1)
        assert np.isclose(factor[:, 1:], factor[:, :-1])[changed[:, :-1]].all()
        shares.append(changed.any(axis=1).mean())
    assert 0 < np.mean(shares) < 0.25
