"""Carrying commands out when files or workers fail: nothing is lost in silence."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import numpy as np
import pytest

from downpour.base.errors import DownpourError, Unreachable, UpdatesRefused
from downpour.base.states import ExperimentState
from downpour.base.values import AttemptId, NumericClass, PublishedFile, TrialSums
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.cluster.manager.driver import ManagerSink
from downpour.cluster.manager.observations import Observations
from downpour.cluster.manager.status import Roster
from downpour.cluster.manager.takeover import Archive
from downpour.cluster.manager.work import prepare, prepare_after_rehearsal
from downpour.cluster.manager.workspace import (
    Beginning,
    PreparedExperiment,
    Workspace,
    Workspaces,
    open_workspace,
)
from downpour.cluster.options import ManagerOptions
from downpour.cluster.worker.attempt import ModelReader
from downpour.core.scheduler import Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.files.store import DirectoryStore, SharedDirectory, Work, lease, publish_work, step_to
from downpour.host.process import Lanes
from downpour.network.rpc.messages import IndicesFile, Registration, TaskMessage
from downpour.predictor import pretrained
from downpour.predictor.forecaster import Forecaster
from tests.cluster.manager.conftest import Queue
from tests.specs import plain_spec

PATIENCE_SECONDS = 60
SPEC = plain_spec(shards=2, epochs=1)
FILE = PublishedFile(name="model-000000-abc.safetensors", size_bytes=1, checksum="0" * 32)
STUCK = "update-000000-000000-000-abc.safetensors"
REGISTRATION = Registration(
    name="anna",
    host="127.0.0.1",
    port=1,
    protocol=1,
    version="1",
    presence="",
    numeric_class=NumericClass(torch="2", device="cpu", instruction_set="x"),
    hostname="here",
    pid=1,
)
ASSIGN = out.Assign(
    out.Assigned(
        cause=1,
        worker="anna",
        attempt=AttemptId(experiment="any", round=0, shard=0, attempt=0),
        model=FILE,
        optimizer_state=None,
        reason="idle",
    )
)
CONCLUDED = out.Concluded(
    cause=1, experiment="any", ending=ExperimentState.CANCELLED, reason="enough"
)
CONCLUDE = out.Conclude(experiment="any", ending=ExperimentState.CANCELLED)
PREPARE = out.Prepare(experiment="any", spec=SPEC)
SUBMITTED = on.ExperimentSubmitted(at_seconds=0.0, experiment="any", spec=SPEC)
TICK = on.Tick(at_seconds=0.0)


class Client:
    """A client of a worker that remembers its tasks, and which of them it is told to end."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[TaskMessage] = SimpleQueue()
        self.told: list[tuple[str, AttemptId]] = []

    def train(self, task: TaskMessage) -> None:
        self.tasks.put(task)

    def cancel(self, attempt: AttemptId) -> None:
        self.told.append(("cancel", attempt))

    def hand_over(self, attempt: AttemptId) -> None:
        self.told.append(("hand over", attempt))

    def close(self) -> None:
        """Nothing is open."""


class StuckStore(DirectoryStore):
    """A directory in which one file cannot be removed."""

    def delete(self, name: str) -> None:
        """Refuse, as a file system does."""
        if name == STUCK:
            raise PermissionError(1, "Operation not permitted", name)
        super().delete(name)


@dataclass
class RunningManager:
    """A command runner over one experiment's real workspace; events end in a queue."""

    runner: CommandRunner
    lanes: Lanes
    sink: ManagerSink
    spaces: Workspaces
    roster: Roster
    space: Workspace
    events: SimpleQueue[on.Event]
    deaths: SimpleQueue[DownpourError]

    def event(self) -> on.Event:
        return self.events.get(timeout=PATIENCE_SECONDS)

    def register(self, client: object) -> None:
        self.roster.enter(REGISTRATION, client)  # type: ignore[arg-type]

    def rest(self) -> list[on.Event]:
        """Let all that was begun end, and return the events that are left."""
        runner, lanes = self.runner, self.lanes
        lanes._calls._pool.submit(int).result(PATIENCE_SECONDS)
        for executor in (lanes._works, lanes._evaluations):
            done = Event()
            executor.submit(done.set)
            assert done.wait(PATIENCE_SECONDS)
        runner.close()
        return [self.events.get() for _ in range(self.events.qsize())]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[RunningManager]:
    """A command runner whose one experiment has been submitted."""
    shared = replace(SharedDirectory.open(tmp_path, create=True), patience_seconds=0.1)
    roster, events = Roster(), SimpleQueue[on.Event]()
    deaths = SimpleQueue[DownpourError]()
    archive, queue, lanes = Archive(shared), Queue(events), Lanes()
    spaces = Workspaces([], queue.fail, gone_seconds=0.0)
    prepared = partial(prepare_after_rehearsal, ManagerOptions(embedded=True))
    runner = CommandRunner(spaces, roster, queue, lanes, prepared, archive.end, on_death=deaths.put)
    sink = ManagerSink(spaces, roster, archive, runner, Forecaster(pretrained()))
    term = lease.Leader(term=1, addresses=(), hostname="here", pid=1)
    space = open_workspace(shared, "any", SPEC, term)
    spaces.add(space)
    sink.keep(Scheduler(), SUBMITTED, Output())
    yield RunningManager(runner, lanes, sink, spaces, roster, space, events, deaths)
    runner.close()


@pytest.mark.parametrize("command", ["prepare", "assign"])
def test_a_directory_that_stays_away_ends_the_manager_and_no_experiment(
    manager: RunningManager, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The next manager finds everything as it was; no worker is blamed."""
    monkeypatch.setattr("downpour.cluster.manager.command_runner._SENT_BYTES_MAX", 8)
    manager.register(Client())
    manager.space.prepared = _prepared(manager)
    manager.space.shared.experiments.rename(manager.space.shared.root / "elsewhere")
    manager.sink.carry_out([PREPARE if command == "prepare" else ASSIGN])
    assert "no such folder" in str(manager.deaths.get(timeout=PATIENCE_SECONDS))
    assert manager.events.empty()


def test_a_file_that_cannot_be_removed_is_left_over_and_nothing_else_is_lost(
    manager: RunningManager,
) -> None:
    """Neither discarding nor concluding fails an experiment, and both remove all other files."""
    manager.space.prepared = _prepared(manager)
    manager.space.store = store = StuckStore(manager.space.folder)
    discarded, swept = (f"update-000000-00000{n}-000-abc.safetensors" for n in (1, 2))
    stuck, removed = (store.put_new(name, [b"x"]) for name in (STUCK, discarded))
    store.put_new(swept, [b"x"])
    manager.sink.carry_out([out.Discard(experiment="any", files=(stuck, removed)), CONCLUDE])
    assert manager.rest() == []
    left = store.list()
    assert STUCK in left
    assert not {discarded, swept} & set(left)
    assert manager.space.prepared is None


def test_commands_for_a_concluded_experiment_are_not_carried_out(manager: RunningManager) -> None:
    """An evaluation that comes to its turn too late is nobody's failure."""
    manager.sink.carry_out([CONCLUDE])
    assert manager.space.prepared is None
    manager.sink.carry_out([out.Evaluate(experiment="any", round=0, model=FILE)])
    assert manager.rest() == []


def test_a_worker_that_is_not_registered_is_not_here(manager: RunningManager) -> None:
    """The core hears that it has left, which costs no retry; it is asked to register anew."""
    manager.sink.carry_out([ASSIGN])
    left = manager.event()
    assert isinstance(left, on.WorkerLeft)
    assert left.worker == "anna"


def test_a_failed_call_dismisses_no_worker_that_has_registered_anew(
    manager: RunningManager,
) -> None:
    """Registering again closes the former client; that must not dismiss the newcomer."""

    class Former(Client):
        """A client whose worker registers anew while it is called."""

        def train(self, task: TaskMessage) -> None:
            del task
            manager.register(Client())
            raise Unreachable("127.0.0.1:1", "this client is closed")

    manager.space.prepared = _prepared(manager)
    manager.register(Former())
    manager.sink.carry_out([ASSIGN])
    assert manager.rest() == []


def test_a_worker_hears_how_its_attempt_ends(manager: RunningManager) -> None:
    """A cancelled attempt saves nothing, and one that is handed over does."""
    client, attempt = Client(), ASSIGN.assigned.attempt
    manager.register(client)
    cancel = out.Cancel(worker="anna", attempt=attempt, reason="late")
    manager.sink.carry_out([cancel, out.HandOver(worker="anna", attempt=attempt)])
    assert manager.rest() == []
    assert client.told == [("cancel", attempt), ("hand over", attempt)]


def test_an_update_that_no_worker_reports_is_taken_in(manager: RunningManager) -> None:
    """Its worker died between publishing and reporting, and the manager with it."""
    attempt = ASSIGN.assigned.attempt
    work = Work(parameters={"w": np.ones(2)}, optimizer_state={}, samples=3, steps=1, loss=0.5)
    file, _ = publish_work(manager.space.store, attempt, work)
    manager.sink.carry_out([out.Adopt(experiment="any", attempts=((attempt, "anna"),))])
    event = manager.event()
    assert isinstance(event, on.UpdatePublished)
    assert (event.worker, event.attempt, event.update.file) == ("anna", attempt, file)
    assert (event.update.samples, event.update.steps, event.update.loss) == (3, 1, 0.5)


def test_refused_updates_are_named_in_the_order_of_their_shards(
    manager: RunningManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which their files were read makes no difference."""

    def refuse(*_: object) -> None:
        raise UpdatesRefused({4: "missing", 1: "not finite"})

    monkeypatch.setattr("downpour.cluster.manager.work.aggregate", refuse)
    aggregate = out.Aggregate(
        experiment="any", round=3, model=FILE, pushes=(), in_step=True, train_seconds=1.0
    )
    manager.sink.carry_out([aggregate])
    reasons = ((1, "not finite"), (4, "missing"))
    assert manager.event() == on.AggregationFailed(
        at_seconds=0.0, experiment="any", round=3, reasons=reasons
    )


def test_the_result_is_a_second_name_of_the_last_version(manager: RunningManager) -> None:
    """It is there already if the manager before died before it journaled that."""
    manager.space.prepared = made = _prepared(manager)
    manager.sink.carry_out([out.Publish(experiment="any", model=made.begun.model)] * 2)
    first = manager.event()
    assert isinstance(first, on.ModelPublished)
    assert first == manager.event()
    of = manager.space.folder.joinpath
    assert of(first.model.name).samefile(of(made.begun.model.name))


def test_a_long_list_is_a_file_until_the_end(
    manager: RunningManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written once a shard, and again if it cannot be read; that of a recut round is sent."""
    monkeypatch.setattr("downpour.cluster.manager.command_runner._SENT_BYTES_MAX", 8)
    manager.space.prepared = made = _prepared(manager)
    client, row = Client(), np.concatenate(made.shards)
    manager.register(client)
    recut = replace(ASSIGN.assigned, portion=(3, len(row) - 1))
    manager.sink.carry_out(
        [ASSIGN, ASSIGN, replace(ASSIGN, unread=True), ASSIGN, out.Assign(recut)]
    )
    *tasks, part = (client.tasks.get(timeout=PATIENCE_SECONDS).indices for _ in range(5))
    one, same, again, last = (list_.file for list_ in tasks if isinstance(list_, IndicesFile))
    assert one == same != again == last
    assert one.checksum == again.checksum
    assert np.array_equal(np.asarray(part), row[3:-1])
    manager.sink.carry_out([CONCLUDE])
    manager.rest()
    assert not [name for name in manager.space.store.list() if name.startswith("indices")]


def test_a_version_whose_steps_are_gone_is_read_in_one_file(manager: RunningManager) -> None:
    """The manager has it in memory; the worker reads the same parameters, and knows whose they are.

    The file goes with the version.
    """
    space = manager.space
    space.prepared = made = _prepared(manager)
    first = made.begun.model
    base = space.aggregation.versions.read(first)
    moved = {name: tensor + 1 for name, tensor in base.tensors.items()}
    model, content = step_to(moved, base, first, "int3")
    version = space.store.put_new("model-000001-abc.safetensors", content)
    space.aggregation.versions.follow([first, version])
    space.aggregation.versions.keep(version, model.tensors, model.metadata)
    space.store.delete(first.name)
    client = Client()
    manager.register(client)
    assigned = replace(ASSIGN.assigned, model=version)
    manager.sink.carry_out(
        [out.Assign(assigned, (first,)), out.Assign(assigned, (first,), unread=True)]
    )
    reader = ModelReader(space.shared.files_in(space.folder), keeps=True)
    steps, whole = (client.tasks.get(timeout=PATIENCE_SECONDS) for _ in range(2))
    assert (steps.model, steps.whole, whole.model) == (version, None, version)
    found = reader.read(whole.model, whole.leading, whole.whole)
    for name, tensor in model.tensors.items():
        assert found.tensors[name].tobytes() == tensor.tobytes()
    manager.sink.carry_out([out.Discard(experiment="any", files=(version,))])
    assert manager.rest() == []
    assert not [name for name in space.store.list() if name.startswith(("whole", "model"))]


def test_an_experiment_that_fails_while_it_aggregates_leaves_nothing_behind(
    manager: RunningManager,
) -> None:
    """What was known of an experiment is forgotten when that is concluded."""
    observations, core = Observations({"any": manager.space}, manager.roster), Scheduler()
    submitted = on.ExperimentSubmitted(at_seconds=0.0, experiment="any", spec=SPEC)
    aggregate = out.Aggregate(
        experiment="any",
        round=0,
        model=PublishedFile(name="m", size_bytes=1, checksum=""),
        pushes=(),
        train_seconds=1.0,
    )
    assert len(list(observations.story(core, submitted, Output(commands=[aggregate])))) == 2
    assert list(observations.story(core, TICK, Output(facts=[CONCLUDED]))) == [TICK, CONCLUDED]
    assert not observations.counters._aggregating


def test_a_manager_that_takes_over_imports_no_torch_to_go_on() -> None:
    """The import takes 1 to 3 s, and the workers would wait for it."""
    code = "import sys, downpour.cluster.manager.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split()


def test_a_prepared_experiment_names_all_that_it_begins_with(
    manager: RunningManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next manager, and the workers that it calls, know of these files from the event alone."""
    frozen, outer, state = (replace(FILE, name=name) for name in ("frozen", "outer", "state"))
    begun = Beginning(
        model=FILE,
        frozen=frozen,
        outer=outer,
        trial=TrialSums(numeric_class="x", looks=("0",)),
        handed_on=on.HandedOn(states=((1, state),)),
    )
    made = replace(_prepared(manager), begun=begun)
    monkeypatch.setattr(manager.runner, "prepare", lambda *_: made)
    manager.sink.carry_out([PREPARE])
    assert manager.event() == on.Prepared(
        at_seconds=0.0,
        experiment="any",
        dataset=made.dataset_key,
        shard_samples=tuple(map(len, made.shards)),
        model=FILE,
        frozen=frozen,
        trial=begun.trial,
        outer=outer,
        handed_on=begun.handed_on,
    )


def test_a_begun_experiment_is_prepared_again_without_its_network(manager: RunningManager) -> None:
    """No network is drawn or tried again: its model is there, and its facts are on record."""
    first = _prepared(manager)
    command = out.Prepare(
        experiment=manager.space.experiment,
        spec=manager.space.spec,
        dataset=first.dataset_key,
        model=first.begun.model,
    )
    again = prepare(manager.space, None, command)
    assert first.begun.drawn is not None
    assert (again.begun.model, again.begun.drawn) == (first.begun.model, None)


def test_the_classes_of_each_shard_are_counted_unless_they_are_many(
    manager: RunningManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on record, which has no room for thousands of classes times hundreds of shards."""
    made = _prepared(manager)
    labels = made.dataset.labels
    assert labels is not None
    expected = [np.bincount(labels[shard], minlength=10).tolist() for shard in made.shards]
    assert [list(counts) for counts in made.shard_classes] == expected
    monkeypatch.setattr("downpour.cluster.manager.work.SHARD_CLASSES_MAX", 10)
    assert _prepared(manager).shard_classes == ()


def _prepared(manager: RunningManager) -> PreparedExperiment:
    space = manager.space
    return prepare(space, None, out.Prepare(experiment=space.experiment, spec=space.spec))


def test_work_on_a_folder_that_is_gone_fails_its_experiment_alone(manager: RunningManager) -> None:
    """The directory itself is there, so the manager goes on with the others."""
    shutil.rmtree(manager.space.folder)
    manager.runner.start(PREPARE)
    failed = manager.event()
    assert isinstance(failed, on.EffectFailed)
    assert "its folder is gone from" in failed.reason
    assert manager.deaths.empty()


def test_a_running_experiment_whose_folder_stays_away_fails(manager: RunningManager) -> None:
    """It is held up first, for as long as a directory may be away; then the next has its turn."""
    space = manager.space
    space.prepared = prepare(space, None, PREPARE)
    manager.spaces.look()
    assert manager.events.empty()
    shutil.rmtree(space.folder)
    manager.spaces.look()
    assert space.is_gone
    assert manager.events.empty()
    manager.spaces.look()
    failed = manager.event()
    assert isinstance(failed, on.EffectFailed)
    assert "its folder is gone from" in failed.reason


def edit(spec: Path) -> None:
    """Write another spec in its place, as an editor does."""
    spec.write_text(spec.read_text().replace("batch_size = ", "batch_size = 1"))


@pytest.mark.parametrize("spoil", [Path.unlink, edit])
def test_the_spec_of_a_running_experiment_is_restored(
    manager: RunningManager, spoil: Callable[[Path], None]
) -> None:
    """A worker that needs it finds what was submitted, within its patience for any file."""
    space = manager.space
    spec = space.folder / "spec.toml"
    submitted = spec.read_bytes()
    manager.spaces.look()
    manager.spaces.look()
    spoil(spec)
    assert not spec.exists() or spec.read_bytes() != submitted
    manager.spaces.look()
    manager.spaces.look()
    assert spec.read_bytes() == submitted
    assert bytes(space.store.read(space.spec_file)) == submitted
    assert manager.events.empty()


def test_a_folder_that_is_being_removed_gets_no_spec(manager: RunningManager) -> None:
    """One look at a moment when the spec alone is missing brings nothing back."""
    (manager.space.folder / "spec.toml").unlink()
    manager.spaces.look()
    assert not (manager.space.folder / "spec.toml").exists()
    shutil.rmtree(manager.space.folder)
    manager.spaces.look()
    assert not manager.space.folder.exists()


def test_an_experiment_without_a_folder_is_concluded_without_it(manager: RunningManager) -> None:
    """It is listed as ended, and nothing waits for what cannot be written any more."""
    shutil.rmtree(manager.space.folder)
    manager.sink.keep(Scheduler(), TICK, Output())
    manager.spaces.look()
    manager.sink.commit()
    manager.runner.start(CONCLUDE)
    assert manager.rest() == []
    assert manager.deaths.empty()
