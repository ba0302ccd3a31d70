"""Processes are killed, frozen, cut off and lied to, for real: the model has the same bytes.

What happens, and when, follows from a seed, which the test's name tells.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from downpour import Spec
from downpour.record.record_lines import AssignedLine, WorkerLeftLine
from tests.chaos.company import Company, expected_in
from tests.chaos.kills import STEPS, measured, told
from tests.chaos.stage import FLAGS, PATIENCE_SECONDS, SPEC, model_in, played, undisturbed
from tests.chaos.watching import Watcher
from tests.waiting import until

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SEEDS = range(10)


calm: dict[str, bytes] = {}
"""The models that come of the specs when nothing happens, by their compression."""


@pytest.fixture
def expected(compression: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model that comes of the spec when nothing happens."""
    if compression not in calm:
        folder, spec = tmp_path_factory.mktemp("calm"), SPEC.replace(compression=compression)
        calm[compression] = undisturbed(folder, spec)
    return calm[compression]


@pytest.mark.parametrize(
    ("stage", "compression"),
    [*((seed, "none") for seed in SEEDS), (4, "int8"), (4, "topk")],
    indirect=["stage"],
)
def test_faults_leave_the_model_the_same(stage: Stage, compression: str, expected: bytes) -> None:
    """Nothing is lost, nothing counts twice, and a shard's remainder of a codec moves with it."""
    stage.flags = *FLAGS, "--compression", compression
    assert played(stage, 5, expected) == "", stage.story


def test_in_whatever_company_every_model_is_the_same(tmp_path: Path) -> None:
    """No retry is burned, nobody's experiment is taken, and what was copied in stays as it is."""
    expected = expected_in(tmp_path)
    with closing(Company(tmp_path / "shared", 0, expected.foreign)) as stage:
        assert played(stage, 4, expected) == "", stage.story


@pytest.mark.parametrize(("workers", "fields"), [(3, {}), (6, {}), (3, {"overlap": 1, **STEPS})])
def test_a_killed_manager_costs_nothing_but_the_time_until_the_next_is_there(
    workers: int, fields: dict[str, Any]
) -> None:
    """Nor where rounds overlap, and versions are steps; the script of this test plays many more."""
    outcomes = measured(workers, kills=1, epochs=30, seed=workers, fields=fields)
    assert all(one.same_bytes and not one.burned for one in outcomes), told(workers, outcomes)


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


@pytest.mark.parametrize(("stage", "compression"), [(0, "none")], indirect=["stage"])
def test_a_successor_goes_on_and_the_workers_find_it(stage: Stage, expected: bytes) -> None:
    """It answers elsewhere; the shared directory tells them where."""
    client = stage.submit(*FLAGS)
    stage.hand_over()
    client.kill()  # it was told the other address
    client.communicate()
    until(lambda: [*stage.shared.glob("experiments/*/model.safetensors")], PATIENCE_SECONDS)
    assert model_in(stage.shared) == expected, stage.manager.said
