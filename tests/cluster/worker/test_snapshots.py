"""A task's state, published now and then: the worker that has it goes on to the same bytes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from downpour.base.errors import StoreError
from downpour.base.values import PublishedFile, Snapshot, Update
from downpour.cluster.worker.attempt import (
    HandOverStop,
    Snapshots,
    TaskCancelled,
    TaskControl,
    train_steps,
)
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.node.attempt import StepLoop
from downpour.files.store import SharedDirectory
from downpour.network.rpc.messages import TaskMessage
from tests.cluster.worker.conftest import Trainable


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Halfway(TaskControl):
    """Is cancelled as soon as there is a snapshot, which somebody has heard of."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set what is asked for, and stop the attempt where that is the snapshot."""
        super().__setattr__(name, value)
        if name == "snapshot" and value is not None:
            super().__setattr__("known_snapshot", value)
            self.stop()


def interrupted(shared: SharedDirectory, task: TaskMessage) -> Snapshot:
    """Train a task up to its first snapshot."""
    control = Halfway(task.id)
    with pytest.raises(TaskCancelled):
        TaskRunner(shared, "cpu").run(task, control)
    assert control.snapshot is not None
    return control.snapshot


def test_another_worker_goes_on_with_the_same_bytes(trainable: Trainable, whole: Update) -> None:
    """What one began and another finished is what one alone would have made, loss and all."""
    shared, task = trainable.shared, trainable.task
    snapshot = interrupted(shared, task)
    assert 0 < snapshot.steps_done < whole.steps
    again = replace(task, id=replace(task.id, attempt=1), snapshot=snapshot)
    control = TaskControl(again.id)
    rest = TaskRunner(shared, "cpu").run(again, control)
    assert (rest.file.checksum, rest.loss) == (whole.file.checksum, whole.loss)
    assert (rest.samples, rest.steps) == (whole.samples, whole.steps)
    assert rest.optimizer_state is not None
    assert whole.optimizer_state is not None
    assert rest.optimizer_state.checksum == whole.optimizer_state.checksum


@pytest.mark.parametrize("damage", ["gone", "altered", "another task's"])
def test_a_snapshot_that_cannot_be_used_costs_only_time(
    trainable: Trainable, whole: Update, damage: str
) -> None:
    """The task begins at its beginning, and comes out the same."""
    shared, task = trainable.shared, trainable.task
    of = task if damage != "another task's" else replace(task, id=replace(task.id, shard=1))
    snapshot = interrupted(shared, of)
    if damage == "gone":
        shared.store("any").delete(snapshot.file.name)
    elif damage == "altered":
        snapshot = replace(snapshot, file=replace(snapshot.file, checksum="0" * 32))
    again = replace(task, snapshot=snapshot)
    update = TaskRunner(shared, "cpu").run(again, TaskControl(again.id))
    assert update.file.checksum == whole.file.checksum


def test_a_snapshot_that_nobody_heard_of_is_withdrawn(trainable: Trainable) -> None:
    """Nobody would remove it; one that was heard of is the manager's to remove."""
    store = trainable.shared.store("any")
    kept = interrupted(trainable.shared, trainable.task)
    control = TaskControl(trainable.task.id)
    control.snapshot = kept
    snapshots = Snapshots(store, control)
    control.known_snapshot = kept
    snapshots.withdraw_unknown()
    assert kept.file.name in store.list()
    control.known_snapshot = None
    snapshots.withdraw_unknown()
    assert kept.file.name not in store.list()
    assert control.progress().snapshot is None, "no heartbeat names a file that is gone"


class AfterAStep(TaskControl):
    """Is asked to hand over while it makes its first step."""

    def ask(self) -> None:
        self.save_and_stop()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "steps_done" and value == 1:
            self.ask()


class Leaving(AfterAStep):
    """Is cut short by its worker's end after its first step."""

    def ask(self) -> None:
        """Tell it that the worker leaves."""
        self.save_or_stop()


@pytest.mark.parametrize("control", [AfterAStep, Leaving])
def test_a_task_is_handed_over_where_it_is(
    trainable: Trainable, whole: Update, control: type[TaskControl]
) -> None:
    """Its worker stops at its next step; another one ends it with the same bytes."""
    shared, task = trainable.shared, trainable.task
    with pytest.raises(HandOverStop) as stopped:
        TaskRunner(shared, "cpu").run(task, control(task.id))
    snapshot = stopped.value.snapshot
    assert (snapshot.steps_done, snapshot.steps_total) == (1, whole.steps)
    rest = replace(task, snapshot=snapshot)
    update = TaskRunner(shared, "cpu").run(rest, TaskControl(task.id))
    assert update.file.checksum == whole.file.checksum


class Costly:
    """A store that takes its time, and may be full."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.full = False
        self.names: list[str] = []

    def put_new(self, name: str, chunks: object) -> PublishedFile:
        del chunks
        self.clock.now += self.seconds
        if self.full:
            raise StoreError("no space left on device")
        self.names.append(name)
        return PublishedFile(name=name, size_bytes=1, checksum="0" * 32)

    def delete(self, name: str) -> None:
        if name in self.names:
            self.names.remove(name)


class AnswersLost(Costly):
    """Takes files, and says that it did not."""

    def put_new(self, name: str, chunks: object) -> PublishedFile:
        super().put_new(name, chunks)
        raise StoreError("the server did not answer")


class Training:
    """Makes a step a second, after each of which the manager hears of the last snapshot."""

    def __init__(self, control: TaskControl, clock: Clock, steps: int, *, heard: bool) -> None:
        self.steps_done, self.steps_total = 0, steps
        self.control, self.clock, self.heard = control, clock, heard
        control.begin(0, steps)

    def advance(self, steps: int, goes_on: Callable[[], bool]) -> None:
        stop = min(self.steps_done + steps, self.steps_total)
        while self.steps_done < stop:
            self.clock.now += 1
            self.steps_done += 1
            if self.heard:
                self.control.known_snapshot = self.control.snapshot
            if not goes_on():
                break

    def snapshot(self, *, copy: bool = True) -> dict[str, object]:  # noqa: ARG002
        return {}


def published_over(
    store: Costly, clock: Clock, control: TaskControl, seconds: int, *, heard: bool = True
) -> int:
    """Count the snapshots of a training of so many steps, one due every ten seconds."""
    before = len(store.names)
    training: Any = Training(control, clock, seconds, heard=heard)
    files: Any = store
    loop = StepLoop(control, 10.0, clock())
    train_steps(training, control, Snapshots(files, control), loop, clock)
    return len(store.names) - before


@pytest.mark.parametrize(("cost_seconds", "count"), [(0.001, 100), (0.05, 100), (1.0, 5)])
def test_snapshots_cost_a_small_share_of_the_time(
    trainable: Trainable, cost_seconds: float, count: int
) -> None:
    """They come at their interval, unless they take so long that this would be felt."""
    clock = Clock()
    store = Costly(clock, cost_seconds)
    found = published_over(store, clock, TaskControl(trainable.task.id), 1000)
    assert count - 10 <= found <= count
    assert found * cost_seconds <= 0.0055 * 1000


class Timed(TaskControl):
    """Takes a second for each step, and a minute for each part of a file; counts its snapshots."""

    saves = 0

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        clock = getattr(self, "clock", None)
        if isinstance(clock, Clock):
            clock.now += (name == "steps_done") + 60 * (name == "moved_bytes" and bool(value))
            self.__dict__["saves"] = self.saves + (name == "snapshot" and value is not None)


def test_a_worker_saves_no_task_that_is_short_beside_publishing(trainable: Trainable) -> None:
    """Except its first, when it does not know yet how long publishing takes."""
    clock, runner = Clock(), TaskRunner(trainable.shared, "cpu")
    runner.clock = clock
    counts = []
    for number in range(2):
        task = replace(trainable.task, id=replace(trainable.task.id, attempt=number))
        control = Timed(task.id, clock=clock)
        runner.run(task, control)
        counts.append(control.saves)
    assert counts == [1, 0]


def test_a_full_directory_costs_the_snapshot_only(trainable: Trainable) -> None:
    """Training goes on without, and the next one is tried in its time."""
    clock = Clock()
    store = Costly(clock, 0.001)
    store.full = True
    control = TaskControl(trainable.task.id)
    assert published_over(store, clock, control, 100) == 0
    store.full = False
    assert published_over(store, clock, control, 100) > 0


def test_a_leaving_worker_stops_an_attempt_that_it_cannot_save(trainable: Trainable) -> None:
    """A folder that is full holds up no worker that leaves."""
    clock = Clock()
    store = Costly(clock, 0.0)
    store.full = True
    control = AfterAStep(trainable.task.id)
    with pytest.raises(TaskCancelled):
        published_over(store, clock, Leaving(trainable.task.id), 10)
    assert published_over(store, clock, control, 10) == 0, "another one trains to its end"
    assert control.steps_done == 10


def test_a_snapshot_that_only_seemed_to_fail_is_removed(trainable: Trainable) -> None:
    """Nobody knows its name, so it would stay where its experiment has ended meanwhile."""
    clock = Clock()
    store = AnswersLost(clock, 0.001)
    published_over(store, clock, TaskControl(trainable.task.id), 100)
    assert clock.now > 100, "it has published some"
    assert not store.names
