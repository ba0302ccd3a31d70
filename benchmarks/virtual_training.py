"""Real training in virtual time: N workers with a core each, on one core, the same every time.

The simulator's manager and workers decide what is trained from which version, and when; how long
everything takes is assumed. This observer of theirs does what they decide: tasks with the worker's
own code, versions with the manager's, on a real folder. Its numbers have no say in the times, so
the simulated files stay the digests that they are, and each stands for a real file.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common import folders

from downpour.base.values import AttemptId, PublishedFile, SystemState, Update
from downpour.cluster.manager import work
from downpour.cluster.manager.command_runner import task_of
from downpour.cluster.manager.work import NewVersion
from downpour.cluster.manager.workspace import Workspace, open_workspace
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.resolve import resolve
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec, Spec
from downpour.core.stragglers.base import POLICIES
from downpour.files.store import SharedDirectory
from downpour.files.store.model_files import whole_content
from downpour.learning.training.epoch_order import part_of
from downpour.learning.user_code import fixed_code
from downpour.network.rpc.messages import TaskMessage
from downpour.predictor import pretrained
from downpour_lab.simulated.disk import DiskTimings
from downpour_lab.simulated.environment import Course, Observation, Observer, Steady, Timings
from downpour_lab.trials.plan import Plan
from downpour_lab.trials.striking import Cluster

_NAME = "virtual"
_IDLE = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)
_PREPARE_SECONDS = 4.0  # workers arrive in the first second, and all are there by then
_EVALUATE_SECONDS = 1.0  # beside the training


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What everything is assumed to take, in seconds.

    `step_seconds` has one entry for each worker. A file of a model or an update is read and written
    in `read_seconds` and `write_seconds`, within half of that; a version takes `aggregate_seconds`,
    and `update_seconds` for each update in it. By default a round of empty tasks takes 24 ms with 2
    workers and 72 with 10; measured were 26 to 30 and 80 to 88 where all share two cores, and 17
    and 55 with files in huge pages (benchmarks/README.md).
    """

    step_seconds: tuple[float, ...]
    call_seconds: float = 0.0005
    read_seconds: float = 0.002
    write_seconds: float = 0.003
    aggregate_seconds: float = 0.002
    update_seconds: float = 0.006


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a version came to: made of `tasks` tasks, `seconds` after training began."""

    tasks: int
    epochs: float
    seconds: float
    loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A training in virtual time.

    `steps` are those of each worker; `staleness` has an entry for each update that counted. Workers
    upload updates and download versions; the manager writes what it has published.
    """

    looks: tuple[Look, ...]
    seconds: float
    steps: Mapping[str, int]
    uploaded_bytes: int
    downloaded_bytes: int
    published_bytes: int
    staleness: tuple[int, ...]
    model: bytes


def train(
    spec: Spec,
    cost: Cost,
    data_dir: Path | None = None,
    *,
    looks: int = 1,
    seed: int = 0,
    show: Callable[[Look], None] = lambda _: None,
) -> Trained:
    """Train a spec in virtual time.

    Args:
        spec: what to train; its own evaluations are not made.
        cost: how long everything takes; its steps say how many workers there are.
        data_dir: a folder with datasets.
        looks: how often an epoch the newest version, or the mean that it is ahead of, is evaluated.
        seed: of the times, which vary; that of the training is the spec's.
        show: is called with what was evaluated.

    Raises:
        DownpourError: it cannot be trained.
    """
    names = tuple(f"worker-{n + 1}" for n in range(len(cost.step_seconds)))
    code = fixed_code(spec.factories, spec.code)
    asked = resolve(spec.model_copy(update={"code": code}), len(names))
    memory = folders().get("memory")
    with tempfile.TemporaryDirectory(prefix="downpour-virtual-", dir=memory) as folder:
        shared = SharedDirectory.open(Path(folder), create=True)
        space = open_workspace(shared, _NAME, asked)
        try:
            # Before the simulator's own preparation, because the number of rounds may follow.
            prepare = out.Prepare(experiment=_NAME, spec=asked)
            space.prepared = made = work.prepare(space, data_dir, prepare)
            space.global_model, resolved = made.begun.drawn, space.spec
            plan = Plan(
                seed=seed,
                specs=((_NAME, resolved),),
                managers=("manager",),
                workers=names,
                timings=_timings(resolved, cost),
                faults=(),
                in_order=True,
            )
            numbers = _Numbers(space, looks, show)
            paces = dict(zip(names, cost.step_seconds, strict=True))
            cluster = Cluster(
                plan,
                lambda _: numbers,
                lambda _: None,
                machines=_Machines(paces, numbers.steps_of),
                predictor=pretrained if POLICIES[resolved.policy].watches else None,
            )
            cluster.begin()
            while not numbers.ended and cluster.clock.step():
                pass
            return numbers.trained()
        finally:
            space.close()


def _timings(spec: ResolvedSpec, cost: Cost) -> Timings:
    """Return the simulator's timings; of a task's time only its machine decides."""
    return Timings(
        network_seconds=cost.call_seconds,
        deadline_seconds=None,
        prepare_seconds=_PREPARE_SECONDS,
        aggregate_seconds=cost.aggregate_seconds,
        update_seconds=cost.update_seconds,
        evaluate_seconds=_EVALUATE_SECONDS,
        snapshot_seconds=spec.snapshot_every,
        saving_seconds=cost.write_seconds,
        patience=1.0,
        disk=DiskTimings(read_seconds=cost.read_seconds, write_seconds=cost.write_seconds),
    )


class _Machines:
    """Machines whose steps take a constant time each."""

    def __init__(
        self, step_seconds: Mapping[str, float], steps_of: Callable[[AttemptId], int]
    ) -> None:
        self._step_seconds = step_seconds
        self._steps_of = steps_of

    def course(self, machine: str, attempt: AttemptId, at_seconds: float, work: float) -> Course:  # noqa: ARG002
        return Steady(self._steps_of(attempt) * self._step_seconds[machine] * work)

    def state(self, machine: str, at_seconds: float) -> SystemState:  # noqa: ARG002
        return _IDLE


class _Numbers(Observer):
    """Does what is decided, and notes what it comes to.

    Work is done once it is known to count: a task when its update is accepted, so that it does not
    matter how often it was begun or handed over.
    """

    def __init__(self, space: Workspace, looks: int, show: Callable[[Look], None]) -> None:
        self.ended = False
        self._space = space
        self._show = show
        self._runner = TaskRunner(space.shared, "cpu")
        self._files: dict[str, PublishedFile] = {}
        self._updates: dict[str, Update] = {}
        self._assigned: dict[AttemptId, out.Assign] = {}
        # The versions that are kept, where some are steps, and the last that each worker has read.
        self._order: tuple[PublishedFile, ...] = ()
        self._read: dict[str, PublishedFile] = {}
        self._drawn: PublishedFile | None = None
        self._made: dict[int, tuple[NewVersion, int]] = {}
        self._newest: PublishedFile | None = None
        self._mean: PublishedFile | None = None
        # Which states of the outer optimizer are published depends on the sizes of real files.
        self._outer: PublishedFile | None = None
        self._since_outer: list[tuple[out.Push, ...]] = []
        self._began_at = self._seconds = 0.0
        self._tasks = 0
        self._tasks_an_epoch = space.spec.shards * space.spec.meetings.each
        self._looks_an_epoch = looks
        self._looks: list[Look] = []
        self._steps: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._staleness: list[int] = []

    def steps_of(self, attempt: AttemptId) -> int:
        """Return how many steps a task has."""
        spec, shard = self._space.spec, work.ready(self._space).shards[attempt.shard]
        return part_of(spec, len(shard), spec.rounds_before + attempt.round).steps

    def acting(self, step: Observation) -> None:
        """Do what an event has led to."""
        self._follow(step.event)
        for fact in step.output.facts:
            if isinstance(fact, out.Accepted):
                self._train(fact)
            elif isinstance(fact, out.Concluded):
                self.ended = True
        for command in step.output.commands:
            self._carry_out(command)

    def trained(self) -> Trained:
        """Return what has been trained; once it has ended."""
        if self._newest is None:
            raise RuntimeError("nothing was trained")
        model = b"".join(whole_content(self._space.store, self._newest.name))
        if self._newest.size_bytes != len(model):  # it is a step, so the result is written whole
            state = self._space.aggregation.outer
            outer = sum(array.nbytes for array in state[1].values()) if state is not None else 0
            self._bytes["published"] += len(model) + outer
        return Trained(
            looks=tuple(self._looks),
            seconds=self._seconds,
            steps=dict(self._steps),
            uploaded_bytes=self._bytes["up"],
            downloaded_bytes=self._bytes["down"],
            published_bytes=self._bytes["published"],
            staleness=tuple(self._staleness),
            model=model,
        )

    def _follow(self, event: on.Event) -> None:
        """Have the files that an event names stand for the real ones."""
        match event:
            case on.Prepared():
                made = work.ready(self._space)
                self._put(event, NewVersion(made.begun.model, made.begun.outer, ()))
                if self._space.spec.publishes_steps:  # then workers draw it themselves
                    self._drawn = made.begun.model
                self._began_at = event.at_seconds
            case on.Aggregated():
                version, count = self._made.pop(event.round)
                self._put(event, version)
                for file, real in zip(event.own, version.own, strict=True):
                    self._files[file.name] = real
                self._seconds = event.at_seconds - self._began_at
                self._look(self._tasks, self._tasks + count, version.mean or version.model)
                self._tasks += count
            case _:
                pass

    def _put(self, event: on.Prepared | on.Aggregated, real: NewVersion) -> None:
        if self._mean is not None:
            self._space.store.delete(self._mean.name)
        self._files[event.model.name], self._mean = real.model, real.mean
        self._newest = real.mean or real.model
        # There is one after every round here, because an epoch may have many looks.
        mean = real.mean if isinstance(event, on.Aggregated) and event.mean is not None else None
        self._bytes["published"] += _size((real.model, real.outer, mean, *real.own))
        if real.outer is not None:
            if self._outer is not None:
                self._space.store.delete(self._outer.name)
            self._outer, self._since_outer = real.outer, []

    def _look(self, before: int, after: int, model: PublishedFile) -> None:
        """Evaluate a version if an epoch, or a part of one, ends with it."""
        each, looks = self._tasks_an_epoch, self._looks_an_epoch
        if before * looks // each == after * looks // each:
            return
        command = out.Evaluate(experiment=_NAME, round=0, model=model, leading=self._order[:-1])
        found = work.measure(self._space, command)
        look = Look(
            tasks=after,
            epochs=after / each,
            seconds=self._seconds,
            loss=found.loss,
            metrics=found.metrics,
        )
        self._looks.append(look)
        self._show(look)

    def _carry_out(self, command: out.Command) -> None:
        match command:
            case out.Assign():
                self._assigned[command.assigned.attempt] = command
            case out.Aggregate():
                version = work.aggregate(self._space, self._real(command))
                self._order = (*self._real_ones(command.versions), version.model)
                self._made[command.round] = version, len(command.pushes)
                self._staleness += [push.staleness for push in command.pushes]
            case out.Discard():
                for file in self._known(command.files):
                    self._space.store.delete(file.name)
            case _:
                pass

    def _train(self, accepted: out.Accepted) -> None:
        """Train the task of an update that counts."""
        command = self._assigned[accepted.attempt]
        assigned = command.assigned
        task = task_of(
            self._space,
            accepted.attempt,
            self._files[assigned.model.name],
            leading=self._real_ones(command.leading),
            portion=assigned.portion,
            share=assigned.share,
            optimizer_state=self._state(assigned.optimizer_state),
            step=self._state(assigned.step),
        )
        update = self._runner.run(task, TaskControl(accepted.attempt))
        self._updates[accepted.update.file.name] = update
        self._files[accepted.update.file.name] = update.file
        if accepted.update.optimizer_state is not None and update.optimizer_state is not None:
            self._files[accepted.update.optimizer_state.name] = update.optimizer_state
        self._steps[accepted.worker] += update.steps
        self._bytes["down"] += _size((task.optimizer_state, task.step))
        self._bytes["down"] += self._version_bytes(accepted.worker, task)
        self._bytes["up"] += _size((update.file, update.optimizer_state))

    def _version_bytes(self, worker: str, task: TaskMessage) -> int:
        """Return what a worker reads of a version: what came after the last one that it has."""
        chain = [*task.leading, task.model]
        last = self._read.get(worker, self._drawn)
        self._read[worker] = task.model
        return _size(chain[chain.index(last) + 1 :] if last in chain else chain)

    def _real_ones(self, files: Iterable[PublishedFile]) -> tuple[PublishedFile, ...]:
        return tuple(self._files[file.name] for file in files)

    def _state(self, file: PublishedFile | None) -> PublishedFile | None:
        # Simulated workers keep a state always, real ones only if their optimizer has one.
        return self._files.get(file.name) if file is not None else None

    def _known(self, files: Sequence[PublishedFile]) -> Iterable[PublishedFile]:
        """Return the real files that some stand for; snapshots stand for none."""
        return [self._files.pop(file.name) for file in files if file.name in self._files]

    def _real(self, command: out.Aggregate) -> out.Aggregate:
        """Return a command with the real files."""
        pushes = [
            replace(
                push,
                update=self._updates.pop(push.update.file.name),
                base=self._files[push.base.name],
            )
            for push in command.pushes
        ]
        real = replace(
            command,
            model=self._files[command.model.name],
            versions=self._real_ones(command.versions),
            outer=self._outer,
            since_outer=tuple(self._since_outer),
            keeps_mean=self._space.spec.looks_ahead,
            pushes=tuple(pushes),
        )
        self._since_outer.append(real.pushes)
        return real


def _size(files: Iterable[PublishedFile | None]) -> int:
    return sum(file.size_bytes for file in files if file is not None)
