"""The messages between a manager, its workers and its clients, as values; and their services.

They mirror `idl/downpour.thrift` name for name; `wire.py` turns them into Thrift structs and back,
and nothing outside this folder ever sees a struct. The values that messages share with files and
the scheduler (attempts, updates, published files) are in `base/values.py`. Counts and sizes are not
negative and seconds are finite; `wire.py` refuses anything else.

The implementation of a service knows nothing of Thrift. Its arguments arrive checked, and its
answers are values. Many threads call.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt

from downpour.base import values
from downpour.base.errors import IncompatiblePeer, shortened
from downpour.base.names import CPU
from downpour.base.states import ExperimentState, FailureKind, TaskState, WorkerState

Finite = Annotated[float, values.Rule(math.isfinite, "a finite number")]
Share = Annotated[float, values.Rule(lambda share: 0 < share <= 1, "above 0 and at most 1")]
Port = Annotated[int, values.Rule(lambda port: 1 <= port <= 65535, "a port from 1 to 65535")]
Reason = Annotated[str, shortened]
"""We never refuse a reason: the manager must hear of a failure, however its reason is written."""


@dataclass(frozen=True, slots=True)
class BlockDigest:
    """A block of the training data by its file and number, and the digest of its bytes."""

    block: Reason
    digest: values.Checksum


IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicesFile:
    """A long list of indices: a file with the bytes of `pack_indices`."""

    width_bytes: int
    count: int
    file: values.PublishedFile


Indices = IndexArray | IndicesFile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskMessage:
    """Train one shard in one round, starting from a model version; identified by its `id`."""

    id: values.AttemptId
    spec: values.PublishedFile  # resolved, as TOML
    dataset: values.BareName  # the prepared dataset's folder
    model: values.PublishedFile
    """A whole model, or the difference from the last of the `leading` versions."""
    indices: Indices  # an array [n], or a file
    optimizer_state: values.PublishedFile | None = None
    """The shard's state after its last round, if the spec keeps it."""
    term: int = 0
    snapshot: values.Snapshot | None = None
    """The state to continue from, if a worker has already begun the task."""
    frozen: values.PublishedFile | None = None  # the parameters that no task trains, if any
    share: Share = 1.0
    """The worker trains the first share of the task's steps."""
    step: values.PublishedFile | None = None
    """If rounds overlap, the shard's last update: the task begins from the model moved by it."""
    leading: tuple[values.PublishedFile, ...] = ()
    """The versions before a model that is a difference; the first of them is complete."""
    whole: values.PublishedFile | None = None
    """The complete model, if an earlier attempt could not read the differences."""
    trial: values.TrialSums | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerInfo:
    """The facts that a worker needs before it registers."""

    protocol: int
    version: values.ShortText
    presence_file: values.BareName
    """In the shared directory's `presence/`; its content shows that a worker sees the same one."""
    heartbeat_seconds: float
    term: int = 0
    patience: float = 1.0  # scales every timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A worker that registers; its own service listens at `host` and `port`."""

    name: str
    host: values.ShortText
    port: Port
    protocol: int
    version: values.ShortText
    presence: values.ShortText
    numeric_class: values.NumericClass
    hostname: values.ShortText
    pid: int
    running: values.AttemptId | None = None
    labels: tuple[str, ...] = ()  # each KEY=VALUE
    device: str = ""
    processor_class: values.NumericClass | None = (
        None  # for specs on the CPU, if its device is another
    )
    cards: int = 0  # the accelerators of its machine

    def class_for(self, device: str) -> values.NumericClass:
        """Return the numeric class in which the worker trains a spec that asks for a device."""
        return (self.processor_class if device == CPU else None) or self.numeric_class

    @property
    def trains_on(self) -> str:
        """The worker's device, or at least the device's kind."""
        return self.device or self.numeric_class.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The manager's name for a worker from now on."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A worker's sign of life: its attempts, its machine's state, and its process's resources."""

    worker: str
    running: tuple[values.Progress, ...]
    system: values.SystemState
    process: values.ProcessState | None = None
    differs: tuple[str, ...] = ()
    """A phrase for each package of its experiment in another version than the manager's."""


PAGE_EXPERIMENTS_MAX = 1000
"""The limit for one answer; with reasons of 2,000 characters, it stays well under 16 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The answer to a worker's heartbeat."""

    known: bool  # if false, the worker must register again
    unwanted: tuple[values.AttemptId, ...] = ()  # attempts to stop
    interval_seconds: float = 0.0  # the least time between two heartbeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A mean over the examples of an evaluation."""

    name: str
    value: Finite


def metrics_of(measured: Mapping[str, float | None]) -> tuple[Metric, ...]:
    """Return those metrics that are finite numbers, in order; a message holds no others."""
    return tuple(
        Metric(name=name, value=value)
        for name, value in measured.items()
        if value is not None and math.isfinite(value)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSummary:
    """An experiment in one line; `metrics` and `loss` come from its last evaluation, on `part`."""

    experiment: values.BareName
    name: str
    state: ExperimentState
    rounds_done: int
    rounds_total: int
    reason: Reason | None = None  # why it failed, or why a running one makes no progress
    asked_wrongly: bool = False  # the spec is to blame
    metrics: tuple[Metric, ...] = ()
    loss: Finite | None = None
    part: values.Part = "test"
    epochs_done: int | None = None
    epochs_total: int | None = None
    left_seconds: tuple[float, ...] = ()  # quantiles 0.1, 0.5 and 0.9, once they are known
    owner: str = ""  # USER@HOST, as its client says
    priority: int = 0
    paused: bool = False
    shards: int = 0  # as many workers can train it at a time

    def __repr__(self) -> str:
        """Describe the experiment and its progress in one line."""
        return f"<ExperimentSummary {self.experiment}: {self.state}, {self.where}>"

    @property
    def condition(self) -> str:
        """Its state; "paused" if a user paused it."""
        return "paused" if self.paused else self.state

    @property
    def measured(self) -> Mapping[str, float]:
        """The metrics by name, in the task's order."""
        return {metric.name: metric.value for metric in self.metrics}

    @property
    def epochs(self) -> tuple[int, int]:
        """The number of finished epochs, and of all epochs."""
        if self.epochs_done is None or self.epochs_total is None:
            return self.rounds_done, self.rounds_total
        return self.epochs_done, self.epochs_total

    @property
    def where(self) -> str:
        """The current epoch, and the round if an epoch has several, counted from 1."""
        done, total = self.epochs
        at = f"epoch {min(done + 1, total)} of {total}"
        if total == self.rounds_total:
            return at
        return f"{at}, round {min(self.rounds_done + 1, self.rounds_total)} of {self.rounds_total}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus(values.StepCount):
    """One task of the current round, with the progress of its furthest attempt."""

    shard: int
    state: TaskState
    worker: str | None = None
    steps_done: int
    steps_total: int
    elapsed_seconds: float
    predicted: values.Forecast | None = (
        None  # of the time from this attempt's assignment to its update
    )
    slowness: float | None = None
    """The pace that follows from the forecast, divided by the round's median."""
    moved_bytes: int = 0  # of files, since the last step
    update_bytes: int = 0  # of the last update of any shard; 0 before one

    @property
    def has_update(self) -> bool:
        """Whether its update exists, applied or not."""
        return self.state in {TaskState.PUBLISHED, TaskState.APPLIED}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker, as the manager sees it; it is process `pid` on the machine `hostname`."""

    worker: str
    address: str
    state: WorkerState
    running: values.AttemptId | None = None
    system: values.SystemState | None = None
    tasks_done: int
    slowness: float | None = None
    """The median of its paces in the last rounds, each divided by its round's median."""
    numeric_class: values.NumericClass | None = None
    hostname: str = ""
    pid: int = 0
    labels: tuple[str, ...] = ()
    device: str = ""
    saves: Finite | None = None
    """The predicted share of a round's time that the worker saves (below 0: costs), once known."""
    stands_by: bool = False  # it trains nothing, and `saves` predicts the effect of its help
    differs: tuple[str, ...] = ()  # its last report about different versions of packages
    cards: int = 0  # the accelerators of its machine
    unfit_because: str = ""  # why it gets no task of the experiment shown

    def __repr__(self) -> str:
        """Describe the worker and its task in one line."""
        return f"<WorkerStatus {self.worker}: {self.state}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The workers, and the experiment that was asked for (or the active one)."""

    change: int  # grows with every change; a caller passes it back to wait for the next one
    workers: tuple[WorkerStatus, ...] = ()
    experiment: ExperimentSummary | None = None
    tasks: tuple[TaskStatus, ...] = ()  # of the current round, 10,000 at most
    wanted_workers: int = 0  # how many policies have requested so far
    decisions: tuple[str, ...] = ()
    """The last few, oldest first. Each sentence begins with the seconds since the submission."""
    numeric_class: values.NumericClass | None = (
        None  # the manager's own; it draws the initial model
    )
    hostname: str = ""  # the machine of the manager's process
    pid: int = 0
    queue: tuple[ExperimentSummary, ...] = ()  # the first that wait, in order; paused ones last

    def __repr__(self) -> str:
        """Describe the number of workers and the experiment's progress in one line."""
        count = len(self.workers)
        return f"<Status {count} worker{'s' * (count != 1)}, {self.experiment or 'no experiment'}>"

    @property
    def idle_workers(self) -> frozenset[str]:
        """The names of the idle workers."""
        return frozenset(w.worker for w in self.workers if w.state is WorkerState.IDLE)

    @property
    def devices(self) -> str:
        """The kinds of devices on which the workers train, as text; empty without workers."""
        return ", ".join(sorted({worker.device.partition(":")[0] for worker in self.workers}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """Part of an experiment's record: JSON lines, and the number of the line that follows."""

    lines: tuple[str, ...]
    next_line: int
    experiment: ExperimentSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """The worker at an address, and what it runs."""

    protocol: int
    version: values.ShortText
    name: values.ShortText
    running: values.AttemptId | None = None


# Half of the largest frame, because the frame holds the rest of the task as well.
PACKED_BYTES_MAX = 8 * 2**20

_WIDTHS_BYTES = (2, 4, 8)
STRETCH_BYTES = 16
"""The width of a stretch of indices instead: its first one, and the one that follows its last."""


def pack_indices(indices: npt.NDArray[np.integer]) -> tuple[int, bytes]:
    """Pack indices of shape (n,); returns the width of one in bytes, and the bytes of all.

    A shard of whole blocks takes fewer bytes as stretches of consecutive indices. Others cost a
    tenth to a two-hundredth of a Thrift list. Above `PACKED_BYTES_MAX` they do not fit into a
    message. If a shard has many, the manager publishes the bytes as a file and sends an
    `IndicesFile`; a worker reads it once and unpacks it with this module. Code that knows the
    dataset checks whether an index exists in it.
    """
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(f"indices: a flat array of integers, not {indices.dtype} {indices.shape}")
    if indices.size and int(indices.min()) < 0:
        raise ValueError(f"indices: {int(indices.min())} is negative")
    top = int(indices.max()) if indices.size else 0
    width = next(width for width in _WIDTHS_BYTES if top < 1 << 8 * width)
    last = np.append(np.diff(indices) != 1, True)[: indices.size]
    if STRETCH_BYTES * np.count_nonzero(last) < width * indices.size:
        begins, ends = indices[np.roll(last, 1)], indices[last] + 1
        return STRETCH_BYTES, np.stack([begins, ends], axis=1).astype("<i8").tobytes()
    return width, indices.astype(f"<u{width}").tobytes()


def unpack_indices(width_bytes: int, count: int, data: bytes | memoryview) -> IndexArray:
    """Unpack the bytes of `pack_indices` into a read-only int64 array of shape (count,)."""
    if width_bytes == STRETCH_BYTES:
        return _unpack_stretches(count, data)
    if width_bytes not in _WIDTHS_BYTES:
        raise IncompatiblePeer(f"indices.width_bytes = {width_bytes}: 2, 4, 8 or 16")
    if count < 0 or count * width_bytes != len(data):
        shape = f"{count} indices of {width_bytes} bytes"
        raise IncompatiblePeer(f"indices.count = {count}: {shape} are not {len(data)} bytes")
    unsigned = np.frombuffer(data, dtype=f"<u{width_bytes}")
    # As int64, such an index would be negative, and numpy counts negative indices from the end.
    if count and int(unsigned.max()) >= 2**63:
        raise IncompatiblePeer(f"indices: {int(unsigned.max())} is too large for an index")
    indices = unsigned.astype(np.int64)
    indices.flags.writeable = False
    return indices


def _unpack_stretches(count: int, data: bytes | memoryview) -> IndexArray:
    from downpour.core.splitters import stretches  # with the spec, which a health check spares

    whole = data[: len(data) // STRETCH_BYTES * STRETCH_BYTES]
    begins, ends = np.frombuffer(whole, "<i8").reshape(-1, 2).T
    # Each at most `count`, because a sum of huge ones could wrap around.
    fits = (begins >= 0) & (begins < ends) & (ends - begins <= count)
    if len(whole) != len(data) or not fits.all() or sum((ends - begins).tolist()) != count:
        raise IncompatiblePeer(f"indices.count = {count}: {len(data)} bytes of other stretches")
    indices = stretches(begins, ends)
    indices.flags.writeable = False
    return indices


ExperimentName = Annotated[
    str, values.Rule(lambda name: not name or values.is_bare_name(name), values.BARE_NAME)
]
"""The name of an experiment, or nothing."""


class ManagerService(Protocol):
    """A manager's service; `SpecError`, `Refused` and `SharedDirectoryError` reach the caller.

    Every call may come twice, because its answer may have been lost; both answers must be equal.
    `describe`, `heartbeat`, `leave` and `list_experiments` never refuse.
    """

    def describe(self) -> ManagerInfo:
        """Return the facts that a worker needs before it registers."""

    def register_worker(self, registration: Registration) -> Registered:
        """Register a worker; refuse another protocol, or the presence of another folder."""

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Record that a worker is alive; the reply says whether it is registered."""

    def report_update(self, worker: str, attempt: values.AttemptId, update: values.Update) -> None:
        """Accept an update; it is durable when this returns."""

    def report_failure(
        self, worker: str, attempt: values.AttemptId, kind: FailureKind, reason: Reason
    ) -> None:
        """Record that an attempt failed."""

    def report_hand_over(
        self, worker: str, attempt: values.AttemptId, snapshot: values.Snapshot
    ) -> None:
        """Accept the snapshot of a stopped attempt, so that another worker can continue it."""

    def report_blocks(
        self, worker: str, experiment: values.BareName, blocks: tuple[BlockDigest, ...]
    ) -> tuple[Reason, ...]:
        """Record which blocks a worker has read; returns the ones that are different elsewhere."""

    def leave(self, worker: str, reason: Reason) -> None:
        """Unregister a worker."""

    def submit(self, spec: str, request: str, owner: values.ShortText, priority: int) -> str:
        """Accept an experiment, described in TOML; a repeated request returns the same one."""

    def status(self, experiment: ExperimentName, after_change: int, wait_seconds: float) -> Status:
        """Wait for a change after `after_change`; an empty `experiment` means the active one."""

    def list_experiments(self, before: ExperimentName, limit: int) -> tuple[ExperimentSummary, ...]:
        """Return the last experiments before `before`, or of all, in the order of submission."""

    def cancel(self, experiment: ExperimentName) -> None:
        """Cancel an experiment; one that has ended stays as it is."""

    def pause(self, experiment: ExperimentName, paused: bool | None, priority: int | None) -> None:  # noqa: FBT001
        """Pause an experiment, or continue it if not `paused`; give a waiting one a `priority`."""

    def disturbed(self, experiment: ExperimentName, who: str, what: str) -> None:
        """Record that someone disturbs a process on purpose."""

    def results(
        self, experiment: ExperimentName, from_line: int, wait_seconds: float
    ) -> RecordPage:
        """Wait for a line of the record at or after `from_line`."""


class WorkerService(Protocol):
    """A worker's service for its manager; only `train` may refuse, for instance as busy."""

    def ping(self) -> WorkerInfo:
        """Return the worker's name, and what it runs."""

    def train(self, task: TaskMessage) -> None:
        """Accept a task and return at once; accept a repeated call, too."""

    def cancel(self, attempt: values.AttemptId) -> None:
        """Stop an attempt at its next step; do nothing if it is not running."""

    def hand_over(self, attempt: values.AttemptId) -> None:
        """Stop an attempt at its next step with a snapshot; do nothing if it is not running."""

    def drain(self) -> None:
        """Finish what is running, then leave."""


def messages() -> list[str]:
    """Return the names of all messages, such as "manager.heartbeat"."""
    services = {"manager": ManagerService, "worker": WorkerService}
    return [
        f"{who}.{name}"
        for who, service in services.items()
        for name, method in vars(service).items()
        if callable(method) and not name.startswith("_")
    ]
