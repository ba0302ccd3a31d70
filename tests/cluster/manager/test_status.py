"""The core's state as clients see it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import AttemptId, Forecast, Progress, PublishedFile, SystemState
from downpour.cluster.manager.roster import Roster
from downpour.cluster.manager.status import KnownContributions, status, summary
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler.state import Decision
from downpour.core.stragglers.base import POLICIES, RoundView, Saving
from downpour.network.rpc.messages import Status
from tests.specs import plain_spec, plain_update

SECOND = Forecast(q10=0.5, q50=1.0, q90=2.0, q98=3.0)


@pytest.fixture
def core() -> Scheduler:
    """Return a scheduler that was handed an experiment at second 2; ann, bob and cid train it."""
    return prepared(Scheduler())


def prepared(core: Scheduler) -> Scheduler:
    """Let ann, bob and cid join, and hand over an experiment, of three shards."""
    for name in ("ann", "bob", "cid"):
        core.handle(on.WorkerJoined(at_seconds=1.0, worker=name))
    spec = plain_spec(shards=3, epochs=2)
    core.handle(on.ExperimentSubmitted(at_seconds=2.0, experiment="one", spec=spec))
    model = PublishedFile(name="m0", size_bytes=8, checksum="0" * 32)
    core.handle(
        on.Prepared(
            at_seconds=3.0, experiment="one", dataset="d", shard_samples=(10, 10, 20), model=model
        )
    )
    return core


def foresee(core: Scheduler, *forecasts: Forecast) -> Status:
    """Predict what is left of the first shards, and show what comes of it."""
    remaining = tuple(
        (AttemptId(experiment="one", round=0, shard=shard, attempt=0), forecast)
        for shard, forecast in enumerate(forecasts)
    )
    core.handle(on.Forecasts(at_seconds=4.0, remaining=remaining))
    return status(core, Roster(), "", 1)


def test_decisions_say_when_they_were_made(core: Scheduler) -> None:
    """In seconds after the submission; those of other experiments are not shown."""
    core.state.decisions.append(Decision(4.5, "one", "epoch 1: shard 0 to bob, too: he is idle"))
    core.state.decisions.append(Decision(5.0, "other", "epoch 9: something else"))
    told = status(core, Roster(), "", 1).decisions
    assert told == ("2.5 s, epoch 1: shard 0 to bob, too: he is idle",)


def test_slow_is_who_takes_longer_for_a_sample_than_the_middle_one(core: Scheduler) -> None:
    """Shards differ in size, so the time for a whole one says nothing."""
    shown = foresee(core, SECOND.times(10), SECOND.times(30), SECOND.times(20))
    assert [task.slowness for task in shown.tasks] == [1.0, 3.0, 1.0]
    assert [task.predicted.q50 for task in shown.tasks if task.predicted] == [10.0, 30.0, 20.0]


def test_what_is_published_is_shown_beside_the_size_of_the_last_update(core: Scheduler) -> None:
    """The optimizer's state is a part of it; before the first update, no size is known."""
    attempts = [AttemptId(experiment="one", round=0, shard=shard, attempt=0) for shard in (0, 1)]
    progress = Progress(
        attempt=attempts[0], steps_done=2, steps_total=2, elapsed_seconds=1.0, moved_bytes=5
    )
    system = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)
    core.handle(
        on.HeartbeatReceived(at_seconds=4.0, worker="bob", running=(progress,), system=system)
    )
    before = status(core, Roster(), "", 1).tasks
    assert [(task.phase, task.moved_bytes, task.update_bytes) for task in before[:2]] == [
        ("publishing", 5, 0),
        ("loading", 0, 0),
    ]
    file = PublishedFile(name="u1", size_bytes=8, checksum="0" * 32)
    update = plain_update(file, optimizer_state=replace(file, name="o1"))
    core.handle(
        on.UpdatePublished(at_seconds=5.0, worker="cid", attempt=attempts[1], update=update)
    )
    assert status(core, Roster(), "", 1).tasks[0].update_bytes == 16


def test_an_infinite_forecast_is_not_sent(core: Scheduler) -> None:
    """A message holds finite numbers only: that it may take for ever is not known, then."""
    shown = foresee(core, Forecast(q10=1.0, q50=2.0, q90=math.inf, q98=math.inf), SECOND)
    assert [task.predicted for task in shown.tasks] == [None, SECOND, None]
    assert [task.slowness for task in shown.tasks] == [None, 1.0, None]


def test_contributions_are_sent_with_their_workers(core: Scheduler) -> None:
    """Of whom nothing is known, nothing is said."""
    known = {"bob": Saving(share=-0.25, stands_by=True)}
    shown = status(core, Roster(), "", 1, contributions=known).workers
    assert [(worker.worker, worker.saves, worker.stands_by) for worker in shown] == [
        ("ann", None, False),
        ("bob", -0.25, True),
        ("cid", None, False),
    ]


def test_contributions_are_computed_now_and_then_and_kept_meanwhile() -> None:
    """Clients ask twice a second; between rounds, what was said last still holds."""
    answers = iter([{"ann": 0.1, "bob": 0.2}, {}, {"ann": 0.3}, {}])
    asked: list[list[str]] = []

    def answer(
        view: RoundView, sizes: Sequence[int], names: Collection[str]
    ) -> Mapping[str, Saving]:
        asked.append(list(names))
        del view, sizes
        return {name: Saving(share=share, stands_by=False) for name, share in next(answers).items()}

    policy = replace(POLICIES["handoff"], contributions=answer)
    core = prepared(Scheduler(policies={**POLICIES, "handoff": policy}))
    known = KnownContributions()

    def saves(at_seconds: float) -> float | None:
        core.handle(on.Tick(at_seconds=at_seconds))
        one = known.of(core.state).get("ann")
        return one.share if one else None

    assert [saves(at) for at in (3.0, 4.0, 4.9)] == [0.1, 0.1, 0.1]
    assert [saves(at) for at in (5.0, 7.0)] == [0.1, 0.3]
    assert known.of(core.state)["bob"].share == 0.2
    assert asked == [["ann", "bob", "cid"]] * 3
    core.handle(on.WorkerLeft(at_seconds=7.5, worker="cid", reason="goodbye"))
    assert saves(7.6) is None
    assert asked[3:] == [["ann", "bob"]]


def test_a_workers_slowness_is_that_of_its_last_rounds(core: Scheduler) -> None:
    """The middle one of them; None where it took part in none."""
    bob = core.state.workers.get("bob")
    assert bob is not None
    bob.slowness.extend([1.0, 3.0, 9.0])
    shown = {worker.worker: worker.slowness for worker in status(core, Roster(), "", 1).workers}
    assert shown == {"ann": None, "bob": 3.0, "cid": None}


def test_what_holds_an_experiment_up_is_its_reason(core: Scheduler) -> None:
    """It stays until a worker joins that can train it."""
    for shown in status(core, Roster(), "", 1).workers:
        assert shown.running is not None
        core.handle(
            on.AttemptFailed(
                at_seconds=4.0,
                worker=shown.worker,
                attempt=shown.running,
                failure=FailureKind.OTHER_CODE,
                reason="mine.py has changed",
            )
        )
    held = summary(core.state.experiments["one"])
    assert held.state is ExperimentState.RUNNING
    assert held.reason == "no worker here can train it: mine.py has changed (ann, bob, cid)"
    core.handle(on.WorkerJoined(at_seconds=5.0, worker="dan"))
    assert summary(core.state.experiments["one"]).reason is None
