"""An attempt at a task, and its course in a worker: load, train, save, publish.

Nothing here computes, or knows the manager. `task_runner.py` trains with torch. The simulator lets
virtual time pass instead (`downpour_lab/simulated/training.py`), and runs this file as it is.
"""

from __future__ import annotations

import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from downpour.base import errors
from downpour.base.states import FailureKind
from downpour.base.values import PublishedFile, Snapshot, Update
from downpour.core.node.attempt import HeldAttempt, NextStep, PublishingPace, StepLoop
from downpour.core.spec import Spec
from downpour.files import store as files
from downpour.learning.blame import describe_error
from downpour.network.rpc.messages import IndicesFile, TaskMessage

if TYPE_CHECKING:
    from downpour.learning.training.step import Shortage

log = logging.getLogger(__name__)


class TaskCancelled(Exception):
    """The attempt is no longer wanted; not an error of the task."""


class HandOverStop(Exception):
    """The attempt has stopped for a hand-over; another worker continues its snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.snapshot = snapshot


@dataclass(slots=True, eq=False)
class TaskControl(HeldAttempt):
    """An attempt with a clock; `patience` scales how long its files may be missing."""

    patience: float = 1.0
    clock: Callable[[], float] = time.monotonic

    def begin(self, steps_done: int, steps_total: int) -> None:
        """Note that the attempt has loaded everything, and at which step its work begins."""
        self.loaded(steps_done, steps_total, self.clock())

    def advance(self, steps_done: int) -> None:
        """Note that a step has ended."""
        self.stepped(steps_done, self.clock())

    def raise_if_cancelled(self) -> None:
        """Raise TaskCancelled if the attempt is no longer wanted."""
        if self.cancelled:
            raise TaskCancelled


@dataclass(slots=True, eq=False)
class AcceptedTask(TaskControl):
    """An attempt that this worker has accepted, with its task."""

    task: TaskMessage = field(kw_only=True)


def part_of(task: TaskMessage) -> tuple[object, ...]:
    """Return, in short, the part of its shard that a task trains, and its model."""
    held = task.indices
    if isinstance(held, IndicesFile):
        return task.model.name, task.share, held.file.checksum
    return task.model.name, task.share, len(held), *map(int, (*held[:1], *held[-1:]))


_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (errors.NonFinite, FailureKind.NON_FINITE),
    (errors.OutOfMemory, FailureKind.OUT_OF_MEMORY),
    (MemoryError, FailureKind.OUT_OF_MEMORY),
    (errors.StoreError, FailureKind.STORE),
    (errors.SpecError, FailureKind.SPEC),
    (
        errors.UnfitWorker,
        FailureKind.OTHER_CODE,
    ),  # the protocol's word is older than its other causes
)


def failure_kind(error: BaseException) -> FailureKind:
    """Return the kind of failure that an error is."""
    return next((kind for cls, kind in _KINDS if isinstance(error, cls)), FailureKind.TASK)


def in_one_line(error: BaseException) -> str:
    """Describe an error; the same error at the same step gives the same line on every worker."""
    # The scheduler compares these lines, and does not retry a task that fails alike on two workers.
    where = (
        "" if isinstance(error, errors.DownpourError) else "; the worker's log has the traceback"
    )
    return describe_error(error) + where


class Training(Protocol):
    """A task's training, which can stop after any step."""

    @property
    def steps_done(self) -> int:
        """The steps done so far."""

    @property
    def steps_total(self) -> int:
        """All steps of the task."""

    def advance(self, steps: int, goes_on: Callable[[], bool], /) -> None:
        """Train at most these steps, as long as `goes_on` says so after each that is noticed."""

    def snapshot(self, *, copy: bool = True) -> Mapping[str, files.Array]:
        """Return the whole state; without `copy`, the next step may change it."""


@dataclass(slots=True)
class ModelReader:
    """Reads the versions of one experiment; for one thread.

    If versions are differences, it keeps the last version in memory. The next version is one
    difference away from it, so the worker need not read a version twice.
    """

    store: files.Store
    _: KW_ONLY
    keeps: bool
    _last: tuple[PublishedFile, files.Parameters] | None = field(init=False, default=None)

    def read(
        self,
        file: PublishedFile,
        leading: Sequence[PublishedFile],
        whole: PublishedFile | None = None,
    ) -> files.Parameters:
        """Return a version, which the `leading` versions' steps lead to; don't change its tensors.

        If it is not in memory, this reads the file that holds the `whole` of it, if there is one.
        """
        if whole is not None and self._known(file) is None:
            model: files.Parameters = files.decode(self.store.read(whole), whole.name)
        else:
            model = files.read_version(self.store, file, leading, self._known)
        if self.keeps:
            self._last = file, model
        return model

    def draw(self, file: PublishedFile, content: bytes) -> None:
        """Keep what this process has drawn, if it is that version: then we need not read it."""
        if files.layout.described(file.name, content) == file:
            self._last = file, files.decode(content, file.name)

    def _known(self, file: PublishedFile) -> files.Parameters | None:
        if self._last is None or self._last[0] != file:
            return None
        return self._last[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTasks(ABC):
    """The common inputs of an experiment's tasks."""

    experiment: str
    spec: Spec
    store: files.Store
    snapshots: files.Store
    """The same files, retried for less."""
    snapshot_every: float
    models: ModelReader
    pace: PublishingPace = field(default_factory=PublishingPace)
    differs: tuple[str, ...] = ()
    """The packages of which this machine has another version."""
    trial: str = ""
    """The checksum of the trial's steps in this process."""
    shortage: Shortage | None = None
    """What to try if memory runs out."""

    @abstractmethod
    def begin(self, task: TaskMessage) -> Any:
        """Begin a task, or continue from its snapshot; the result has a `training`."""

    @abstractmethod
    def work_of(self, task: TaskMessage, begun: Any) -> files.Work:
        """Return the result of a task whose training has ended."""

    def keep(  # noqa: B027 - a simulated worker reads all files
        self, work: files.Work, file: PublishedFile, optimizer_state: PublishedFile | None
    ) -> None:
        """Keep the result of a task, from which the next one may begin."""

    @property
    def processes(self) -> int:
        """How many processes train a batch."""
        return 1

    @property
    def shortages(self) -> int:
        """How often memory ran out."""
        return 0


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Publishes and withdraws the snapshots of one attempt.

    `core/node/attempt.py` decides when. Nothing depends on a snapshot, so a failure to publish one
    is logged and training continues. `token` draws as many bytes in hexadecimal, for a file's name.
    """

    store: files.Store
    control: TaskControl
    token: Callable[[int], str] = secrets.token_hex

    def publish(self, training: Training) -> Snapshot | None:
        """Publish the state of a running training; returns None if it cannot be published."""
        # A longer token than in other names, because an attempt's snapshots differ only by it.
        name = files.layout.attempt_name("snapshot", self.control.attempt, self.token(6))
        try:
            file = self.store.put_new(name, files.encode(training.snapshot(copy=False), {}))
        except errors.StoreError as error:
            log.warning("%s: no snapshot: %s", self.control.attempt, error)
            # The file may exist all the same, and no other process knows its name.
            self._remove(name)
            return None
        done, total = training.steps_done, training.steps_total
        return Snapshot(file=file, steps_done=done, steps_total=total)

    def withdraw_unknown(self) -> None:
        """Remove the last snapshot of an ended attempt, if the manager does not know that file."""
        # The manager removes the files that it knows. No other process would remove this one.
        snapshot = self.control.withdraw_unknown()
        if snapshot is not None:
            self._remove(snapshot.file.name)

    def _remove(self, name: str) -> None:
        try:
            self.store.delete(name)
        except errors.StoreError as error:
            log.warning("%s: could not remove a snapshot: %s", self.control.attempt, error)


@dataclass(eq=False)
class TaskFlow(ABC):
    """Runs tasks one by one; `sleep` waits between tries, and `token` draws bytes for names."""

    loop_class: Callable[[TaskControl, float, float, float], StepLoop] = StepLoop
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    token: Callable[[int], str] = secrets.token_hex
    _control: TaskControl | None = field(init=False, default=None)

    def run(self, task: TaskMessage, control: TaskControl) -> Update:
        """Train a task and publish its update."""
        began = self.clock()
        self._control = control
        loaded = self._load(task, control.patience)
        with blaming_packages(loaded.differs):
            begun = loaded.begin(task)
        control.begin(begun.training.steps_done, begun.training.steps_total)
        loaded_at = self.clock()
        snapshots = Snapshots(loaded.snapshots, control, self.token)
        expected_seconds = loaded.pace.snapshot_seconds
        loop = self.loop_class(control, loaded.snapshot_every, loaded_at, expected_seconds)
        try:
            with blaming_packages(loaded.differs):
                while True:
                    try:
                        train_steps(begun.training, control, snapshots, loop, self.clock)
                        break
                    except errors.OutOfMemory as error:
                        if loaded.shortage is None or not loaded.shortage.may_try_again():
                            raise
                        # As text: a log that keeps the error would keep the failed step's memory.
                        log.warning("retrying %s: %s", control.attempt, str(error))
                    del begun  # it holds memory of the device
                    loaded.shortage.make_room()
                    begun = loaded.begin(replace(task, snapshot=control.snapshot or task.snapshot))
        finally:
            snapshots.withdraw_unknown()
        trained_at = self.clock()
        work = loaded.work_of(task, begun)
        file, optimizer_state = files.publish_work(loaded.store, task.id, work, self.token(3))
        publish_seconds = self.clock() - trained_at
        written = file.size_bytes + (optimizer_state.size_bytes if optimizer_state else 0)
        loaded.pace.published(publish_seconds, written, control.snapshot)
        loaded.keep(work, file, optimizer_state)
        return Update(
            file=file,
            samples=work.samples,
            steps=work.steps,
            loss=work.loss,
            load_seconds=loaded_at - began,
            train_seconds=trained_at - loaded_at,
            optimizer_state=optimizer_state,
            publish_seconds=publish_seconds,
            processes=loaded.processes,
            shortages=loaded.shortages,
            trial=loaded.trial,
            step_losses=work.curve[0],
            step_rates=work.curve[1],
        )

    @abstractmethod
    def _load(self, task: TaskMessage, patience: float) -> LoadedTasks:
        """Return the inputs that the tasks of an experiment have in common."""

    def _moved(self, count_bytes: int) -> None:
        """Count bytes of a file that this task has read or written."""
        if self._control is not None:
            self._control.moved_bytes += count_bytes

    def _pause(self, seconds: float) -> None:
        """Sleep between two tries to read a file; raises TaskCancelled on a cancellation."""
        if self._control is not None:
            self._control.raise_if_cancelled()
        self.sleep(seconds)


_TOGETHER_SECONDS = 0.02
"""For how long steps follow one another before the training sets up its surroundings again, which
takes as long as a tenth of a small network's step."""


def train_steps(
    training: Training,
    control: TaskControl,
    snapshots: Snapshots,
    loop: StepLoop,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Train to the end, step by step, as the loop decides."""

    def goes_on(until: float) -> bool:
        # Repeating steps after a shortage of memory is no progress.
        control.advance(max(control.steps_done, training.steps_done))
        now = clock()
        return now < until and loop.only_trains(now)

    while (step := loop.next(clock())) is not NextStep.FINISH:
        match step:
            case NextStep.TRAIN:
                training.advance(
                    training.steps_total, partial(goes_on, clock() + _TOGETHER_SECONDS)
                )
            case NextStep.SAVE:
                control.snapshot = snapshots.publish(training) or control.snapshot
                loop.saved(clock())
            case NextStep.HAND_OVER:
                snapshot = snapshots.publish(training)
                if snapshot is not None:
                    raise HandOverStop(snapshot)
            case NextStep.STOP:
                raise TaskCancelled


@contextmanager
def blaming_packages(differs: tuple[str, ...]) -> Iterator[None]:
    """If an import fails and this machine's packages differ, blame this machine, not the task."""
    try:
        yield
    except errors.SpecError as error:
        if not differs or not isinstance(error.__cause__, ImportError):
            raise
        raise unfit(error, "", differs) from error


def unfit(error: errors.SpecError, remedy: str, differs: tuple[str, ...]) -> errors.UnfitWorker:
    """Return the error of a machine that cannot train what the manager's could."""
    versions = f"; this worker has {'; '.join(differs)}" if differs else ""
    return errors.UnfitWorker(f"this worker cannot train it: {error}{remedy}{versions}")
