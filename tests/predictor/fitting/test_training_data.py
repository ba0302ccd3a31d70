"""Training data tell what a predictor would have known, and augmenting changes only what it may."""

from __future__ import annotations

import numpy as np
import pytest

from downpour.predictor.base import Array
from downpour.predictor.fitting.traces import Traces
from downpour.predictor.fitting.training_data import TaskSequences, augment


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


def test_augmented_traces_leave_the_time_a_sample_alone(traces: Traces) -> None:
    """Sizes change with times, states by themselves; the original stays as it is."""
    before = traces.columns["loadavg1"].copy()
    other = augment(traces, 3)
    assert not np.array_equal(before, other.columns["loadavg1"])
    assert not np.array_equal(traces.columns["n_samples"], other.columns["n_samples"])
    for name in ("completion_s", "p25_elapsed_s"):
        paces = [told.columns[name] / told.columns["n_samples"] for told in (traces, other)]
        assert paces[0] == pytest.approx(paces[1])
    assert np.array_equal(before, traces.columns["loadavg1"])
