"""The simple predictors, and the network."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.predictor import learned, make, pretrained
from downpour.predictor.calibration import Online, Selector
from downpour.predictor.features import EVENTS, INPUTS, LEVELS, Array, Model
from downpour.predictor.learned import Lstm, Trained, read_trained, shapes
from downpour_lab.fitting.scoring import ASSIGNMENT, replay_job, scores
from downpour_lab.fitting.training import TrainingSettings, _tensors, _Training, train, train_lstm
from downpour_lab.fitting.training_data import TaskSequences, TrainingSet, prepare, read_traces
from tests.predictor.conftest import TINY, columns, write


def after(model: Model, *told: tuple[str, float]) -> Online:
    """Return a predictor that has seen tasks of 10 samples."""
    predictor = Online(model)
    for worker, seconds in told:
        predictor.observe(worker, {"n_samples": 10.0}, seconds)
    return predictor


TOLD = (("a", 1.0), ("a", 4.0), ("b", 100.0), ("c", 9.0))


def test_each_expects_what_its_name_says() -> None:
    """For a task twice as large, twice as long."""
    told = {"n_samples": 20.0}
    assert after(learned.LastValue(), *TOLD).predict("a", told).q50 == pytest.approx(8.0, rel=0.05)
    assert after(learned.Ewma(), *TOLD).predict("a", told).q50 == pytest.approx(4.0, rel=0.05)
    assert after(learned.Median(), *TOLD).predict("b", told).q50 == pytest.approx(12.0, rel=0.05)


def test_a_new_worker_is_taken_for_an_ordinary_one() -> None:
    """The cluster's median, for simple predictors of every kind."""
    for model in (learned.LastValue(), learned.Ewma()):
        answer = after(model, *TOLD).predict("new", {"n_samples": 10.0})
        assert answer.q50 == pytest.approx(6.0, rel=0.05)


def test_a_report_is_extrapolated() -> None:
    """A quarter in three seconds is a whole in twelve, with any history."""
    for model in (learned.LastValue(), learned.Ewma(), learned.Median()):
        answer = after(model, *TOLD).predict("a", {"p25_elapsed_s": 3.0})
        assert answer.q50 == pytest.approx(12.0, rel=0.05)
        assert answer.q10 >= 3.0


def test_seconds_that_are_none_are_ignored() -> None:
    """Zero, negative, NaN, infinite."""
    predictor = after(learned.LastValue(), *TOLD)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        predictor.observe("a", {"n_samples": 10.0}, seconds)
    assert predictor.predict("a", {"n_samples": 10.0}).q50 == pytest.approx(4.0, rel=0.05)


Q10, Q50, Q90, Q98 = range(4)


@pytest.mark.parametrize("spread", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("workers", [5, 20, 200])
def test_a_stranger_is_one_more_of_the_cluster(workers: int, spread: float) -> None:
    """Its task stays below each quantile as often as promised, however unlike the workers are.

    With few workers a cluster's quantiles are not known better than to one part in so many.
    """
    generator = np.random.default_rng(0)
    below = np.zeros(4)
    for _ in range(2000):
        times = spread * generator.standard_t(4, workers + 1)
        below += times[-1] <= learned.for_a_stranger(times[:-1])
    assert below / 2000 == pytest.approx(LEVELS, abs=0.03 + 0.5 / workers)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60))
def test_its_quantiles_are_those_of_split_conformal_prediction(times: list[float]) -> None:
    """Of n + 1 equally likely draws, n are known; the last one moves a quantile by one at most."""
    found, known = learned.for_a_stranger(np.array(times)), [-np.inf, *sorted(times), np.inf]
    assert found.tolist() == sorted(found)
    for place, level in enumerate(LEVELS):
        conformal = int(np.ceil((len(times) + 1) * level - 1e-9))
        assert known[conformal - 1] <= found[place] <= known[conformal]


def test_without_a_cluster_only_the_order_of_magnitude_is_known() -> None:
    """A tenth of the tasks below 0.22 times the usual time, a fiftieth above 12 times."""
    found = np.exp(learned.for_a_stranger(np.zeros(0)))
    assert found == pytest.approx([0.22, 1.0, 4.5, 12.2], rel=0.06)


@pytest.mark.parametrize("name", ["lstm", "ridge", "selector"])
def test_a_new_worker_is_predicted_as_its_cluster(name: str, trained: learned.Trained) -> None:
    """Half of them need a second for a task, half of them two. Once it reports, that counts."""
    predictor = make(name, trained)
    for _ in range(10):
        for number in range(20):
            predictor.observe(f"w{number}", {"n_samples": 100.0}, 1.0 + number % 2)
    afresh = predictor.predict("new", {"n_samples": 100.0})
    assert afresh.q10 == pytest.approx(1.0, rel=0.05)
    assert 1.0 < afresh.q50 < 2.05
    assert afresh.q90 == pytest.approx(2.0, rel=0.05)
    larger = predictor.predict("another", {"n_samples": 400.0})
    assert larger.q90 == pytest.approx(4 * afresh.q90, rel=0.05)
    reported = predictor.predict("new", {"n_samples": 100.0, "p50_elapsed_s": 40.0})
    assert 60 < reported.q50 < 110


class Constant:
    """A model that always answers the same; it counts how often it was asked."""

    def __init__(self, answer: Sequence[float], error: Exception | None = None) -> None:
        self.answer = np.array(answer, dtype=float)
        self.error = error
        self.asked = 0

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:  # noqa: ARG002
        self.asked += 1
        if self.error:
            raise self.error
        return np.tile(self.answer, (len(workers), 1))

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Learn nothing."""


def run(selector: Selector, seconds: Array) -> Online:
    """Predict and observe (rounds, workers) of seconds."""
    predictor = Online(selector)
    for turn in seconds:
        names = [f"w{number}" for number in range(len(turn))]
        predictor.predict_many([(name, {"n_samples": 32.0}) for name in names])
        for name, took in zip(names, turn, strict=True):
            predictor.observe(name, {"n_samples": 32.0}, float(took))
    predictor.predict("w0", {})
    return predictor


def test_the_median_serves_names_that_are_not_machines() -> None:
    """Delays without memory: the history of a name predicts nothing."""
    delays = np.exp(np.random.default_rng(1).normal(2, 0.6, (40, 16)))
    trained = learned.Lstm(learned.read_trained().lstm)
    selector = Selector(
        {
            "lstm": trained,
            "ewma": learned.Ewma(),
            "last-value": learned.LastValue(),
            "median": learned.Median(),
        }
    )
    assert selector.chosen() == "lstm"
    run(selector, delays)
    assert selector.chosen() == "median"


def test_the_median_does_not_serve_different_workers() -> None:
    """The same delays, if each worker keeps its own."""
    own = np.exp(np.random.default_rng(1).normal(2, 0.6, 16))
    selector = Selector({"median": learned.Median(), "ewma": learned.Ewma()})
    run(selector, np.tile(own, (40, 1)))
    assert selector.chosen() == "ewma"


def test_it_goes_back_when_the_run_changes() -> None:
    """Recent outcomes count most."""
    selector = Selector({"low": Constant([0, 0, 0, 0]), "high": Constant([3, 3, 3, 3])})
    run(selector, np.full((20, 8), np.exp(3)))
    assert selector.chosen() == "high"
    run(selector, np.ones((80, 8)))
    assert selector.chosen() == "low"


@pytest.mark.parametrize(
    "broken",
    [
        Constant([0, np.nan, 1, 2]),
        Constant([0, 2, 1, 3]),
        Constant([0, 1, 2, np.inf]),
        Constant([], error=RuntimeError("no weights")),
    ],
    ids=["nan", "crossing", "infinite", "raising"],
)
def test_a_broken_member_is_set_aside_with_one_warning(
    broken: Constant, caplog: pytest.LogCaptureFixture
) -> None:
    """From then on it is not even asked; the others answer, the first time, too."""
    selector = Selector({"broken": broken, "sound": Constant([0, 1, 2, 3])})
    with caplog.at_level(logging.WARNING):
        answer = run(selector, np.ones((5, 4))).predict("w0", {})
    assert answer.quantiles == pytest.approx(np.exp([0, 1, 2, 3]))
    assert broken.asked == 1
    assert [record.getMessage() for record in caplog.records if "setting aside" in record.message]
    assert len(caplog.records) == 1
    assert selector.chosen() == "sound"


def test_the_error_of_the_last_member_is_raised() -> None:
    """No other member is left that could answer."""
    selector = Selector({"only": Constant([], error=RuntimeError("no weights"))})
    with pytest.raises(RuntimeError, match="no weights"):
        Online(selector).predict("w", {})


def test_names_that_come_and_go_take_no_more_room_in_the_end() -> None:
    """Ten thousand workers that are seen once each, as where functions are rented by the call."""
    predictor = pretrained()
    for start in range(0, 10_000, 50):
        names = [f"w{number}" for number in range(start, start + 50)]
        predictor.predict_many([(name, {"n_samples": 32.0}) for name in names])
        for name in names:
            predictor.observe(name, {"n_samples": 32.0}, 3.0)
    assert predictor.predict("new", {"n_samples": 32.0}).q50 == pytest.approx(3.0, rel=0.1)


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
