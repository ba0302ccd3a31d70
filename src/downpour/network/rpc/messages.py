"""The messages between a manager, its workers and its clients, as values.

They mirror `idl/downpour.thrift` name for name; `wire.py` turns them into Thrift structs and back,
and nothing outside this folder ever sees a struct. The values that messages share with files and
the scheduler (attempts, updates, published files) are in `base/values.py`. Counts and sizes are not
negative and seconds are finite; `wire.py` refuses anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from downpour.base.devices import CPU
from downpour.base.errors import IncompatiblePeer
from downpour.base.states import ExperimentState, TaskState, WorkerState
from downpour.base.values import (
    AttemptId,
    Forecast,
    NumericClass,
    Part,
    ProcessState,
    Progress,
    PublishedFile,
    Snapshot,
    SystemState,
    TrialSums,
)

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicesFile:
    """A list of indices too large for a message: a file of `count` packed indices.

    Its bytes are the result of `pack_indices`; `unpack_indices` reads them.
    """

    width_bytes: int
    count: int
    file: PublishedFile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskMessage:
    """Train one shard in one round, starting from a model version; identified by its `id`.

    `spec` is the resolved spec as TOML; `dataset` is the bare name of the prepared dataset's
    folder. `indices` has shape (n,). `optimizer_state` is the shard's state after its last round,
    if the spec keeps it. `snapshot` is the state to continue from, if a worker has already begun
    the task. `frozen` holds the parameters that no task trains, if there are any. The worker trains
    the first `share` of the task's steps. If rounds overlap, the task begins from the model moved
    by `step`, the shard's last update. The model may be a difference from the last of the `leading`
    versions; the first of these is complete. `whole` is the complete model, if an earlier attempt
    could not read these files. `trial` has the checksums of the steps that each process repeats.
    """

    id: AttemptId
    spec: PublishedFile
    dataset: str
    model: PublishedFile
    indices: IndexArray | IndicesFile
    optimizer_state: PublishedFile | None = None
    term: int = 0
    snapshot: Snapshot | None = None
    frozen: PublishedFile | None = None
    share: float = 1.0
    step: PublishedFile | None = None
    leading: tuple[PublishedFile, ...] = ()
    whole: PublishedFile | None = None
    trial: TrialSums | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerInfo:
    """The facts that a worker needs before it registers.

    `presence_file` is a bare name in the shared directory's `presence/`. A worker that registers
    sends the file's content, which shows that both see the same directory. `patience` scales every
    timeout.
    """

    protocol: int
    version: str
    presence_file: str
    heartbeat_seconds: float
    term: int = 0
    patience: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A worker that registers; its own service listens at `host` and `port`.

    `labels` are the user's labels for it, each as KEY=VALUE. It trains on `device`, in its
    `numeric_class`. If the device is not its CPU, `processor_class` is the class for specs that ask
    for the CPU.
    """

    name: str
    host: str
    port: int
    protocol: int
    version: str
    presence: str
    numeric_class: NumericClass
    hostname: str
    pid: int
    running: AttemptId | None = None
    labels: tuple[str, ...] = ()
    device: str = ""
    processor_class: NumericClass | None = None

    def class_for(self, asked: str) -> NumericClass:
        """Return the numeric class in which the worker trains a spec that asks for a device."""
        own = self.numeric_class
        return self.processor_class or own if asked == CPU else own

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
    """A worker's sign of life: its attempts, its machine's state, and its process's resources.

    `differs` has a phrase for each package that its experiment imports in another version than the
    manager's.
    """

    worker: str
    running: tuple[Progress, ...]
    system: SystemState
    process: ProcessState | None = None
    differs: tuple[str, ...] = ()


PAGE_EXPERIMENTS_MAX = 1000
"""The limit for one answer; with reasons of 2,000 characters, it stays well under 16 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The answer to a worker's heartbeat.

    `known` is false if the worker must register again. The worker should stop `unwanted` attempts,
    and leave at least `interval_seconds` between two heartbeats.
    """

    known: bool
    unwanted: tuple[AttemptId, ...] = ()
    interval_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A mean over the examples of an evaluation."""

    name: str
    value: float


def metrics_of(measured: Mapping[str, float | None]) -> tuple[Metric, ...]:
    """Return those metrics that are finite numbers, in order; a message holds no others."""
    return tuple(
        Metric(name=name, value=value)
        for name, value in measured.items()
        if value is not None and math.isfinite(value)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSummary:
    """An experiment in one line; `metrics` and `loss` come from its last evaluation, on `part`.

    `reason` says why it failed, or why a running one makes no progress; `asked_wrongly` is true if
    the spec is to blame.
    """

    experiment: str
    name: str
    state: ExperimentState
    rounds_done: int
    rounds_total: int
    reason: str | None = None
    asked_wrongly: bool = False
    metrics: tuple[Metric, ...] = ()
    loss: float | None = None
    part: Part = "test"
    epochs_done: int | None = None
    epochs_total: int | None = None

    def __repr__(self) -> str:
        """Describe the experiment and its progress in one line."""
        return f"<ExperimentSummary {self.experiment}: {self.state}, {self.where}>"

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
class TaskStatus:
    """One task of the current round, with the progress of its furthest attempt.

    `predicted` forecasts the time from this attempt's assignment to its update. `slowness` is the
    pace that follows from it, divided by the round's median.
    """

    shard: int
    state: TaskState
    worker: str | None = None
    steps_done: int
    steps_total: int
    elapsed_seconds: float
    predicted: Forecast | None = None
    slowness: float | None = None

    @property
    def has_update(self) -> bool:
        """Whether its update exists, applied or not."""
        return self.state in {TaskState.PUBLISHED, TaskState.APPLIED}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker, as the manager sees it.

    `slowness` is the median of the worker's paces in the last rounds, each divided by its round's
    median. The worker is process `pid` on the machine `hostname`. `saves` is the predicted share of
    a round's time that the worker saves; if it is negative, the worker costs time. A worker that
    `stands_by` trains nothing, and the share predicts the effect of its help. While too little is
    known, `saves` is None and `stands_by` false. `differs` is the worker's last report about
    different versions of packages.
    """

    worker: str
    address: str
    state: WorkerState
    running: AttemptId | None = None
    system: SystemState | None = None
    tasks_done: int
    slowness: float | None = None
    numeric_class: NumericClass | None = None
    hostname: str = ""
    pid: int = 0
    labels: tuple[str, ...] = ()
    device: str = ""
    saves: float | None = None
    stands_by: bool = False
    differs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Describe the worker and its task in one line."""
        return f"<WorkerStatus {self.worker}: {self.state}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The workers, and the experiment that was asked for (or the active one).

    `change` grows with every change; a caller passes it back to wait for the next one. `tasks` are
    those of the current round, 10,000 at most. `wanted_workers` is how many workers policies have
    requested so far. `decisions` are the last few for the experiment, oldest first, each a sentence
    that begins with the seconds since its submission. `numeric_class` is the manager's own, which
    determines the initial parameters, and `hostname` and `pid` are those of its process.
    """

    change: int
    workers: tuple[WorkerStatus, ...] = ()
    experiment: ExperimentSummary | None = None
    tasks: tuple[TaskStatus, ...] = ()
    wanted_workers: int = 0
    decisions: tuple[str, ...] = ()
    numeric_class: NumericClass | None = None
    hostname: str = ""
    pid: int = 0

    def __repr__(self) -> str:
        """Describe the number of workers and the experiment's progress in one line."""
        count = len(self.workers)
        return f"<Status {count} worker{'s' * (count != 1)}, {self.experiment or 'no experiment'}>"

    @property
    def idle_workers(self) -> frozenset[str]:
        """The names of the idle workers."""
        return frozenset(one.worker for one in self.workers if one.state is WorkerState.IDLE)

    @property
    def devices(self) -> str:
        """The kinds of devices on which the workers train, as text; empty without workers."""
        return ", ".join(sorted({one.device.partition(":")[0] for one in self.workers}))


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
    version: str
    name: str
    running: AttemptId | None = None


# Half of the largest frame, because the frame holds the rest of the task as well.
PACKED_BYTES_MAX = 8 * 2**20

_WIDTHS_BYTES = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedIndices:
    """`count` indices in `data`, `width_bytes` each.

    They cost a tenth to a two-hundredth of a Thrift list. Above `PACKED_BYTES_MAX` they do not fit
    into a message. Then the manager publishes the bytes as a file and sends an `IndicesFile`; the
    worker reads the file and unpacks it with this module. Code that knows the dataset checks
    whether an index exists in it.
    """

    width_bytes: int
    count: int
    data: bytes


def pack_indices(indices: npt.NDArray[np.integer]) -> PackedIndices:
    """Pack indices of shape (n,).

    Raises:
        ValueError: they are not a flat array of non-negative integers.
    """
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(f"indices: a flat array of integers, not {indices.dtype} {indices.shape}")
    if indices.size and int(indices.min()) < 0:
        raise ValueError(f"indices: {int(indices.min())} is negative")
    top = int(indices.max()) if indices.size else 0
    width = next(width for width in _WIDTHS_BYTES if top < 1 << 8 * width)
    data = indices.astype(f"<u{width}").tobytes()
    return PackedIndices(width_bytes=width, count=int(indices.size), data=data)


def unpack_indices(width_bytes: int, count: int, data: bytes | memoryview) -> IndexArray:
    """Unpack the bytes of `pack_indices` into a read-only int64 array of shape (count,).

    Raises:
        IncompatiblePeer: width, count and data do not fit together.
    """
    if width_bytes not in _WIDTHS_BYTES:
        raise IncompatiblePeer(f"indices.width_bytes = {width_bytes}: 2, 4 or 8")
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
