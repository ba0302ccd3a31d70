"""Real training in virtual time: its bytes are those of real processes, and the same every time."""

import importlib
from pathlib import Path
from typing import Any

import pytest

import downpour
from tests.specs import model_of

pytestmark = pytest.mark.usefixtures("forked_clusters")

FOLDER = Path(__file__).parents[2] / "benchmarks"
FIELDS: dict[str, Any] = {
    "shards": 3,
    "epochs": 2,
    "meet": 2,
    "momentum": 0.5,
    "outer": {"optimizer": "nesterov", "momentum": 0.6},
    "compression": "int8",
    "seed": 7,
}
UNEVEN_SECONDS = (0.02, 0.03, 0.07)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the benchmarks."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("virtual_training")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_bytes_are_those_of_real_processes(virtual: Any, tmp_path: Path) -> None:
    """In step, the model does not depend on who trains what when: not on virtual time either."""
    spec = downpour.Spec.make(FIELDS)
    result = downpour.run(spec, workers=2, shared=tmp_path)
    made = virtual.train(spec, virtual.Cost(step_seconds=UNEVEN_SECONDS))
    assert made.model == model_of(result)
    assert [look.metrics["accuracy"] for look in made.looks] == [
        epoch.accuracy for epoch in result.epochs
    ]
    assert made.staleness == (0,) * 12


@pytest.mark.slow
def test_an_asynchronous_training_is_the_same_twice(virtual: Any) -> None:
    """Which updates meet follows from the times, and these from the seed."""
    spec = downpour.Spec.make({**FIELDS, "mode": "downpour"})
    runs = [
        virtual.train(spec, virtual.Cost(step_seconds=UNEVEN_SECONDS), seed=seed)
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].model != runs[2].model
    assert len(runs[0].staleness) == 12
    assert max(runs[0].staleness) > 0


@pytest.mark.slow
def test_more_workers_take_less_time_and_as_many_steps(virtual: Any) -> None:
    """Three workers, a core each, train three shards in about a third of the time of one."""
    spec = downpour.Spec.make(FIELDS)
    alone, together = (
        virtual.train(spec, virtual.Cost(step_seconds=(0.5,) * workers)) for workers in (1, 3)
    )
    assert alone.model == together.model
    assert sum(alone.steps.values()) == sum(together.steps.values()) == alone.steps["worker-1"]
    assert 0.3 < together.seconds / alone.seconds < 0.4
