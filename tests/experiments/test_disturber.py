"""Who is to die, what a waiting client tells, and what a prompt shows of a value."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from downpour.base.errors import ExperimentFailed
from downpour.base.states import ExperimentEvent, ExperimentState, WorkerState
from downpour.cluster.disturbances import Disturbances
from downpour.experiments.client import Client
from downpour.experiments.following import Disturber
from downpour.experiments.replay_history import Replay
from downpour.launchers import LocalCluster
from downpour.network.rpc.messages import ExperimentSummary, Status, WorkerStatus
from downpour.show.notebook import Result


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


class ToldClient(Client):
    """A client whose manager gives these reasons, one after the other, and then fails."""

    def __init__(self, *reasons: str | None) -> None:
        self.reasons = reasons

    def watch(
        self, experiment: str = "", check: Callable[[], None] | None = None
    ) -> Iterator[Status]:
        """Yield a status for each reason."""
        assert check is None
        running = [(ExperimentState.PREPARING, reason) for reason in self.reasons]
        for state, reason in [*running, (ExperimentState.FAILED, "enough")]:
            shown = ExperimentSummary(
                experiment=experiment,
                name="e",
                state=state,
                rounds_done=0,
                rounds_total=2,
                reason=reason,
            )
            yield Status(change=1, experiment=shown)


def test_what_holds_an_experiment_up_is_said_at_once_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And that it goes on; the end has its own line."""
    client = ToldClient(None, "no worker fits", "no worker fits", None)
    with pytest.raises(ExperimentFailed, match="enough"):
        client.wait("e-1")
    assert caplog.messages == ["e-1: no worker fits", "e-1: goes on"]


RESULT = Result.read(Path(__file__).parents[1] / "recorded" / "gestures")
SUMMARY = ExperimentSummary(
    experiment="e-1", name="e", state=ExperimentState.RUNNING, rounds_done=1, rounds_total=4
)
WORKER = WorkerStatus(worker="w", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0)
REPLAY = Replay(
    experiment="e-1", version=3, checksum="ab", compared=9, difference=None, model_file=None
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (RESULT, "<Result gestures-7f3a: finished, 3 epochs, accuracy 91.25%, 7.8 s>"),
        (RESULT.epochs[0], "<RoundResult epoch 1, round 1, accuracy 45.00%, 2.0 s>"),
        (REPLAY, "<Replay e-1: version 3 has checksum ab; 9 checksums agree>"),
        (SUMMARY, "<ExperimentSummary e-1: running, epoch 2 of 4>"),
        (WORKER, "<WorkerStatus w: idle>"),
        (Status(change=1), "<Status 0 workers, no experiment>"),
        (
            Status(change=1, workers=(WORKER,), experiment=SUMMARY),
            "<Status 1 worker, <ExperimentSummary e-1: running, epoch 2 of 4>>",
        ),
        (
            ExperimentEvent(kind="failed", experiment="e-1", reason="a\nb\x1b"),
            r"<ExperimentEvent failed e-1 'a\nb\x1b'>",
        ),
        (
            ExperimentEvent(kind="worker-joined", experiment="e-1", worker="w"),
            "<ExperimentEvent worker-joined e-1 w>",
        ),
    ],
)
def test_a_value_is_one_short_line(value: object, text: str) -> None:
    """It says which it is, and what is most worth knowing."""
    assert repr(value) == text


def test_html_holds_text_alone() -> None:
    """Names and reasons of others are no markup."""
    hostile = "<script>alert(1)</script>"
    named = dataclasses.replace(
        RESULT, name=hostile, state=ExperimentState.FAILED, reason=hostile, dataset=(hostile,)
    )
    assert "<script>" not in named._repr_html_()
    assert "&lt;script&gt;" in named._repr_html_()
