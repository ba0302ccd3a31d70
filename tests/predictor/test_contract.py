"""What every predictor promises, and the kinds that there are."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.base.values import Forecast
from downpour.predictor import Predictor, make, pretrained
from downpour.predictor.features import STATE
from downpour.predictor.learned import Trained
from downpour_lab.fitting.scoring import NAMES, Fitted
from downpour_lab.fitting.training_data import Traces

FAMILY = pytest.mark.parametrize("name", NAMES)
NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 100), st.just(math.nan)
)
FEATURES = [
    "n_samples",
    "batches",
    *STATE,
    "p25_elapsed_s",
    "p10_elapsed_s",
    "p25_cpu_util",
    "precision_bfloat16",
    "device_cuda",
    "other",
]


def replayed(predictor: Predictor, traces: Traces) -> list[Forecast]:
    """Replay the first job of a trace; return what was predicted."""
    answers: list[Forecast] = []
    for rows in traces.jobs[0].rounds:
        workers, told = traces.workers(rows), traces.features(rows, (10, 25))
        answers += predictor.predict_many(list(zip(workers, told, strict=True)))
        for worker, features, seconds in zip(workers, told, traces.seconds(rows), strict=True):
            predictor.observe(worker, features, float(seconds))
    return answers


def sane(answer: Forecast) -> bool:
    """Whether quantiles are some: finite, positive, not crossing."""
    found = list(answer.quantiles)
    return bool(np.isfinite(found).all() and answer.q10 > 0 and found == sorted(found))


@FAMILY
def test_a_worker_never_seen_gets_a_sane_prediction(name: str, fitted: Fitted) -> None:
    """No worker is known at first; later a new worker is predicted as an ordinary one."""
    predictor = fitted.predictor(name)
    assert sane(predictor.predict("new", {}))
    assert 1 < predictor.predict("new", {"n_samples": 3200.0}).q50 < 100
    for turn in range(30):
        for worker in ("a", "b", "c"):
            predictor.observe(worker, {"n_samples": 100.0}, 500.0 + turn % 3)
    assert 250 < predictor.predict("new", {"n_samples": 100.0}).q50 < 1000


@FAMILY
def test_the_same_calls_give_the_same_answers(name: str, fitted: Fitted, traces: Traces) -> None:
    """Nothing is drawn by chance."""
    assert replayed(fitted.predictor(name), traces) == replayed(fitted.predictor(name), traces)


@FAMILY
def test_many_at_once_is_one_by_one(name: str, fitted: Fitted, traces: Traces) -> None:
    """A batch saves time and changes nothing."""
    predictor, other = fitted.predictor(name), fitted.predictor(name)
    replayed(predictor, traces)
    replayed(other, traces)
    rows = traces.jobs[1].rounds[0]
    told = traces.features(rows, ())
    requests = [
        (worker, features | ({"p30_elapsed_s": 2.0} if number % 2 else {}))
        for number, (worker, features) in enumerate(zip(traces.workers(rows), told, strict=True))
    ]
    together = predictor.predict_many([*requests, ("new", {})])
    alone = [other.predict(*request) for request in [*requests, ("new", {})]]
    for batched, single in zip(together, alone, strict=True):
        assert batched.quantiles == pytest.approx(single.quantiles, rel=1e-5)
    assert predictor.predict_many([]) == []


@FAMILY
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None
)
@given(told=st.lists(st.tuples(st.dictionaries(st.sampled_from(FEATURES), NUMBERS), NUMBERS)))
def test_missing_or_absurd_features_give_sane_forecasts(
    name: str, fitted: Fitted, told: list[tuple[dict[str, float], float]]
) -> None:
    """Features may be absent, NaN, infinite or negative, and so may observed times."""
    predictor = fitted.predictor(name)
    for number, (features, seconds) in enumerate(told):
        assert sane(predictor.predict(f"w{number % 3}", features))
        predictor.observe(f"w{number % 3}", features, seconds)


@FAMILY
def test_no_task_is_predicted_to_end_before_its_last_report(
    name: str, fitted: Fitted, traces: Traces
) -> None:
    """And one that is nearly done is predicted to end soon."""
    predictor = fitted.predictor(name)
    replayed(predictor, traces)
    for percent, slow in ((25, 400.0), (90, 1000.0), (99, 2.0)):
        features = {"n_samples": 3200.0, f"p{percent}_elapsed_s": slow}
        answer = predictor.predict("0", features)
        assert sane(answer)
        assert answer.q10 >= slow * 0.999
    assert answer.q50 < 2.5


@pytest.mark.parametrize("name", ["ewma", "ridge", "trees", "lstm", "selector"])
def test_a_workers_durations_are_learned_in_any_unit(name: str, fitted: Fitted) -> None:
    """Seconds a thousand times longer, or tasks a thousand times larger, scale the predictions."""
    answers = []
    for seconds, samples in ((10.0, 3200.0), (10_000.0, 3200.0), (10.0, 3.2)):
        predictor = fitted.predictor(name)
        for _ in range(20):
            predictor.observe("slow", {"n_samples": samples}, 2 * seconds)
            predictor.observe("fast", {"n_samples": samples}, seconds)
        slow = predictor.predict("slow", {"n_samples": samples}).q50 / seconds
        fast = predictor.predict("fast", {"n_samples": samples}).q50 / seconds
        assert slow > 1.5 * fast
        answers += [slow, fast]
    assert np.allclose(answers[:2] * 3, answers, rtol=1e-3)


def test_a_name_that_is_none_is_refused(trained: Trained) -> None:
    """The message names those there are; trees come from no file."""
    with pytest.raises(SpecError, match="must be one of last-value, ewma"):
        make("oracle", trained)
    with pytest.raises(SpecError, match=r"trees.*must be one of last-value, ewma"):
        Fitted(trained).predictor("trees")


def test_predicting_needs_neither_torch_nor_what_fits() -> None:
    """The manager's thread must never wait for half a gigabyte to be imported."""
    code = (
        "import sys, downpour.predictor as p; p.pretrained().predict('w', {}); print(*sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(shown.stdout.split())
    assert not {"torch", "sklearn", "downpour_lab.fitting"} & loaded


FLOAT32 = {"n_samples": 1000.0, "precision_float32": 1.0, "device_cpu": 1.0}
BFLOAT16 = {"n_samples": 1000.0, "precision_bfloat16": 1.0, "device_cpu": 1.0}
UNKNOWN = {"n_samples": 1000.0}


def train(predictor: Predictor, worker: str, told: dict[str, float], seconds: float) -> None:
    """Let a worker finish twenty tasks, whose times vary by a few percent."""
    noise = np.random.default_rng(0)
    for _ in range(20):
        predictor.predict(worker, told)
        predictor.observe(worker, told, seconds * float(np.exp(noise.normal(0, 0.03))))


def test_a_worker_that_returns_to_a_precision_is_predicted_well_at_once() -> None:
    """Without the features, the first forecast after a change is that of the precision before."""
    for told, returning in (((FLOAT32, BFLOAT16), 10.0), ((UNKNOWN, UNKNOWN), 4.0)):
        predictor = pretrained()
        train(predictor, "ada", told[0], 10.0)
        train(predictor, "ada", told[1], 4.0)
        assert abs(predictor.predict("ada", told[0]).q50 / returning - 1) < 0.15
        if told[0] is FLOAT32:
            train(predictor, "ada", FLOAT32, 10.0)
            assert abs(predictor.predict("ada", BFLOAT16).q50 / 4.0 - 1) < 0.15


def test_a_precision_that_other_workers_know_is_predicted_from_them() -> None:
    """A worker twice as slow gains by the same factor; one on another device says nothing of it."""
    predictor = pretrained()
    for worker, factor in (("ada", 1.0), ("bob", 1.2), ("cid", 2.0)):
        train(predictor, worker, FLOAT32, 10.0 * factor)
    for worker, factor in (("ada", 1.0), ("bob", 1.2)):
        train(predictor, worker, BFLOAT16, 4.0 * factor)
    assert abs(predictor.predict("cid", BFLOAT16).q50 / 8.0 - 1) < 0.15
    assert abs(predictor.predict("cid", FLOAT32).q50 / 20.0 - 1) < 0.15


def test_a_new_worker_is_predicted_as_the_others_on_its_kind_of_device() -> None:
    """And its first task counts for a common scale, so that all workers stay comparable."""
    on_cuda = {"n_samples": 1000.0, "precision_float32": 1.0, "device_cuda": 1.0}
    predictor = pretrained()
    for worker in ("ada", "bob", "cid"):
        train(predictor, worker, FLOAT32, 10.0)
    train(predictor, "dot", on_cuda, 1.0)
    assert abs(predictor.predict("eve", on_cuda).q50 / 1.0 - 1) < 0.3
    train(predictor, "eve", on_cuda, 1.1)
    assert abs(predictor.predict("fay", on_cuda).q50 / 1.05 - 1) < 0.3
    assert abs(predictor.predict("gus", FLOAT32).q50 / 10.0 - 1) < 0.3
