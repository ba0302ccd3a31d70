"""The tasks of a simulated worker: training lets virtual time pass.

`cluster/worker/attempt.py` runs here as it is. The course of the machine gives the time of a
task's steps, and a digest stands for its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Literal, Protocol, get_args

import numpy as np

from downpour.base.errors import (
    DownpourError,
    NonFinite,
    OutOfMemory,
    SpecError,
    StoreError,
    TrainingError,
    UnfitWorker,
)
from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.cluster.worker.attempt import LoadedTasks, ModelReader, TaskControl, TaskFlow
from downpour.core.node.attempt import PATIENCE_SECONDS, StepLoop
from downpour.core.spec import ResolvedSpec
from downpour.files.store import Array, Buffer, Work, decode
from downpour.files.store.publish import RetryPolicy
from downpour.network.rpc.messages import IndicesFile, TaskMessage
from downpour_lab.simulated import work as digests
from downpour_lab.simulated.disk import SimulatedStore, digest_in, digest_of, tensors_of
from downpour_lab.simulated.environment import Course, Environment, What
from downpour_lab.simulated.threads import Process, Wait

Phase = Literal["reading", "training", "saving", "publishing", "reporting"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""The phases in which a fault may kill a worker."""
Wrong = Literal["alike each time", "in each attempt otherwise"]
WRONG: tuple[Wrong, ...] = get_args(Wrong)
"""How a worker computes wrong."""
ALIKE = "alike"
"""Marks a task that fails with the same words on every worker."""
_ERRORS: Mapping[str, Callable[[str], DownpourError]] = {
    FailureKind.NON_FINITE: NonFinite,
    FailureKind.OUT_OF_MEMORY: OutOfMemory,
    FailureKind.STORE: StoreError,
    FailureKind.SPEC: lambda reason: SpecError("model", "any", reason),
    FailureKind.OTHER_CODE: UnfitWorker,
}
# When a step ends, the share may be a rounding error below it.
_ROUNDING = 1e-9
_STEPS = "steps"


class Trainer(Protocol):
    """A process that trains, as its tasks see it."""

    process: Process
    machine: str

    def see(self, what: What, *attempts: AttemptId) -> None:
        """Show an action to the observer."""

    def crash(self, why: str) -> None:
        """Die at once."""


class SimulatedTraining:
    """A training that follows the course of its machine.

    Its task takes as long as `work` usual shards, and each task has as many steps as the run's
    timings say.
    """

    mean_loss = 0.5

    def __init__(
        self, flow: SimulatedTaskFlow, attempt: AttemptId, update: bytes, samples: int, work: float
    ) -> None:
        self.steps_done = 0
        self.steps_total = flow.environment.timings.shard_steps
        self.samples = samples
        self.update = update
        self.attempt = attempt
        self._flow = flow
        self._work = work
        self._course: Course | None = None
        self._began_at = 0.0
        self._share = 0.0
        self.wait: Wait | None = None
        """The wait for the end of some steps; None while it makes none."""

    def snapshot(self, *, copy: bool = True) -> dict[str, Array]:  # noqa: ARG002 - has copies
        """Return the whole state; training pauses until it is published."""
        self._share, self._course = self._share_now, None
        self._flow.save(self.attempt)
        return {**tensors_of(self.update), _STEPS: np.array(self.steps_done)}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Continue from a snapshot."""
        self.update, self.steps_done = digest_of(tensors), int(tensors[_STEPS])
        self._share = self.steps_done / self.steps_total

    def advance(self, _: int, goes_on: Callable[[], bool]) -> None:
        """Train until all steps are done, a snapshot is due, or the attempt is to end."""
        process, clock = self._flow.process, self._flow.process.clock
        self._flow.enter("training")
        if self._course is None:
            work = (1.0 - self._share) * self._work
            machines, machine = self._flow.environment.machines, self._flow.worker.machine
            self._course = machines.course(machine, self.attempt, clock.now_seconds, work)
            self._began_at = clock.now_seconds
        self.wait = Wait()
        left = max(0.0, self._course.when(1.0) - (clock.now_seconds - self._began_at))
        process.after(left, process.resume, self.wait, self.steps_total)
        until_due = self._flow.snapshot_due_at_seconds - clock.now_seconds
        if 0 < until_due < left:
            process.after(until_due, process.resume, self.wait)
        steps = process.wait(self.wait)
        self.wait = None
        self.steps_done = steps if steps is not None else self.steps_now
        goes_on()

    def look_up(self) -> None:
        """Let the loop decide now what comes next."""
        if self.wait is not None:
            self._flow.process.resume(self.wait)

    def end_step(self) -> None:
        """Let the loop decide at the end of the current step."""
        if self.wait is None or self._course is None:
            return
        steps = self.steps_now + 1
        own = (steps / self.steps_total - self._share) / (1.0 - self._share)
        spent = self._flow.process.clock.now_seconds - self._began_at
        wait = max(0.0, self._course.when(own) - spent)
        self._flow.process.after(wait, self._flow.process.resume, self.wait, steps)

    @property
    def steps_now(self) -> int:
        """How many steps are done, without the last one, which ends with the training."""
        if self.steps_done == self.steps_total:
            return self.steps_done
        return min(self.steps_total - 1, int(self.steps_total * self._share_now + _ROUNDING))

    def stepped_at(self, steps: int) -> float:
        """Return when this step ended, or when the training began if none has."""
        now = self._flow.process.clock.now_seconds
        if self._course is None or self._share >= 1.0:
            return now
        own = max(0.0, steps / self.steps_total - self._share) / (1.0 - self._share)
        return min(now, self._began_at + self._course.when(own))

    @property
    def _share_now(self) -> float:
        if self._course is None:
            return self._share
        done = self._course.share(self._flow.process.clock.now_seconds - self._began_at)
        return self._share + (1.0 - self._share) * done


@dataclass(frozen=True, slots=True)
class _Begun:
    training: SimulatedTraining


class _SeenStore(SimulatedStore):
    """The store of snapshots; a fault may kill the worker once it has published one."""

    saved: Callable[[], None]

    def put_new(self, name: str, chunks: Sequence[Buffer], *, packs: bool = False) -> PublishedFile:
        file = super().put_new(name, chunks, packs=packs)
        self.saved()
        return file


@dataclass(frozen=True, slots=True, kw_only=True)
class _SimulatedTasks(LoadedTasks):
    """The common inputs of an experiment's tasks: its spec and its files."""

    flow: SimulatedTaskFlow

    def begin(self, task: TaskMessage) -> _Begun:
        model = self.models.read(task.model, task.leading, task.whole)
        start, state = digest_of(model.tensors), b""
        if task.step is not None:
            start = digests.moved_by(start, self._digest(task.step))
        if task.optimizer_state is not None:
            state = self._digest(task.optimizer_state)
        training = self.flow.training(task, start, state)
        if task.snapshot is not None:
            try:
                content = self.snapshots.read(task.snapshot.file)
            except StoreError:
                return _Begun(training)
            training.restore(decode(content, task.snapshot.file.name).tensors)
            self.flow.resuming()
        return _Begun(training)

    def work_of(self, task: TaskMessage, begun: _Begun) -> Work:  # noqa: ARG002 - the digest has all
        """Return the result of a task; a fault may let it fail."""
        training = begun.training
        self.flow.trained(training)
        training.update = self.flow.computed(training)
        state = tensors_of(digests.state_after(training.update))
        return Work(
            parameters=tensors_of(training.update),
            optimizer_state=state if self.spec.hands_on else {},
            samples=training.samples,
            steps=training.steps_total,
            loss=training.mean_loss,
        )

    def _digest(self, file: PublishedFile) -> bytes:
        return digest_in(self.store.read(file))


class SimulatedTaskFlow(TaskFlow):
    """Carries out one attempt after the other."""

    def __init__(
        self, environment: Environment, worker: Trainer, loop_class: type[StepLoop]
    ) -> None:
        self.process = worker.process
        super().__init__(self._loop, self.process.sleep, self.process.clock.now, environment.token)
        self.environment = environment
        self.worker = worker
        self.fails_next: list[str] = []
        self.damages_next = 0
        self.dies_at: Phase | None = None
        self.computes_wrong: Wrong | None = None
        self.current: SimulatedTraining | None = None
        self._made_loop: StepLoop | None = None
        self._step_loop = loop_class
        self._loaded: _SimulatedTasks | None = None

    def run(self, task: TaskMessage, control: TaskControl) -> Update:
        """Train a task and publish its update."""
        try:
            update = super().run(task, control)
        finally:
            self.current = None
            if self.process.alive:
                self.enter("reporting")
        if self.damages_next:
            self.damages_next -= 1
            self.environment.disk.damaged.add(update.file.name)
        return update

    def _load(self, task: TaskMessage, patience: float) -> _SimulatedTasks:
        del patience
        self.enter("reading")
        experiment = task.id.experiment
        if self._loaded is None or self._loaded.experiment != experiment:
            seconds = self.environment.disk.timings.patience_seconds
            store = self._store(SimulatedStore, experiment, seconds, inf)
            spec = _spec_of(bytes(store.read(task.spec)))
            self._loaded = _SimulatedTasks(
                experiment=experiment,
                spec=spec,
                store=store,
                snapshots=self.snapshots(experiment),
                snapshot_every=self.environment.timings.snapshot_seconds,
                models=ModelReader(store, keeps=True),
                flow=self,
            )
        return self._loaded

    def _store(
        self, kind: type[SimulatedStore], experiment: str, seconds: float, away_seconds: float
    ) -> SimulatedStore:
        policy = RetryPolicy(seconds=seconds, away_seconds=away_seconds, sleep=self._pause)
        return kind(self.environment.disk, self.process, experiment, policy, self._moved)

    def snapshots(self, experiment: str) -> SimulatedStore:
        """Return an experiment's files as an attempt saves its state in them."""
        store = self._store(_SeenStore, experiment, PATIENCE_SECONDS, PATIENCE_SECONDS)
        assert isinstance(store, _SeenStore)  # noqa: S101 - for the type
        store.saved = self._saved
        return store

    def training(self, task: TaskMessage, start: bytes, state: bytes) -> SimulatedTraining:
        """Return the training of a task from its start."""
        indices = task.indices
        assert not isinstance(indices, IndicesFile)  # noqa: S101 - few enough for a message
        bounds = int(indices[0]), int(indices[-1]) + 1
        number, shard = task.id.round, task.id.shard
        update = digests.trained(number, shard, bounds, task.share, start, state)
        samples = max(1, int(task.share * len(indices)))
        work = samples / self.environment.timings.shard_samples
        self.current = SimulatedTraining(self, task.id, update, samples, work)
        return self.current

    def resuming(self) -> None:
        """Let the time pass that it takes to continue from a snapshot."""
        if self.environment.timings.resuming_seconds:
            self.process.sleep(self.environment.timings.resuming_seconds)

    def save(self, attempt: AttemptId) -> None:
        """Let the time pass that it takes to save an attempt's state."""
        self.worker.see("saves", attempt)
        self.enter("saving")
        self.process.sleep(self.environment.timings.saving_seconds)

    def _saved(self) -> None:
        if self.current is not None:
            self.worker.see("saved", self.current.attempt)
        if self.dies_at == "saving":
            self.process.after(0.0, self.worker.crash, "when it has saved")

    def trained(self, training: SimulatedTraining) -> None:
        """Note that an attempt has done all its steps; a fault may let it fail."""
        self.worker.see("trained", training.attempt)
        attempt = training.attempt
        task = attempt.experiment, attempt.round, attempt.shard
        how = self.fails_next.pop() if self.fails_next else ""
        if how == ALIKE:
            self.environment.hopeless.add(task)
        if task in self.environment.hopeless:
            raise TrainingError(f"round {attempt.round} has no shard {attempt.shard}")
        if how:
            # The machine is at fault and not the task, so the attempt fails like no other.
            reason = f"{how} on {self.process.host}, in {attempt}"
            raise _ERRORS.get(how, TrainingError)(reason)
        self.enter("publishing")

    def computed(self, training: SimulatedTraining) -> bytes:
        """Return the update of an attempt as this worker computes it."""
        if not self.computes_wrong:
            return training.update
        attempt = str(training.attempt) if self.computes_wrong == WRONG[1] else ""
        made = digests.wrong(training.update, self.worker.machine, attempt)
        self.environment.disk.wrong.add(made)
        return made

    def enter(self, phase: Phase) -> None:
        """Enter the next phase; a fault may be due to kill the worker in it."""
        if self.dies_at == phase:
            self.process.after(0.0, self.worker.crash, f"while {phase}")

    @property
    def snapshot_due_at_seconds(self) -> float:
        """The time before which no snapshot is due."""
        return self._made_loop.snapshot_due_at_seconds if self._made_loop is not None else inf

    def _loop(self, control: TaskControl, *seconds: float) -> StepLoop:
        self._made_loop = self._step_loop(control, *seconds)
        return self._made_loop


@lru_cache(64)
def _spec_of(toml: bytes) -> ResolvedSpec:
    return ResolvedSpec.from_toml(toml.decode())
