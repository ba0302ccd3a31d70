"""The LSTM: what torch trains is what numpy predicts."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from downpour.predictor import make
from downpour.predictor.features import EVENTS, INPUTS
from downpour.predictor.learned import Lstm, Trained, read_trained, shapes
from downpour_lab.fitting.scoring import ASSIGNMENT, replay_job, scores
from downpour_lab.fitting.training import TrainingSettings, _tensors, _Training, train, train_lstm
from downpour_lab.fitting.training_data import TaskSequences, TrainingSet, prepare, read_traces
from tests.predictor.conftest import TINY, columns, write


def test_numpy_predicts_what_torch_has_trained(sequences: TaskSequences) -> None:
    """The loss that torch sees is that of the quantiles that numpy gives, tasks after tasks."""
    import torch

    settings = dataclasses.replace(TINY, nets=1, dropout=0.0)
    arrays = train_lstm([sequences], settings)
    scales = {name: part for name, part in arrays.items() if name.endswith((".center", ".scale"))}
    training = _Training(settings, 0)
    for name in training._weights:
        training._weights[name] = torch.from_numpy(arrays[name][0])
    batch = _tensors(sequences, scales)
    hidden = training._hidden(batch["events"])
    model = Lstm(arrays)
    at = model._histories.add([str(number) for number in range(len(sequences.seconds))])
    for task in range(4):
        for kind, ways in enumerate(batch["ways"]):
            some = batch["inputs"][:, task : task + 1, ways[:1]]
            raw = training._head(("assigned", "reported")[kind], some, hidden[:, task : task + 1])
            told = sequences.inputs[:, task, ways[0]]
            found = model.offsets(at, told, np.full(len(at), bool(kind)))
            assert found[:, 1] == pytest.approx(raw[:, 0, 0, 1].detach().numpy(), abs=1e-4)
        model.advance_states(at, sequences.events[:, task], np.full(len(at), task == 0))


def test_the_same_seed_gives_the_same_weights(training_set: TrainingSet) -> None:
    """And another seed others."""
    first = train(training_set, [0, 1, 2], TINY).lstm
    again = train(training_set, [0, 1, 2], TINY).lstm
    other = train(training_set, [0, 1, 2], dataclasses.replace(TINY, seed=5)).lstm
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["cell.state"], other["cell.state"])
    assert first.keys() == shapes(1, 1, 1, 1).keys()


def test_a_name_that_was_forgotten_starts_anew(trained: Trained) -> None:
    """A worker that takes a forgotten one's place has nothing of its state."""
    model = Lstm(trained.lstm)
    events = np.ones((1, len(EVENTS)), np.float32)
    at = model._histories.add(["a"])
    inputs = np.zeros((1, len(INPUTS)), np.float32)
    model.advance_states(at, events, np.array([True]))
    once = model.offsets(at, inputs, np.array([False]))
    model.advance_states(at, events, np.array([False]))
    twice = model.offsets(at, inputs, np.array([False]))
    model.advance_states(at, events, np.array([True]))
    assert np.array_equal(model.offsets(at, inputs, np.array([False])), once)
    assert not np.array_equal(once, twice)


def test_the_shipped_file_is_small_and_whole() -> None:
    """It is part of the package, and its nets are those of this version."""
    trained = read_trained()
    assert len(trained.traces) == 32
    assert sum(array.size for array in trained.lstm.values()) * 2 < 300 * 1024


@pytest.mark.slow
def test_training_learns_what_slows_machines(tmp_path: Path) -> None:
    """On jobs never seen it comes close to the noise, where the simple ones cannot.

    Times follow from the CPU that others use, which EWMA does not look at.
    """
    traces = read_traces(write(tmp_path / "t.npz", columns(jobs=10, rounds=40)))
    training_set = prepare(traces)
    settings = TrainingSettings(nets=1, epochs=25, batch=8, units=8, wide=32, narrow=16)
    trained = train(training_set, range(8), settings)
    held_out = traces.jobs[8:]
    by_habit = [replay_job(lambda: make("ewma", trained), traces, job) for job in held_out]
    by_state = [replay_job(lambda: make("lstm", trained), traces, job) for job in held_out]
    habit, state = next(scores("ewma", by_habit)), next(scores("lstm", by_state))
    assert habit.stage == state.stage == ASSIGNMENT
    assert state.mape < 0.5 * habit.mape
