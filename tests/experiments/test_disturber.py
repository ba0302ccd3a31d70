"""Who is to die does so when the time comes, and the record has it first."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from downpour.base.states import ExperimentState
from downpour.cluster.disturbances import Disturbances
from downpour.experiments.following import Disturber
from downpour.launchers import LocalCluster
from downpour.network.rpc.messages import ExperimentSummary, Status


@dataclass
class FakeCluster:
    """Processes by name; what happens to them is written down."""

    processes: dict[str, int] = field(default_factory=lambda: {"manager": 1, "worker-1": 2})
    happened: list[str] = field(default_factory=list)
    now: float = 100.0

    def process_of(self, name: str) -> int | None:
        """Return a process that is there."""
        return self.processes.get(name)

    def kill(self, name: str, *, again: bool) -> None:
        """Kill it."""
        self.happened.append(f"kill {name}, again {again}")
        del self.processes[name]


def status(done: int, state: ExperimentState = ExperimentState.RUNNING) -> Status:
    """Say that so many rounds are over."""
    shown = ExperimentSummary(
        experiment="e", name="e", state=state, rounds_done=done, rounds_total=9
    )
    return Status(change=1, experiment=shown)


@pytest.fixture
def cluster() -> FakeCluster:
    """A manager and a worker."""
    return FakeCluster()


def disturber(cluster: FakeCluster, *kills: str) -> Disturber:
    """Return one that tells the record, and reads the cluster's clock."""
    return Disturber(
        Disturbances.of(None, kills).kill,
        cast("LocalCluster", cluster),
        lambda one: cluster.happened.append(f"record: {one.who} {one.what}"),
        now=lambda: cluster.now,
    )


def test_a_round_that_begins_ends_a_worker_after_the_record_has_it(cluster: FakeCluster) -> None:
    """Round 3 begins when two are over; nothing happens twice."""
    disturb = disturber(cluster, "worker-1@round3")
    for done in (0, 1, 1):
        disturb.look(status(done))
    assert cluster.happened == []
    for done in (2, 3):
        disturb.look(status(done))
    assert cluster.happened == [
        "record: worker-1 is killed and stays away",
        "kill worker-1, again False",
    ]
    assert not disturb.left


def test_seconds_count_from_the_beginning_of_training(cluster: FakeCluster) -> None:
    """Starting processes and preparing data take no part of them."""
    disturb = disturber(cluster, "manager@5s")
    disturb.look(status(0, ExperimentState.PREPARING))
    cluster.now += 60
    disturb.look(status(0))
    cluster.now += 4.9
    disturb.look(status(7))
    assert cluster.happened == []
    cluster.now += 0.1
    disturb.look(status(7))
    assert cluster.happened[-1] == "kill manager, again True"


def test_a_process_that_starts_again_at_that_moment_dies_when_it_is_there(
    cluster: FakeCluster,
) -> None:
    """A second kill of the same process waits for the next one."""
    disturb = disturber(cluster, "manager@round1", "manager@round2")
    for done in (0, 1, 1):
        disturb.look(status(done))
    assert cluster.happened.count("kill manager, again True") == 1
    cluster.processes["manager"] = 3
    disturb.look(status(1))
    assert cluster.happened.count("kill manager, again True") == 2
