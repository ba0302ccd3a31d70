"""Epochs in a real MLflow store."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import SpecError, is_installed
from downpour.base.states import ExperimentState
from downpour.show.loggers import MlflowRun
from tests.show.loggers.conftest import EPOCHS, RESULT, RUN, logged, resumed

pytestmark = [
    pytest.mark.skipif(not is_installed("mlflow"), reason="mlflow is not installed"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder as MLflow's store; MLflow sends no report of its use."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return str(tmp_path / "mlruns")


def client_of(store: str) -> Any:
    """Return what reads a store."""
    from mlflow import MlflowClient

    return MlflowClient(store)


def runs(store: str) -> list[Any]:
    """Return the runs of the store."""
    client = client_of(store)
    known = client.get_experiment_by_name(RESULT.name)
    return list(client.search_runs([known.experiment_id]))


def points(store: str, run: Any, metric: str) -> list[tuple[int, float]]:
    """Return the values of a metric by step."""
    history = client_of(store).get_metric_history(run.info.run_id, metric)
    return [(point.step, point.value) for point in history]


def test_a_run_has_the_epochs_and_the_spec(store: str) -> None:
    """As metrics by epoch, and as parameters; it has ended as the experiment has."""
    logged(MlflowRun(store))
    (run,) = runs(store)
    assert points(store, run, "test/accuracy") == [(e.epoch, e.accuracy) for e in EPOCHS]
    assert points(store, run, "step/loss") == [(2, 2.0), (4, 1.0), (10, 2.0), (12, 1.0)]
    assert run.data.params["shards"] == str(RESULT.spec["shards"])
    assert (run.info.run_name, run.info.status) == (RUN.experiment, "FINISHED")


@pytest.mark.parametrize(
    ("state", "status"), [(ExperimentState.FAILED, "FAILED"), (ExperimentState.CANCELLED, "KILLED")]
)
def test_a_run_ends_as_the_experiment_does(store: str, state: ExperimentState, status: str) -> None:
    """MLflow has words of its own for that."""
    logger = MlflowRun(store)
    logger.begin(RUN)
    logger.end(dataclasses.replace(RESULT, state=state))
    (run,) = runs(store)
    assert run.info.status == status


@pytest.mark.parametrize(("before", "told"), [(3, [1, 3, 4, 6]), (1, [1, 3, 4])])
def test_a_resumed_experiment_continues_its_run(store: str, before: int, told: list[int]) -> None:
    """Epochs that the run has already, because more was trained than was kept, come once."""
    logged(MlflowRun(store))
    logged(MlflowRun(store), resumed(before))
    (run,) = runs(store)
    assert [step for step, _ in points(store, run, "test/accuracy")] == told
    steps = [step for number in told for step in (4 * number - 2, 4 * number)]
    assert [step for step, _ in points(store, run, "step/loss")] == steps


def test_a_store_that_mlflow_refuses_is_told_at_once() -> None:
    """In one line, before training begins."""
    with pytest.raises(SpecError, match="log = 'mlflow:no-such-scheme:") as refused:
        MlflowRun("no-such-scheme://x")
    assert "\n" not in str(refused.value)
