"""Clients see the core's state; the manager keeps samples of heartbeats and announces events."""

import json
import math
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from downpour.base.states import (
    ExperimentEvent,
    ExperimentState,
    FailureKind,
    TaskState,
    WorkerState,
)
from downpour.base.values import (
    AttemptId,
    Forecast,
    ProcessState,
    Progress,
    PublishedFile,
    SystemState,
)
from downpour.cluster.manager.observations import (
    LOOK_SECONDS,
    SAMPLES_MAX,
    ManagerAnnouncer,
    Phases,
    Usage,
)
from downpour.cluster.manager.status import (
    WAITING_SECONDS,
    KnownContributions,
    Roster,
    WaitingWatch,
    status,
    summary,
    why_waiting,
)
from downpour.cluster.options import ManagerOptions
from downpour.core.scheduler import Observed, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler.queue import Decision
from downpour.core.stragglers.base import POLICIES, RoundView, Saving
from downpour.host.child import checked_command
from downpour.network.rpc.messages import ExperimentSummary, Status, TaskStatus, WorkerStatus
from downpour.record.record_lines import ResourcesUsedLine, Sample
from downpour.record.view import from_fields, to_fields
from tests.cluster.manager.conftest import options_of
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


def test_a_worker_that_another_manager_gave_its_attempt_is_busy_for_a_minute(
    core: Scheduler,
) -> None:
    """It registered again and soon ends the attempt; if it does not, it is stuck."""
    other = AttemptId(experiment="one", round=9, shard=0, attempt=0)
    core.handle(on.WorkerJoined(at_seconds=4.0, worker="dan", running=other))
    states = []
    for at_seconds in (5.0, 63.0, 64.0):
        core.state.workers.heard("dan", at_seconds)
        core.handle(on.Tick(at_seconds=at_seconds))
        [shown] = [w for w in status(core, Roster(), "", 1).workers if w.worker == "dan"]
        states.append(shown.state)
    assert states == [WorkerState.BUSY, WorkerState.BUSY, WorkerState.STUCK]


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
    held = summary(core.state, core.state.experiments["one"])
    assert held.state is ExperimentState.RUNNING
    assert held.reason == "no worker here can train it: mine.py has changed (ann, bob, cid)"
    core.handle(on.WorkerJoined(at_seconds=5.0, worker="dan"))
    assert summary(core.state, core.state.experiments["one"]).reason is None


class Notebook:
    """Whatever was put on record."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, ResourcesUsedLine]] = []
        self.usage = Usage()

    def take(self, seen: Iterable[Observed]) -> None:
        for one in seen:
            fact = from_fields(json.loads(json.dumps(one.line)))
            assert isinstance(fact, ResourcesUsedLine)
            self.facts.append((one.experiment, fact))

    def beat(self, at_seconds: float, attempt: AttemptId | None, worker: str = "ann") -> None:
        """Hear of a worker, who uses as much of a core as the time says."""
        progress = (
            Progress(attempt=one, steps_done=1, steps_total=2, elapsed_seconds=1.0)
            for one in (attempt,)
            if one is not None
        )
        beat = on.HeartbeatReceived(
            at_seconds=at_seconds,
            worker=worker,
            running=tuple(progress),
            system=SystemState(cpu_others=0, load_average=0, memory_used=0, io_wait=0.25),
            process=ProcessState(cpu_share=at_seconds, memory_bytes=812_345_344, threads=9),
        )
        self.take(self.usage.hear(beat))


def attempt(number: int = 0, experiment: str = "one") -> AttemptId:
    """Name an attempt."""
    return AttemptId(experiment=experiment, round=0, shard=0, attempt=number)


@pytest.fixture
def notebook() -> Notebook:
    """Nothing yet."""
    return Notebook()


def test_an_attempt_that_ends_leaves_one_fact(notebook: Notebook) -> None:
    """With all that was heard of it; a second end says nothing."""
    for second in (1.0, 2.0, 3.0):
        notebook.beat(second, attempt())
    notebook.take(notebook.usage.end("ann", attempt()))
    notebook.take(notebook.usage.end("ann", attempt()))
    [(experiment, fact)] = notebook.facts
    assert experiment == "one"
    assert fact.samples == tuple(Sample(at, at, 812_345_344, 9, 0.25) for at in (1.0, 2.0, 3.0))


def test_another_attempt_ends_the_one_before(notebook: Notebook) -> None:
    """A copy that was called off is told of when its worker is next heard."""
    notebook.beat(1.0, attempt(0))
    notebook.beat(2.0, attempt(1))
    assert [fact.attempt for _, fact in notebook.facts] == [0]
    notebook.beat(3.0, None)
    assert [fact.attempt for _, fact in notebook.facts] == [0, 1]


def test_the_end_of_an_experiment_ends_its_attempts(notebook: Notebook) -> None:
    """Of that experiment alone."""
    notebook.beat(1.0, attempt(), "ann")
    notebook.beat(1.0, attempt(experiment="two"), "bob")
    notebook.take(notebook.usage.end_all("one"))
    assert [experiment for experiment, _ in notebook.facts] == ["one"]


def test_an_idle_worker_leaves_nothing(notebook: Notebook) -> None:
    """Only what trains is of interest."""
    notebook.beat(1.0, None)
    notebook.take(notebook.usage.end("ann", attempt()))
    assert notebook.facts == []


@pytest.mark.parametrize("seconds", [SAMPLES_MAX - 1, SAMPLES_MAX, 10_000])
def test_a_long_attempt_is_told_from_beginning_to_end(notebook: Notebook, seconds: int) -> None:
    """At even distances, in fewer samples than the limit, and some dozen bytes each at most."""
    for second in range(seconds):
        notebook.beat(float(second), attempt())
    notebook.take(notebook.usage.end("ann", attempt()))
    [(_, fact)] = notebook.facts
    times = [sample.at_seconds for sample in fact.samples]
    every = times[1] - times[0]
    assert SAMPLES_MAX // 2 <= len(times) < SAMPLES_MAX
    assert times == [every * place for place in range(len(times))]
    assert seconds - every <= times[-1] < seconds
    assert len(json.dumps(to_fields(fact))) < 48 * SAMPLES_MAX


def test_work_besides_training_is_told_once_it_takes_long() -> None:
    """After five seconds, for each quarter of an update, and when the training goes on."""
    phases, told = Phases(), list[str]()
    for at, done, total, moved in (
        (0.0, 0, 0, 0), (4.0, 0, 0, 0), (5.0, 0, 0, 0), (6.0, 0, 0, 0), (7.0, 0, 9, 0),
        (8.0, 1, 9, 7), (9.0, 2, 9, 0), (10.0, 3, 9, 7), (16.0, 3, 9, 12), (17.0, 3, 9, 23),
        (18.0, 3, 9, 24), (20.0, 9, 9, 0), (25.0, 9, 9, 30), (26.0, 9, 9, 54), (30.0, 9, 9, 55),
    ):  # fmt: skip
        progress = Progress(
            attempt=attempt(),
            steps_done=done,
            steps_total=total,
            elapsed_seconds=0,
            moved_bytes=moved,
        )
        told += [str(from_fields(one.line)) for one in phases.hear("ann", progress, at, 100)]
    assert told == [
        "loading",
        "training",
        "saving 12 bytes",
        "saving 24 bytes",
        "publishing",
        "publishing 30 of 100 bytes",
        "publishing 55 of 100 bytes",
    ]
    trains = replace(progress, attempt=attempt(1), steps_done=1, moved_bytes=0)
    for at in (40.0, 50.0):
        assert [*phases.hear("ann", trains, at, 100)] == []


WORKER = WorkerStatus(worker="w", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0)
STUCK = replace(WORKER, state=WorkerState.STUCK)
EXPERIMENT = ExperimentSummary(
    experiment="e-1", name="e", state=ExperimentState.RUNNING, rounds_done=0, rounds_total=4
)
PENDING = TaskStatus(
    shard=0, state=TaskState.PENDING, steps_done=0, steps_total=0, elapsed_seconds=0.0
)
RUNNING, PUBLISHED = (
    replace(PENDING, state=state) for state in (TaskState.RUNNING, TaskState.PUBLISHED)
)
ALONE = Status(change=1, experiment=EXPERIMENT, tasks=(PENDING,))
BUSY = replace(ALONE, workers=(WORKER,), tasks=(PENDING, RUNNING))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (Status(change=1), ""),
        (ALONE, "no worker is there"),
        (replace(ALONE, workers=(WORKER,)), "no worker has taken a task"),
        (replace(ALONE, workers=(STUCK,)), "all workers are stuck in a task"),
        (replace(ALONE, workers=(STUCK, WORKER)), "no worker has taken a task"),
        (BUSY, ""),
        (replace(ALONE, tasks=(PUBLISHED,)), ""),
        (replace(ALONE, experiment=replace(EXPERIMENT, state=ExperimentState.PREPARING)), ""),
        (replace(ALONE, experiment=replace(EXPERIMENT, reason="held up: gone")), "held up: gone"),
        (replace(ALONE, experiment=replace(EXPERIMENT, state=ExperimentState.FINISHED)), ""),
    ],
)
def test_the_cause_of_waiting_is_named(status: Status, why: str) -> None:
    """Nothing, while a task runs, updates are added, or data are prepared, or without a task."""
    assert why_waiting(status) == why


def test_it_is_told_once_for_each_time() -> None:
    """Not before the limit, not twice, and again after something was trained in between."""
    watch = WaitingWatch(seconds=60.0)
    times = [0.0, 59.0, 61.0, 500.0]
    told = [watch.take(ALONE, at) for at in times]
    event = ExperimentEvent(
        kind="waiting",
        experiment="e-1",
        name="e",
        state=ExperimentState.RUNNING,
        reason="no worker is there, for 61 s",
    )
    assert told == [None, None, event, None]
    assert watch.take(BUSY, 501.0) is None
    assert [watch.take(ALONE, 600.0), watch.take(ALONE, 659.0)] == [None, None]
    assert watch.take(ALONE, 660.0) is not None


def test_tasks_that_stand_still_are_told() -> None:
    """Until a step ends or a file moves. Who then goes on has long steps, and twice the time."""
    watch = WaitingWatch(seconds=60.0)

    def told(step: int, at_seconds: float, moved_bytes: int = 0) -> str:
        task = replace(RUNNING, worker="w", steps_done=step, moved_bytes=moved_bytes)
        event = watch.take(replace(BUSY, tasks=(PENDING, task)), at_seconds)
        return event.reason if event else ""

    assert [told(1, 0), told(1, 1), told(1, 60), told(1, 61), told(1, 500)] == [
        *("", "", "", "no worker ends a step, for 60 s", "")
    ]
    assert [told(2, 600), told(2, 601), told(2, 720)] == [""] * 3
    assert told(2, 721) == "no worker ends a step, for 120 s"
    assert [told(3, 800 + step, moved_bytes=step) for step in range(300)] == [""] * 300
    paused = replace(BUSY, experiment=replace(EXPERIMENT, paused=True), tasks=(RUNNING,))
    assert [watch.take(paused, at_seconds) for at_seconds in (1200, 9999)] == [None] * 2


@pytest.fixture
def options(tmp_path: Path) -> ManagerOptions:
    """A manager whose command writes what it is told into a pipe."""
    os.mkfifo(tmp_path / "told")
    code = f"import sys; open({str(tmp_path / 'told')!r}, 'w').write(sys.stdin.read())"
    command = checked_command(shlex.join([sys.executable, "-c", code]))
    return replace(options_of(tmp_path), on_event=command)


def told(folder: Path) -> tuple[str, str, str]:
    """Wait for the next event, and return its kind, experiment and reason."""
    event = json.loads((folder / "told").read_text())
    return event["kind"], event["experiment"], event["reason"]


def test_the_end_of_each_experiment_is_told_once(cluster: Any, tmp_path: Path) -> None:
    """With its name and the reason."""
    first, second = cluster.submit(epochs=1), cluster.submit(epochs=1, seed=2)
    for experiment in (first, first, second):
        cluster.client.cancel(experiment)
    for experiment in (first, second):
        assert told(tmp_path) == ("cancelled", experiment, "cancelled by request")


def test_a_manager_looks_now_and_then_whether_something_waits() -> None:
    """The driver's thread makes each status, so it is asked for seldom."""
    taken: list[ExperimentEvent] = []
    now, asked = [0.0], [0]
    announcer = ManagerAnnouncer(taken.append, lambda: now[0])

    def status() -> Status:
        asked[0] += 1
        return ALONE

    for second in range(int(WAITING_SECONDS + 2 * LOOK_SECONDS)):
        now[0] = float(second)
        announcer.look(status)
    announcer.close()
    assert asked[0] <= second / LOOK_SECONDS
    assert [event.kind for event in taken] == ["waiting"]


def test_a_command_line_starts_the_same_manager(options: ManagerOptions) -> None:
    """As a supervisor and systemd do."""
    words = options.arguments()
    assert words[words.index("--on-event") + 1] == options.on_event
