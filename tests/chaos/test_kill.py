"""Processes are killed, frozen, cut off and lied to, for real: the model has the same bytes.

What happens, and when, follows from a seed, which the test's name tells.
"""

from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest

from downpour import Spec
from downpour.record.record_lines import AssignedLine, WorkerLeftLine
from tests.chaos.company import Company, expected_in
from tests.chaos.forked import model_of_run
from tests.chaos.stage import FLAGS, PATIENCE_SECONDS, Stage, model_in, played
from tests.chaos.watching import Watcher
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SEEDS = range(10)


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage whose seed is the test's parameter."""
    with closing(Stage(tmp_path, request.param)) as made:
        yield made


@cache
def calm(*flags: str) -> bytes:
    """Return the model that comes of an experiment when nothing happens."""
    with TemporaryDirectory() as folder:
        return model_of_run(Path(folder), *flags, "--workers", "2")


STEPS = "--compression", "terngrad", "--model-compression", "int3"
"""So that a new manager has to follow the steps between versions."""


@pytest.mark.parametrize(
    ("stage", "more"),
    [*((seed, ()) for seed in SEEDS), *((4, ("--compression", name)) for name in ("int8", "topk"))],
    indirect=["stage"],
)
def test_faults_leave_the_model_the_same(stage: Stage, more: tuple[str, ...]) -> None:
    """Nothing is lost, nothing counts twice, and a shard's remainder of a codec moves with it."""
    stage.flags = *FLAGS, *more
    assert played(stage, 5, calm(*stage.flags)) == "", stage.story


@pytest.mark.parametrize(
    ("workers", "more"), [(3, ()), (6, ("--shards", "7")), (3, ("--overlap", "1", *STEPS))]
)
def test_a_killed_manager_costs_no_retry(
    workers: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    """Nor where rounds overlap, and versions are steps; `tests.chaos.many` plays many more."""
    flags = *FLAGS, "--epochs", "30", *more
    with closing(Stage(tmp_path, workers, workers, flags)) as stage:
        stage.happens = ["kill_manager"]
        assert played(stage, 1, calm(*flags)) == "", stage.story


def test_in_whatever_company_every_model_is_the_same(tmp_path: Path) -> None:
    """The manager counts no retry, and leaves foreign experiments and copied files as they are."""
    expected = expected_in(tmp_path)
    with closing(Company(tmp_path / "shared", 0, expected.foreign)) as stage:
        assert played(stage, 4, expected) == "", stage.story


@pytest.mark.parametrize("stage", [0], indirect=True)
def test_a_killed_worker_is_missed_when_its_connection_ends(stage: Stage, tmp_path: Path) -> None:
    """Its shard is given out again at once; ten seconds of silence are not waited for."""
    spec = Spec(shards=1, epochs=1, batch_size=1, model="mlp", model_options={"hidden": [2000] * 2})
    (tmp_path / "long.toml").write_text(spec.to_toml())
    with Watcher(stage.shared) as watcher:
        client = stage.submit(str(tmp_path / "long.toml"))
        given = first(watcher, AssignedLine)
        [busy] = [station for station in stage.stations if station.name == given.worker]
        busy.process.kill()
        left = first(watcher, WorkerLeftLine)
        client.kill()
        client.communicate()
    assert left.worker == given.worker
    # The call that brings the task may still be on its way.
    assert left.reason.startswith(("its connection ended and ", "the call failed: "))


Kind = TypeVar("Kind", AssignedLine, WorkerLeftLine)


def first(watcher: Watcher, kind: type[Kind]) -> Kind:
    """Wait for a fact of a kind."""

    def found() -> list[Kind]:
        return [seen.fact for seen in watcher.story if isinstance(seen.fact, kind)]

    until(found)
    return found()[0]


@pytest.mark.parametrize("stage", [0], indirect=True)
def test_a_successor_goes_on_and_the_workers_find_it(stage: Stage) -> None:
    """It answers elsewhere; the shared directory tells them where."""
    client = stage.submit(*FLAGS)
    stage.hand_over()
    client.kill()  # it was told the other address
    client.communicate()
    until(lambda: [*stage.shared.glob("experiments/*/model.safetensors")], PATIENCE_SECONDS)
    assert model_in(stage.shared) == calm(*FLAGS), stage.manager.said
