"""Precisions and kinds of devices: what workers learn of one helps to predict the other."""

import numpy as np

from downpour.predictor import Predictor, pretrained

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
