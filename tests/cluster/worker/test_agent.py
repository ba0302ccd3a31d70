"""A real worker agent over real sockets; its manager is a fake, and its tasks train nothing.

The simulator runs the same agent, and watches its node (`tests/downpour_lab/trials/planted.py`). So
it proves which attempt a worker begins, stops, hands over, mentions and reports. That the node
hears what a manager says is proved here.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import (
    FileCorrupt,
    FileMissing,
    IncompatiblePeer,
    NonFinite,
    OtherDirectory,
    OutOfMemory,
    Refused,
    SharedDirectoryError,
    SpecError,
    Unreachable,
    Untrusted,
)
from downpour.base.states import FailureKind
from downpour.base.values import (
    AttemptId,
    NumericClass,
    ProcessState,
    PublishedFile,
    Snapshot,
    SystemState,
    Update,
)
from downpour.cluster.worker.agent import ShownWorker, WorkerAgent
from downpour.cluster.worker.attempt import HandOverStop, TaskCancelled, TaskControl
from downpour.files.store import SharedDirectory
from downpour.host.machine import SystemSampler
from downpour.network.rpc import Address, WorkerClient, serve_worker
from downpour.network.rpc.generated import ttypes
from downpour.network.rpc.messages import TaskMessage
from downpour.network.rpc.server import Server
from tests.specs import plain_update

PATIENCE_SECONDS = 10
_STEP_SECONDS = 0.002
DIFFERS = ("transformers 4.45, the manager 5.23",)
NUMERICS = NumericClass(torch="2", device="cpu", instruction_set="x86_64")
FILE = PublishedFile(name="some-file", size_bytes=1, checksum="0" * 32)
SNAPSHOT = Snapshot(file=FILE, steps_done=1, steps_total=2)
UPDATE = plain_update(FILE)


def task(round_number: int = 0) -> TaskMessage:
    """Make a task; nobody reads its files."""
    return TaskMessage(
        id=AttemptId(experiment="any", round=round_number, shard=0, attempt=0),
        spec=FILE,
        dataset="some-data",
        model=FILE,
        indices=np.arange(3),
    )


@dataclass
class Work:
    """What a task comes to: it says that it began, then does as the test has set."""

    began: SimpleQueue[TaskMessage]
    act: Callable[[TaskControl], Update]

    def __call__(self, given: TaskMessage, control: TaskControl) -> Update:
        act = self.act  # before the test learns that the task began, and changes it
        self.began.put(given)
        return act(control)


@dataclass
class Office:
    """A worker agent at work, and the manager's way to call it."""

    agent: WorkerAgent
    server: Server
    client: WorkerClient
    work: Work
    thread: Thread


@contextmanager
def at_work(desk: Any, **options: Any) -> Iterator[Office]:
    """Let a worker register whose tasks succeed at once."""
    work = Work(SimpleQueue(), lambda _: UPDATE)
    agent = WorkerAgent(
        desk.client,
        desk.shared,
        "anna",
        NUMERICS,
        work,
        shown=ShownWorker(differs=lambda: DIFFERS, blocks=lambda: ("any", desk.digests)),
    )
    server = serve_worker(agent, "127.0.0.1", 0).start()
    agent.register(server.address.host, server.address.port)
    thread = Thread(target=agent.run, kwargs=options)
    thread.start()
    client = WorkerClient(server.address)
    try:
        yield Office(agent, server, client, work, thread)
    finally:
        agent.leave()
        thread.join(PATIENCE_SECONDS)
        client.close()
        server.stop()
    assert not thread.is_alive()


def until_cancelled(control: TaskControl) -> Update:
    """Make short steps until it is cancelled."""
    _make_steps(lambda: control.cancelled)
    raise TaskCancelled


def until_cleared_away(control: TaskControl) -> Update:
    """Miss a file, as the manager removes those of an experiment that a user cancels."""
    _make_steps(lambda: control.cancelled)
    raise FileMissing("model")


def until_handed_over(control: TaskControl) -> Update:
    """Make short steps until its state is asked for."""
    _make_steps(lambda: control.to_save)
    raise HandOverStop(SNAPSHOT)


def _make_steps(is_asked: Callable[[], bool]) -> None:
    latest = time.monotonic() + PATIENCE_SECONDS
    while not is_asked():
        assert time.monotonic() < latest
        time.sleep(_STEP_SECONDS)


@pytest.fixture
def office(desk: Any) -> Iterator[Office]:
    """A registered worker whose tasks succeed at once."""
    with at_work(desk) as working:
        yield working


def test_a_worker_proves_that_it_sees_the_managers_folder(desk: Any, office: Office) -> None:
    """The registration tells what stands in the presence file, and the name given is taken."""
    registration = desk.manager.registrations.get(timeout=PATIENCE_SECONDS)
    assert registration.presence == "a secret"
    assert registration.port == office.server.address.port
    assert office.agent.name == "anna-taken"


def test_a_worker_without_an_address_names_the_one_it_calls_from(desk: Any, office: Office) -> None:
    """And again at its next registration: by then it may be another."""
    desk.manager.registrations.get(timeout=PATIENCE_SECONDS)
    where = office.agent.register("", office.server.address.port)
    assert where == office.server.address
    desk.manager.known = False
    for _ in range(2):
        assert desk.manager.registrations.get(timeout=PATIENCE_SECONDS).host == "127.0.0.1"


def test_another_shared_directory_is_noticed_before_registering(desk: Any, tmp_path: Any) -> None:
    """Where the presence file is not there, the worker says so and does not register."""
    elsewhere = SharedDirectory(
        SharedDirectory.open(tmp_path / "elsewhere", create=True).root, patience_seconds=0.1
    )
    agent = WorkerAgent(desk.client, elsewhere, "anna", NUMERICS, lambda *_: UPDATE)
    with pytest.raises(SharedDirectoryError, match="different folder"):
        agent.register("", desk.server.address.port)
    assert desk.manager.registrations.empty()


def test_another_protocol_is_noticed_before_registering(desk: Any) -> None:
    """A manager of another version is named together with this worker's."""
    desk.manager.protocol = 99
    agent = WorkerAgent(desk.client, desk.shared, "anna", NUMERICS, lambda *_: UPDATE)
    with pytest.raises(IncompatiblePeer, match="install the same version"):
        agent.register("", desk.server.address.port)


def test_a_task_ends_in_a_report(desk: Any, office: Office) -> None:
    """What the task came to is reported under its attempt."""
    office.client.train(task())
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task().id, UPDATE)


def test_an_update_that_a_stopping_manager_refuses_is_reported_again(
    desk: Any, office: Office
) -> None:
    """Whoever is in office next takes it; nothing is trained twice."""
    desk.manager.refusals = 2
    office.client.train(task())
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task().id, UPDATE)
    assert desk.manager.refusals == 0


HANDED_BACK = (FailureKind.CANCELLED, "anna-taken handed it back")


def deem_unwanted(desk: Any, office: Office) -> None:
    """Let the next answer to a heartbeat say that the first task should not run."""
    del office
    desk.manager.unwanted = (task(0).id,)


@pytest.mark.parametrize(
    ("ask", "act", "end"),
    [
        (lambda _, office: office.client.cancel(task(0).id), until_cancelled, HANDED_BACK),
        (deem_unwanted, until_cancelled, HANDED_BACK),
        (deem_unwanted, until_cleared_away, HANDED_BACK),
        (lambda _, office: office.client.hand_over(task(0).id), until_handed_over, SNAPSHOT),
    ],
    ids=["cancelled", "unwanted", "cleared away", "handed over"],
)
def test_a_manager_ends_the_running_attempt(
    desk: Any,
    office: Office,
    ask: Callable[[Any, Office], None],
    act: Callable[[TaskControl], Update],
    end: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By a call or in answer to a heartbeat; the end is reported, and the next task is taken."""
    office.work.act = act
    office.client.train(task(0))
    office.work.began.get(timeout=PATIENCE_SECONDS)
    assert office.client.ping().running == task(0).id
    ask(desk, office)
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task(0).id, end)
    assert not caplog.records
    office.work.act = lambda _: UPDATE
    office.client.train(task(1))
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task(1).id, UPDATE)


def test_a_manager_that_was_replaced_is_refused(desk: Any, office: Office) -> None:
    """It calls with its own term, and the worker has registered with a later manager."""
    desk.manager.term = 3
    office.agent.register("", office.server.address.port)
    with pytest.raises(Refused, match=r"^term: is 2, and .* works for a manager of term 3"):
        office.client.train(replace(task(), term=2))
    office.client.train(replace(task(), term=3))
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task().id, UPDATE)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NonFinite("the loss became NaN"), FailureKind.NON_FINITE),
        (OutOfMemory("too large"), FailureKind.OUT_OF_MEMORY),
        (MemoryError(), FailureKind.OUT_OF_MEMORY),
        (FileCorrupt("model", "altered"), FailureKind.STORE),
        (SpecError("model", "x", "known are ..."), FailureKind.SPEC),
        (ZeroDivisionError("division by zero"), FailureKind.TASK),
    ],
)
def test_an_error_is_reported_as_its_kind(
    desk: Any, office: Office, error: Exception, kind: FailureKind
) -> None:
    """A task's error costs the attempt, in one line; the worker goes on."""

    def fail(_: TaskControl) -> Update:
        raise error

    office.work.act = fail
    office.client.train(task(0))
    reported = desk.manager.reports.get(timeout=PATIENCE_SECONDS)[1]
    assert reported[0] is kind
    assert "\n" not in reported[1]
    office.work.act = lambda _: UPDATE
    office.client.train(task(1))
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task(1).id, UPDATE)


def test_a_report_that_the_manager_cannot_read_is_given_up(
    desk: Any, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer worker tells a kind that this manager does not know; the worker goes on."""
    newer = IntEnum("newer", {"TASK": 99})
    monkeypatch.setitem(ttypes.FailureKind._member_map_, "TASK", newer.TASK)

    def fail(_: TaskControl) -> Update:
        raise ZeroDivisionError

    office.work.act = fail
    office.client.train(task(0))
    office.work.began.get(timeout=PATIENCE_SECONDS)
    office.work.act = lambda _: UPDATE
    office.client.train(task(1))
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task(1).id, UPDATE)


def test_heartbeats_tell_how_far_the_attempt_has_come(desk: Any, office: Office) -> None:
    """Its steps until its report is acknowledged, and what the process uses."""

    def half(control: TaskControl) -> Update:
        control.steps_total, control.steps_done = 10, 5
        return until_cancelled(control)

    office.work.act = half
    office.client.train(task())
    office.work.began.get(timeout=PATIENCE_SECONDS)
    while not (beat := desk.manager.beats.get(timeout=PATIENCE_SECONDS)).running:
        pass
    while not (progress := beat.running[0]).steps_done:
        beat = desk.manager.beats.get(timeout=PATIENCE_SECONDS)
    assert (progress.attempt, progress.steps_done, progress.steps_total) == (task().id, 5, 10)
    assert beat.process is not None
    assert beat.process.threads > 1
    assert beat.differs == DIFFERS


def test_an_update_from_other_data_is_a_failure(
    desk: Any, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager hears of all blocks before a report or a snapshot; a new one hears of all again.

    Once a block was different elsewhere, no heartbeat mentions a snapshot, and training stops.
    """
    monkeypatch.setattr("downpour.cluster.worker.agent._BLOCKS_TOLD", 2)
    names, seen = ["first", "second", "third"], Event()
    desk.digests |= dict.fromkeys(names, "0" * 32)
    office.client.train(task(0))
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task(0).id, UPDATE)
    assert {*desk.manager.blocks} == {*names}
    desk.manager.blocks.clear()
    office.agent.register(*office.agent._where)

    def damaged(control: TaskControl) -> Update:
        control.snapshot = SNAPSHOT
        desk.digests["other-4"] = "1" * 32
        assert seen.wait(PATIENCE_SECONDS)
        return until_cancelled(control)

    office.work.act = damaged
    office.client.train(task(1))
    while "other-4" not in desk.manager.blocks:
        desk.manager.beats.get(timeout=PATIENCE_SECONDS)
    while not desk.manager.beats.empty():
        desk.manager.beats.get()
    (progress,) = desk.manager.beats.get(timeout=PATIENCE_SECONDS).running
    assert progress.snapshot is None
    seen.set()
    failure = FailureKind.OTHER_CODE, "the data are different here: other-4"
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task(1).id, failure)
    assert {*desk.manager.blocks} == {*names, "other-4"}
    office.client.train(task(2))
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task(2).id, failure)


def test_a_worker_at_a_short_task_is_heard_more_often_than_the_manager_asks(desk: Any) -> None:
    """The manager wants to hear of it once an hour; of a task that has just begun it hears now."""
    desk.manager.heartbeat_seconds = 3600.0
    work = Work(SimpleQueue(), until_cancelled)
    agent = WorkerAgent(desk.client, desk.shared, "anna", NUMERICS, work)
    agent.register("127.0.0.1", 1)
    thread = Thread(target=agent.run)
    thread.start()
    agent.train(task())
    first, second = (desk.manager.beats.get(timeout=PATIENCE_SECONDS) for _ in range(2))
    assert [one.attempt for one in first.running] == [task().id]
    assert first.process is not None
    assert second.process is None  # the machine is looked at no more often than was asked for
    agent.leave()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_an_attempt_is_mentioned_while_it_loads(desk: Any) -> None:
    """Heartbeats do not wait for its first step; a manager that restarts hears of it as well."""

    def load(control: TaskControl) -> Update:
        del control
        while not (beat := desk.manager.beats.get(timeout=PATIENCE_SECONDS)).running:
            pass
        [accepted] = beat.running
        assert (accepted.attempt, accepted.steps_done, accepted.steps_total) == (task().id, 0, 0)
        agent.register("127.0.0.1", 1)
        agent.drain()
        return UPDATE

    agent = WorkerAgent(desk.client, desk.shared, "slow", NUMERICS, Work(SimpleQueue(), load))
    agent.register("127.0.0.1", 1)
    agent.train(task())
    agent.run()
    assert [desk.manager.registrations.get().running for _ in range(2)] == [None, task().id]


def test_a_worker_that_is_alone_for_too_long_leaves(desk: Any) -> None:
    """Its manager may have been killed, and what the worker holds was lent to it."""
    with at_work(desk, alone_seconds=0.2) as office:
        office.work.act = until_cancelled
        office.client.train(task())
        office.work.began.get(timeout=PATIENCE_SECONDS)
        desk.server.stop()
        office.thread.join(PATIENCE_SECONDS)
        assert not office.thread.is_alive()


@pytest.mark.parametrize("error", [Unreachable, Untrusted, IncompatiblePeer, OtherDirectory])
def test_a_worker_turns_away_from_an_address_where_another_program_answers(
    desk: Any, office: Office, error: type[Exception]
) -> None:
    """Of a manager's many addresses, some lead elsewhere from a worker's machine."""

    class Stranger:
        address = Address("172.17.0.1", 1)

        def heartbeat(self, _: object) -> None:
            raise error("there", "another program answers")

        def close(self) -> None:
            """Nothing is open."""

    office.agent._find_manager = lambda: desk.client
    office.agent._manager = Stranger()  # type: ignore[assignment]
    while not desk.manager.beats.empty():
        desk.manager.beats.get()
    assert desk.manager.beats.get(timeout=PATIENCE_SECONDS).worker == office.agent.name


def test_a_drained_worker_finishes_and_says_goodbye(desk: Any, office: Office) -> None:
    """Draining lets the running task end, then the worker leaves."""
    release = Event()

    def wait(_: TaskControl) -> Update:
        assert release.wait(PATIENCE_SECONDS)
        return UPDATE

    office.work.act = wait
    office.client.train(task())
    office.work.began.get(timeout=PATIENCE_SECONDS)
    office.client.drain()
    release.set()
    assert desk.manager.reports.get(timeout=PATIENCE_SECONDS) == (task().id, UPDATE)
    assert desk.manager.goodbyes.get(timeout=PATIENCE_SECONDS) == "anna-taken"
    office.thread.join(PATIENCE_SECONDS)
    assert not office.thread.is_alive()


def test_a_leaving_worker_hands_its_attempt_back(desk: Any, office: Office) -> None:
    """The goodbye says it; a report before that would only bring it other work."""
    office.work.act = until_cancelled
    office.client.train(task())
    office.work.began.get(timeout=PATIENCE_SECONDS)
    office.agent.leave()
    assert desk.manager.goodbyes.get(timeout=PATIENCE_SECONDS) == "anna-taken"
    assert desk.manager.reports.empty()


def test_a_look_at_the_machine_that_fails_does_not_silence_the_worker(
    desk: Any, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose heartbeat thread died would count as lost for ever."""
    failed, sample = Event(), SystemSampler.sample

    def fail_once(sampler: SystemSampler) -> tuple[SystemState, ProcessState]:
        if failed.is_set():
            return sample(sampler)
        failed.set()
        raise OSError("no such file: /proc/stat")

    monkeypatch.setattr(SystemSampler, "sample", fail_once)
    assert failed.wait(PATIENCE_SECONDS)
    while not desk.manager.beats.empty():
        desk.manager.beats.get()
    assert desk.manager.beats.get(timeout=PATIENCE_SECONDS).worker == office.agent.name
